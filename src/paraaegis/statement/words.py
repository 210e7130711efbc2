"""Words for attackers, units and guarantees, and sentences that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from paraaegis.plural import plural
from paraaegis.privacy.guarantee import CLIENTS, HOLDERS, SERVER, Guarantee
from paraaegis.privacy.ledger import ELECTED, REST, SAMPLES, TRAINING, VOTES, WHOLE
from paraaegis.runs.guarantees import Spent

Standing = Literal["noise", "weak", "hidden", "sums", "none", "nothing"]  # what a guarantee amounts to
ATTACKERS = {SERVER: "the server", CLIENTS: "fellow sites", HOLDERS: "whoever has the model"}
SIMULATION = (
    "This is a simulation and protects nobody: noise, keys and secret orders follow from the seed in the "
    "configuration, so anyone who has it can compute them."
)
SAME_RUN = 'The guarantees shown are those of the same run with privacy.noise = "secret".'
RECORDED = {
    TRAINING: "training",
    VOTES.what: "ballot",
    ELECTED: "elected values",
    REST: "other values",
    WHOLE: "whole update",
    SAMPLES.what: "number of records",
}
EPSILON = (
    "ε (epsilon) measures how much a site or a record can change what an attacker sees: 0 is nothing, and the larger "
    "it is, the less it protects. δ (delta) is, roughly, the chance that this limit fails. The unit is what may "
    "change: client or client-replace (a whole site), or record."
)
FORMULA = (
    "The ε in the configuration belongs to a published formula that bounds neither what a site nor what a record can "
    "change. The figures here are computed for the noise that is added."
)
READS = {  # what an attacker reads if nothing protects against it
    "": "it reads at least part of every update without noise",
    CLIENTS: "they read sums without noise",
    HOLDERS: "the model contains sums without noise",
}
CELLS: dict[Standing, str] = {
    "noise": "Limited by noise: {figure}",
    "weak": "Not protected in practice: far too little noise ({figure})",
    "hidden": "Cannot read it: encrypted",
    "sums": "Reads it only within sums over {quorum} or more sites, without noise",
    "none": "Not protected: {reads}",
    "nothing": "Sees nothing",
}
BOTTOM: dict[Standing, str] = {
    "noise": "noise limits what {who} can learn about it",
    "weak": "the noise is far too weak against {who}",
    "hidden": "encryption keeps it from {who}",
    "sums": "{who} can read it only within sums over {quorum} or more sites, but these carry no noise",
    "none": "nothing limits what {who} can learn about it",
    "nothing": "nothing was sent that {who} could see",
}


def attackers(rows: Sequence[Guarantee], colluders: int) -> str:
    """The adversaries of these guarantees as a reader would say it: `anybody` if they are all there are."""
    helped = f"the server with the help of {plural(colluders, 'site')}"
    names = list(dict.fromkeys(ATTACKERS.get(row.adversary, helped) for row in rows))
    return "anybody" if len(names) > len(ATTACKERS) else listed(names)


def subject(unit: str) -> str:
    """What a unit protects."""
    return "a site's contribution as a whole" if unit.startswith("client") else f"one {unit}"


def question(unit: str) -> str:
    """What an attacker tries to tell."""
    questions = {"client": "whether a site's update was used", "client-replace": "which of two data sets a site used"}
    return questions.get(unit, f"whether one {unit} was used" if unit == "record" else f"whether one {unit} took part")


def listed(items: Sequence[str]) -> str:
    """Items as `a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def spent_text(spent: Spent) -> str:
    """What a ledger holds, in a sentence."""
    count = ", ".join(f"{number} × {RECORDED.get(what, what)}" for what, number in spent.releases.items())
    share = spent.share_of_budget
    used = "" if share is None else f"; {100 * share:.1f}% of the budget ({spent.reading}) is spent"
    return f"Recorded in {plural(spent.rounds, 'round')}: {count or 'nothing'}{used}."
