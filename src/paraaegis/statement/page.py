"""The statement's sections, from the facts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from paraaegis.plural import plural, size
from paraaegis.privacy.guarantee import Guarantee
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.result import read_done
from paraaegis.statement.exposure import learnt, leaving
from paraaegis.statement.facts import Facts
from paraaegis.statement.reading import ALARMS, Reading
from paraaegis.statement.remedies import remedies
from paraaegis.statement.terms import assumptions, checks, uncovered
from paraaegis.statement.words import (
    BOTTOM,
    CELLS,
    EPSILON,
    FORMULA,
    READS,
    SAME_RUN,
    SIMULATION,
    Standing,
    attackers,
    listed,
    question,
    subject,
)
from paraaegis.version import __version__


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section: paragraphs, then a table, then a list. Text may contain `code`."""

    title: str
    text: list[str] = []
    headings: list[str] = []
    rows: list[list[str]] = []
    items: list[str] = []


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A whole statement."""

    title: str
    simulation: bool
    sections: list[Section]


def statement(facts: Facts) -> Statement:
    """The statement about a run, a site's runs, or a configuration."""
    changes = [f"{one.gap} Set {listed([f'`{s}`' for s in one.settings])}. {one.effect}" for one in remedies(facts)]
    learnable = [f"{name}: {learnt(facts, rows[0].adversary)}" for name, rows in _by_attacker(facts).items()]
    what = {"plan": "a planned training", "run": "a training", "site": "this site's part in trainings"}[facts.place]
    sections = [
        _short(facts),
        _leaves(facts),
        _readers(facts),
        Section(title="What they could still learn", items=learnable),
        _meaning(facts),
        Section(title="What this assumes", items=list(assumptions(facts))),
        Section(title="What was checked", items=list(checks(facts))),
        Section(title="What is not covered", items=list(uncovered(facts))),
        Section(title="What to change to cover more", items=changes or ["No setting covers more."]),
        Section(title="Where this comes from", rows=list(_provenance(facts))),
    ]
    return Statement(title=f"Data protection statement: {what}", simulation=facts.simulation, sections=sections)


def _short(facts: Facts) -> Section:
    vote = " The sites vote on which numbers (values) to elect, that is, to encrypt." if facts.method.votes else ""
    did = "will train" if facts.place == "plan" else "trained"
    text = [
        f"{plural(facts.config.federation.clients, 'site')} {did} one model together, in "
        f"{plural(facts.rounds, 'round')}, without pooling their records. In each round every site trains the model on "
        "its own records and sends what changed in it, the update, a long list of numbers; a server adds up the "
        f"updates, and the sum improves the model.{vote} An update can reveal two things: what a site contributed as a "
        "whole, and whether and how one record, such as a patient's, was used."
    ]
    if facts.simulation:
        text = [SIMULATION, *text, "With secret noise and keys, the same run would give this:"]
    return Section(title="In short", text=text, items=[_bottom(facts, unit) for unit in _units(facts)])


def _units(facts: Facts) -> list[str]:
    return list(dict.fromkeys(row.unit for row in facts.guarantees.guarantees))


def _bottom(facts: Facts, unit: str) -> str:
    groups: dict[Standing, list[Guarantee]] = {}
    for row in facts.guarantees.guarantees:
        if row.unit == unit:
            groups.setdefault(facts.standing(row), []).append(row)
    quorum = facts.config.federation.quorum
    parts = [BOTTOM[kind].format(who=_who(facts, rows), quorum=quorum) for kind, rows in groups.items()]
    return f"{_capital(subject(unit))}: {'; '.join(parts)}."


def _leaves(facts: Facts) -> Section:
    text = "Bytes are recorded when it is run." if facts.place == "plan" else "The server's records count the bytes."
    if facts.traffic:
        up, down, each_up, each_down = map(size, (*facts.traffic, *(count / facts.rounds for count in facts.traffic)))
        text = f"A site sent {up} and received {down} on average, {each_up} and {each_down} per round."
    kept = " Values that are not elected stay for a later round." if facts.method.withholds else ""
    return Section(
        title="What leaves this site" if facts.place == "site" else "What leaves each site",
        text=[f"{text} A round that has to be repeated counts again."],
        headings=["What", "How it travels", "How often"],
        rows=list(leaving(facts)),
        items=[
            "Also sent: its name, checksums, and keys or shares of keys in encrypted form.",
            f"Never sent: the records themselves.{kept}",
        ],
    )


