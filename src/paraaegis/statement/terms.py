"""Assumptions, checks and gaps: each text with the condition under which it applies."""

from __future__ import annotations

from collections.abc import Iterator

from paraaegis.plural import plural
from paraaegis.statement.exposure import REPORTS
from paraaegis.statement.facts import Facts
from paraaegis.statement.words import attackers, listed, spent_text, subject


def assumptions(facts: Facts) -> Iterator[str]:
    """What must hold for the rest to be true."""
    privacy, quorum, bits = facts.config.privacy, facts.config.federation.quorum, facts.guarantees.lwe_bits
    masked, training = facts.sent("masked", "summed"), facts.guarantees.training
    yield "Every site runs honest code: whoever supplies or administers it can read the site's records and keys."
    yield "Connections are encrypted and both ends are identified (TLS)."
    if facts.sent("hidden"):
        yield "No site gives its keys to the server. All sites share them, so a single one that does opens everything."
    elif any(one.server == "hidden" for one in facts.kinds.get("votes", ())):
        yield "No site gives its keys to the server: they are shared, and hide who voted for what."
    if masked:
        yield f"The server is helped by at most {plural(privacy.colluders, 'site')} of a sum (`privacy.colluders`)."
    if facts.method.server(facts.config).keyed:
        yield f"Every sum is over {quorum} sites or more (the quorum); sites refuse others, if none helps the server."
    if masked or facts.sent("hidden"):
        steps = f"; that takes about 2^{bits} steps here" if masked and bits else ""
        yield (
            "The encryption cannot be broken. It rests on a problem that experts believe to be hard, learning with "
            f"errors: solving equations that were made slightly wrong on purpose{steps}."
        )
    if any(one.quorum for one in facts.values):
        yield "The other sites add their share of the noise in a sum, and none of them takes it out for the server."
    if (facts.guarantees.sigma or training) and not facts.simulation:
        yield "Noise comes from the operating system's secret generator; no site's folder is reset to an older copy."
    if training:
        records = plural(privacy.group, "record")
        yield f"A person has at most {records} in all, at one site (`privacy.group`); only the sites can know."
        yield "Records are normalised with public constants, not with means computed from the records themselves."
        yield "Nobody learns which records a training step drew at random."


def checks(facts: Facts) -> Iterator[str]:
    """What the program checked, and what it did not."""
    if facts.guarantees.spent is None:
        yield "Nothing has been sent yet. A run records everything in a ledger before it is sent."
    else:
        whose = "of this site, over all its runs" if facts.place == "site" else "of all sites"
        yield f"The ledger {whose}, written before anything is sent. {spent_text(facts.guarantees.spent)}"
    if facts.method.server(facts.config).keyed:
        yield (
            "Every site checks that a sum is unchanged, over enough named sites, and the same for all sites. A site "
            "that helps the server can deceive the others."
        )
        if facts.config.protect.reveal == "server":
            yield "Not checked: the model that the server computes for itself."
    else:
        yield "Sites cannot check what the server makes of their updates: this method gives them no keys."
    if facts.guarantees.sigma or facts.guarantees.training:
        yield "Not checked: attacks on the noise. None was run for this statement; run `paraaegis audit` to do so."
    else:
        yield "Not checked: attacks. `paraaegis audit` attacks noise, and here there is none."


def uncovered(facts: Facts) -> Iterator[str]:
    """What no guarantee covers."""
    privacy, gaps = facts.config.privacy, dict[str, list[str]]()
    for unit in dict.fromkeys(row.unit for row in facts.guarantees.guarantees):
        rows = [row for row in facts.guarantees.guarantees if row.unit == unit]
        if open_rows := [row for row in rows if facts.standing(row) in ("none", "weak", "sums")]:
            gaps.setdefault(attackers(open_rows, privacy.colluders), []).append(subject(unit))
    yield from (f"{listed(what).capitalize()}, against {names}: see the table." for names, what in gaps.items())
    if "votes" in facts.kinds and not facts.records_limited:
        yield "The vote: no noise covers who votes for what, and which values are elected."
    reports = "".join(f"{text}, " for what, text in REPORTS.items() if what in facts.kinds)
    yield f"Of each site: {reports}whether and when it takes part, how long it takes, and whether it refuses."
    yield "Settings chosen by looking at results; other trainings on the same records, whose ε must be added up."
    yield "Sites that send false updates to spoil the model; a stolen site's folder, which is not encrypted."
    if privacy.attempts > 1 and facts.sent("masked", "summed"):
        yield f"Rounds that the server has repeated, {privacy.attempts} times at most; `privacy.attempts=1` forbids it."
