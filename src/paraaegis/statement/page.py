"""The statement's sections, from the facts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from paraaegis.plural import plural
from paraaegis.privacy.guarantee import Guarantee
from paraaegis.statement.exposure import learnt, leaving
from paraaegis.statement.facts import Facts
from paraaegis.statement.reading import ALARMS, Reading
from paraaegis.statement.remedies import remedies
from paraaegis.statement.terms import assumptions, checks, uncovered
from paraaegis.statement.words import AS_IF_SECRET, BOTTOM, CELLS, SIMULATION, Standing, change, listed, subject, who
from paraaegis.version import __version__


class Table(msgspec.Struct, frozen=True):
    """A table: headings, and rows of as many cells."""

    headings: list[str]
    rows: list[list[str]]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section: paragraphs, then a table, then a list. Text may contain `code`."""

    title: str
    text: list[str] = []
    table: Table | None = None
    items: list[str] = []


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A whole statement."""

    title: str
    simulation: bool
    sections: list[Section]


def statement(facts: Facts) -> Statement:
    """The statement about a run, a site's runs, or a configuration."""
    changes = [f"{one.gap} Set {listed([f'`{s}`' for s in one.settings])}. {one.effect}" for one in remedies(facts)]
    sections = [
        Section(title="In short", text=list(_short(facts))),
        _leaves(facts),
        _readers(facts),
        Section(title="What they could still learn", items=list(_learnt(facts))),
        _meaning(facts),
        Section(title="What this assumes", items=list(assumptions(facts))),
        Section(title="What was checked", items=list(checks(facts))),
        Section(title="What is not covered", items=list(uncovered(facts))),
        Section(title="What to change to cover more", items=changes or ["No setting that this program knows of."]),
        Section(title="Where this comes from", table=Table(["", ""], [list(row) for row in _provenance(facts)])),
    ]
    what = {"plan": "a planned training", "run": "a finished or running training", "site": "this site's trainings"}
    title = f"Data protection statement: {what[facts.place]}"
    return Statement(title=title, simulation=facts.simulation, sections=sections)


def _short(facts: Facts) -> Iterator[str]:
    if facts.simulation:
        yield SIMULATION
    sites, rounds = plural(facts.config.federation.clients, "site"), plural(facts.rounds, "round")
    did = "train" if not facts.past else "trained"
    yield (
        f"{sites} {'will ' if not facts.past else ''}{did} one model together, in {rounds}, without pooling their "
        "records. In each round every site trains the model on its own records and sends what changed in it, the "
        "update; a server adds up the updates, and the sites apply the sum."
    )
    lead = "The same run with secret noise and keys would give this: " if facts.simulation else ""
    yield lead + " ".join(_bottom(facts, unit) for unit in _units(facts))


def _units(facts: Facts) -> list[str]:
    return list(dict.fromkeys(row.unit for row in facts.guarantees.guarantees))


def _bottom(facts: Facts, unit: str) -> str:
    groups: dict[Standing, list[str]] = {}
    for row in facts.guarantees.guarantees:
        if row.unit == unit:
            groups.setdefault(facts.standing(row), []).append(_who(facts, row))
    quorum = facts.config.federation.quorum
    parts = [BOTTOM[kind].format(who=listed(names), quorum=quorum) for kind, names in groups.items()]
    return f"{_capital(subject(unit))}: {'; '.join(parts)}."


def _leaves(facts: Facts) -> Section:
    each = "this site" if facts.place == "site" else "each site"
    size = "How many bytes this is depends on the model; a run records it."
    if facts.place == "site":
        size = "The server's records of the run count the bytes."
    if facts.traffic:
        up, down = facts.traffic
        size = f"On average a site sent {_size(up)} and received {_size(down)}: {_size(up / facts.rounds)} and "
        size += f"{_size(down / facts.rounds)} per round."
    rows = [list(row) for row in leaving(facts)]
    kept = " Values that are not elected wait there for a later round." if facts.method.withholds else ""
    return Section(
        title=f"What leaves {each}",
        text=[f"{size} The site's name, checksums of settings and model, and the length of messages are visible too."],
        table=Table(["What", "How it travels", "How often"], rows),
        items=[f"Never sent: the records themselves, and keys that are not encrypted.{kept}"],
    )


