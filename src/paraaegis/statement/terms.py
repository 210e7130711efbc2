"""Assumptions, checks and gaps: each text with the condition under which it applies."""

from __future__ import annotations

from collections.abc import Iterator

from paraaegis.privacy.guarantee import SERVER
from paraaegis.statement.facts import Facts
from paraaegis.statement.words import listed, spent_text, subject, who


def assumptions(facts: Facts) -> Iterator[str]:
    """What must hold for the rest to be true."""
    config, quorum = facts.config, facts.config.federation.quorum
    colluders, group = config.privacy.colluders, config.privacy.group
    masked = facts.keyed("masked") or facts.keyed("summed")
    yield (
        "Every site runs honest code: whoever supplies a site's program, or administers its computers, can read its "
        "records and keys. Connections are encrypted and both ends are identified (TLS)."
    )
    if facts.keyed("hidden") or "hidden" in facts.sights(SERVER, "votes"):
        yield "No site gives its keys to the server. All sites share them, so one that does opens what they hide."
    if masked:
        yield (
            f"At most {colluders} of the sites in a sum (`privacy.colluders`) help the server, and every sum is over "
            f"at least {quorum} sites (the quorum)."
        )
    elif facts.past or facts.method.server(config).keyed:
        yield f"A sum is over at least {quorum} sites (the quorum). Sites refuse smaller sums."
    if masked or facts.keyed("hidden"):
        count = facts.guarantees.lwe_bits
        bits = f"; about 2^{count} steps with the parameters used" if count else ""
        yield (
            "The encryption is as hard to break as experts believe (learning with errors: equations that were made "
            f"slightly wrong on purpose, which nobody knows how to solve in reasonable time{bits})."
        )
    if any(one.quorum for ways in facts.kinds.values() for one in ways):
        yield "The noise in a sum is complete only if the other sites add their share of it and none helps the server."
    if (facts.guarantees.sigma or facts.guarantees.training) and not facts.simulation:
        yield "The noise comes from the operating system's secret generator, and no folder is reset to an older copy."
    if facts.guarantees.training:
        people = "one record" if group == 1 else f"at most {group} records (`privacy.group`)"
        yield (
            f"Each person has {people} in the training data. Nobody can check this; the site vouches for it"
            + (" or sets `privacy.group`." if group == 1 else ".")
        )
        yield "Records are normalised with public constants, not with means computed from the records themselves."
        yield "Nobody learns which records a training step drew at random."


def checks(facts: Facts) -> Iterator[str]:
    """What the program checked, and what it did not."""
    spent = facts.guarantees.spent
    if spent is not None:
        owner = "this site's, over all its runs" if facts.place == "site" else "of all sites"
        yield f"The ledger ({owner}), in which every release is recorded before it is sent. {spent_text(spent)}"
    else:
        yield "Nothing has been sent yet. A run records every release in a ledger before it is sent."
    if facts.method.server(facts.config).keyed:
        yield (
            "Every site checks every sum that it gets (authentication tags): it is over enough named sites, unchanged, "
            "and the same for all sites. If not, the run ends for that site."
        )
    else:
        yield "Sites do not check what the server makes of their updates: this method has no keys to check it with."
    if facts.guarantees.sigma:
        yield "Attacks on the noise (an audit) were not run here; run `paraaegis audit` on this configuration."
    elif facts.guarantees.training:
        yield "No attack was run. `paraaegis audit` attacks noise on updates; here the noise is in the training."
    else:
        yield "No attack was run; `paraaegis audit` attacks noise, and there is none here."


def uncovered(facts: Facts) -> Iterator[str]:
    """What no guarantee covers."""
    privacy, whole = facts.config.privacy, facts.guarantees.guarantees
    for unit in dict.fromkeys(row.unit for row in whole):
        rows = [row for row in whole if row.unit == unit and facts.standing(row) in ("none", "weak", "sums")]
        if rows:
            names = listed([who(row.adversary, privacy.colluders) for row in rows])
            yield f"Against {names}: {subject(unit)}, as said in the table."
    if facts.kinds.get("votes"):
        yield "The vote: no noise covers which values are elected, only the shuffled order and the keys."
    reports = [what for what in ("samples", "metrics", "seconds") if what in facts.kinds]
    words = {"samples": "numbers of records", "metrics": "metrics", "seconds": "training times"}
    reported = "".join(f"{words[what]}, " for what in reports).capitalize()
    yield f"{reported}{'who' if reported else 'Who'} takes part, the timing of answers, and refusals."
    yield (
        "Choices made by looking at results (settings, the first model, which run to keep), and other runs on the same "
        "records: their ε must be added up."
    )
    yield "A site that sends false updates to spoil the model, and whatever a site's own folder holds, unencrypted."
    if privacy.attempts > 1 and facts.keyed("masked"):
        yield f"Rounds that a server has repeated, up to {privacy.attempts} times; `privacy.attempts = 1` excludes it."