def _readers(facts: Facts) -> Section:
    return Section(
        title="Who can read it",
        text=["The server stands for whoever runs it or records the network.", *_same_run(facts)],
        headings=["Attacker", *(_capital(subject(unit)) for unit in _units(facts))],
        rows=[[name, *(_cell(facts, row) for row in own)] for name, own in _by_attacker(facts).items()],
    )


def _same_run(facts: Facts) -> list[str]:
    return [SAME_RUN] if facts.simulation else []


def _cell(facts: Facts, row: Guarantee) -> str:
    reads, quorum = READS.get(row.adversary, READS[""]), facts.config.federation.quorum
    text = CELLS[facts.standing(row)].format(figure=row.figure, quorum=quorum, reads=reads)
    sums = "; encryption lets it read only sums" if "computational dp" in row.kind else ""
    return text + sums + ("; the vote is not counted" if "given the partition" in row.kind else "")


def _by_attacker(facts: Facts) -> dict[str, list[Guarantee]]:
    rows: dict[str, list[Guarantee]] = {}
    for row in facts.guarantees.guarantees:
        rows.setdefault(_capital(_who(facts, [row])), []).append(row)
    return rows


def _meaning(facts: Facts) -> Section:
    groups: dict[tuple[str, str, Reading], list[Guarantee]] = {}
    without: dict[str, list[Guarantee]] = {}
    for row in facts.guarantees.guarantees:
        if (reading := facts.readings.get((row.adversary, row.unit))) is not None:
            groups.setdefault((row.figure, row.kind.rpartition("dp")[2], reading), []).append(row)
        else:
            without.setdefault(row.unit, []).append(row)
    items = [_meant(facts, rows, reading) for (_, _, reading), rows in groups.items()]
    items += [f"For {subject(unit)}: no such guarantee against {_who(facts, rows)}." for unit, rows in without.items()]
    text = [EPSILON, *(_same_run(facts) if groups else [])]
    if facts.config.privacy.calibration == "paper" and facts.guarantees.sigma:
        text.append(FORMULA)
    return Section(title="What ε means here", text=text, items=items)


def _meant(facts: Facts, rows: list[Guarantee], reading: Reading) -> str:
    row, guess, caught = rows[0], _percent(reading.guess), _percent(reading.caught)
    limit = (
        f"Suppose an attacker knows everything else and must tell {question(row.unit)}. A coin is right in 50% of "
        f"cases, the attacker in at most {guess}. With {100 * ALARMS:g}% false alarms it detects at most {caught} of "
        "the true cases."
    )
    if reading.useless:
        limit = f"So large an ε means nothing: an attacker who can tell {question(row.unit)} in {guess} of cases would "
        limit += "still be within this limit. Treat it as no protection."
    vote = " What the vote shows is not counted." if "given the partition" in row.kind else ""
    return f"Against {_who(facts, rows)}: {row.figure}. {limit}{vote}"


def _provenance(facts: Facts) -> Iterator[list[str]]:
    config, ciphers = facts.config, facts.method.ciphers(facts.config)
    rounds = plural(facts.rounds, "round") + ("" if facts.place == "site" else f" of {config.federation.rounds}")
    yield ["Configuration", f"`{config.digest()[:16]}`, the first digits of its digest"]
    summary = facts.method.summary
    if facts.guarantees.training and facts.method.noised:
        summary += "; here without noise on values, since the noise is in the training"
    yield ["Method and cipher", f"`{config.protect.method}` ({summary}), {', '.join(ciphers) or 'none'}"]
    yield ["Rounds, sites, data and model", f"{rounds}; {plural(config.federation.clients, 'site')}; {config.subject}"]
    ran = ""
    if facts.path:
        folder = RunFolder(facts.path)
        changed = datetime.fromtimestamp(folder.ledger.stat().st_mtime, UTC).date()
        yield ["Folder", f"`{facts.path}`; its ledger was last changed on {changed}"]
        done = read_done(folder)
        ran = done.machine.get("paraaegis", "") if done else ""
    yield [
        "Version",
        f"paraaegis {__version__}" + (f"; the run was made with {ran}" if ran not in ("", __version__) else ""),
    ]


def _who(facts: Facts, rows: list[Guarantee]) -> str:
    return attackers(rows, facts.config.privacy.colluders)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _percent(share: float) -> str:
    """A limit in percent, rounded up."""
    return f"{min(100.0, math.ceil(1000 * share) / 10):g}%"