def _readers(facts: Facts) -> Section:
    units, rows = _units(facts), facts.guarantees.guarantees
    adversaries = list(dict.fromkeys(row.adversary for row in rows))
    cells = {(row.adversary, row.unit): _cell(facts, row) for row in rows}
    names = {row.adversary: _capital(_who(facts, row)) for row in rows}
    table = Table(
        ["Attacker", *(_capital(subject(unit)) for unit in units)],
        [[names[one], *(cells[one, unit] for unit in units)] for one in adversaries],
    )
    notes = [AS_IF_SECRET] if facts.simulation else []
    return Section(title="Who can read it", text=notes, table=table)


def _cell(facts: Facts, row: Guarantee) -> str:
    text = CELLS[facts.standing(row)].format(figure=row.figure, quorum=facts.config.federation.quorum)
    if "computational dp" in row.kind:
        text += "; it reads only sums, because of the encryption"
    return text + ("; not counting the vote" if "given the partition" in row.kind else "")


def _learnt(facts: Facts) -> Iterator[str]:
    rows = {row.adversary: row for row in facts.guarantees.guarantees}
    return (f"{_capital(_who(facts, row))}. {learnt(facts, row.adversary)}" for row in rows.values())


def _meaning(facts: Facts) -> Section:
    groups: dict[tuple[str, str, Reading], list[Guarantee]] = {}
    for row in facts.guarantees.guarantees:
        if (reading := facts.readings.get((row.adversary, row.unit))) is not None:
            groups.setdefault((row.figure, row.kind.rpartition("dp")[2], reading), []).append(row)
    without = [row for row in facts.guarantees.guarantees if row.epsilon is None]
    names = [f"{_who(facts, row)} ({subject(row.unit)})" for row in without]
    items = [_meant(facts, rows, reading) for (_, _, reading), rows in groups.items()]
    items += [f"No such guarantee against {'; '.join(names)}."] if names else []
    text = [
        "ε (epsilon) measures how much a site or a record can change what an attacker sees: 0 is nothing, and protection "
        "fades as it grows. δ (delta) is, roughly, the chance that this limit fails."
    ]
    text += [AS_IF_SECRET] if facts.simulation and groups else []
    if facts.config.privacy.calibration == "paper" and facts.guarantees.sigma:
        text.append(
            f"The configured ε = {facts.config.privacy.epsilon:g} is that of a formula in a paper, which bounds "
            "neither what a site nor what a record can change. The figures here are exact for the noise that is added."
        )
    return Section(title="What ε means here", text=text if groups else text[:1], items=items)


def _meant(facts: Facts, rows: list[Guarantee], reading: Reading) -> str:
    row = rows[0]
    names = listed([_who(facts, one) for one in rows])
    text = (
        f"Against {names}: {row.figure}. Whoever must tell {change(row.unit)}, and knows everything else, is right in at "
        f"most {_percent(reading.guess)} of cases (a coin: 50%). Accusing wrongly in {100 * ALARMS:g}% of cases, it "
        f"finds at most {_percent(reading.caught)}."
    )
    if reading.useless:
        text += " So large an ε means nothing: treat this as no protection."
    if "given the partition" in row.kind:
        text += " This does not count what the vote shows."
    return text


def _provenance(facts: Facts) -> Iterator[tuple[str, str]]:
    config, result = facts.config, facts.result
    yield "Configuration", f"`{config.digest()[:16]}` (first digits of its digest)"
    yield "Method", f"`{config.protect.method}`: {facts.method.summary}"
    if facts.method.ciphers(config):
        yield "Cipher", f"`{', '.join(sorted(facts.method.ciphers(config)))}`"
    yield "Rounds and sites", f"{facts.rounds} of {config.federation.rounds} rounds, {config.federation.clients} sites"
    yield "Data and model", config.subject
    if facts.path:
        yield "Folder", f"`{facts.path}`, ledger last changed on {facts.changed}"
    ran = result.machine.get("paraaegis") if result else None
    yield "Program", f"paraaegis {__version__}" + (f"; the run was made with {ran}" if ran else "")


def _who(facts: Facts, row: Guarantee) -> str:
    return who(row.adversary, facts.config.privacy.colluders)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _percent(share: float) -> str:
    """A limit in percent, rounded up."""
    return f"{min(100.0, -(-share * 1000 // 1) / 10):g}%"


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
