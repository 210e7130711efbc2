"""The page: one self-contained file, without anything from a network."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from paraaegis.config import Privacy, Protect
from paraaegis.experiments.cost import ALIASES, Machine
from paraaegis.experiments.report.collect import Run
from paraaegis.experiments.report.explorer import explorer
from paraaegis.experiments.report.figures import Figure, figures
from paraaegis.experiments.report.paper import paper_accuracy, paper_overhead
from paraaegis.files import write_whole
from paraaegis.version import __version__


def write_page(
    runs: Sequence[Run],
    problems: Sequence[str],
    path: Path,
    title: str = "",
    machine: Machine | None = None,
    refresh: int = 0,
) -> None:
    """Write the report of these runs."""
    write_whole(path, lambda file: file.write(page(runs, problems, title, machine, refresh).encode()))


def page(
    runs: Sequence[Run], problems: Sequence[str], title: str = "", machine: Machine | None = None, refresh: int = 0
) -> str:
    """The report as HTML; with an explorer where a machine was measured, reloading itself after `refresh` seconds."""
    from plotly.offline import get_plotlyjs

    assets = files("paraaegis.experiments.report")
    drawn = figures(runs)
    parts = {
        "TITLE": html.escape(title or _title(runs)),
        "REFRESH": f'<meta http-equiv="refresh" content="{refresh}">' if refresh else "",
        "HEADLINE": html.escape(headline(runs)),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "PROBLEMS": _problems(problems),
        "RESULTS": _results(runs),
        "FIGURES": "\n".join(_figure(number, *one) for number, one in enumerate(drawn.items())),
        "PRIVACY": _privacy(runs),
        "CONFIGURATIONS": _configurations(runs),
        "VERSION": __version__,
        "EXPLORER": _explorer(machine) if machine else "",
        "DATA": _script(list(drawn.values())),
        "COSTS": _script(explorer(machine, runs) if machine else None),
        "SCRIPT": (assets / "page.js").read_text(encoding="utf-8"),
        "EXPLORE": (assets / "explorer.js").read_text(encoding="utf-8") if machine else "",
        "PLOTLY": get_plotlyjs(),
    }
    text = (assets / "page.html").read_text(encoding="utf-8")
    for name, content in parts.items():
        text = text.replace(f"{{{{{name}}}}}", content)
    return text


def _script(value: object) -> str:
    """A value as JSON that cannot end its script."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _explorer(machine: Machine) -> str:
    text = (files("paraaegis.experiments.report") / "explorer.html").read_text(encoding="utf-8")
    names = sorted([*machine.methods, *ALIASES])
    options = "".join(
        f"<option{' selected' if name == 'paraaegis-feedback' else ''}>{html.escape(name)}</option>" for name in names
    )
    measured = f"in {machine.seconds:.0f} s on {machine.cores} cores"
    return text.replace("{{OPTIONS}}", options).replace("{{MEASURED}}", measured)


def _title(runs: Sequence[Run]) -> str:
    first = runs[0].config
    return (
        f"{first.data.name}, {first.model.name}, {first.federation.clients} clients, {first.federation.rounds} rounds"
        if len({(run.config.data.name, run.config.model.name) for run in runs}) == 1
        else f"{len(runs)} runs"
    )


def headline(runs: Sequence[Run]) -> str:
    """What these runs say, in one sentence."""
    known = [run for run in runs if run.accuracy == run.accuracy]
    if not known:
        return f"{len(runs)} runs, none of which reports an accuracy."
    plains = [run for run in known if run.result.method == "fedavg"]
    plain = next((run for run in plains if run.config.data.split == "iid"), plains[0] if plains else None)
    others = [run for run in known if run.result.method != "fedavg" and (plain is None or alike(run, plain))]
    if len(known) == 1 or not others:
        return f"{known[0].label} reached {known[0].accuracy:.1f} % in {known[0].result.seconds:.0f} s."
    best = max(others, key=lambda run: (round(run.accuracy, 1), -run.result.bytes_up))
    if plain is None:
        return f"{best.label} reached most: {best.accuracy:.1f} % in {best.result.seconds:.0f} s."
    close = [run for run in others if run.accuracy > plain.accuracy - 1]
    best = min(close, key=lambda run: run.result.bytes_up) if close else best
    how = "is the lightest within a point of plain averaging" if close else "comes closest to plain averaging"
    text = f"Of the protected methods {best.label} {how}, {best.accuracy:.1f} %"
    points, upload = plain.accuracy - best.accuracy, best.result.bytes_up / plain.result.bytes_up
    near = "as much as" if abs(points) < 0.05 else f"{abs(points):.1f} points {'below' if points > 0 else 'above'}"
    time = overhead([plain], best)
    end = "" if time is None else f" and {time:.2f} times its time"
    return f"{text}: {near} it, with {100 * upload:.0f} % of its upload{end}."


def alike(run: Run, other: Run) -> bool:
    """Whether two runs differ in nothing but how updates are protected."""
    mine, yours = (msgspec.structs.replace(one.config, protect=Protect(), privacy=Privacy()) for one in (run, other))
    return mine.digest() == yours.digest()


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in problems)
    return f'<section class="problems"><h2>Left out, or not whole</h2><ul>{items}</ul></section>'


def results(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The table of results: its headings and rows, with the paper's figures where these runs are its cells."""
    columns: dict[str, Callable[[Run], str]] = {
        "run": lambda run: run.label + (" (stopped)" if run.result.stopped else " (running)" if run.running else ""),
        "accuracy, %": lambda run: _or_empty(None if run.accuracy != run.accuracy else run.accuracy),
        "seconds": lambda run: f"{run.result.seconds:.1f}" + (" †" if run.shared else ""),
        "MB up": lambda run: f"{run.megabytes('up'):.2f}",
        "MB down": lambda run: f"{run.megabytes('down'):.2f}",
        "rounds": lambda run: str(run.result.rounds),
    }
    if any(paper_accuracy(run) for run in runs):
        columns["accuracy, paper"] = lambda run: _or_empty(paper_accuracy(run))
    if any(paper_overhead(run) for run in runs):
        columns["time over FedAvg"] = lambda run: _or_empty(overhead(runs, run))
        columns["the same, paper"] = lambda run: _or_empty(paper_overhead(run))
    return list(columns), [[column(run) for column in columns.values()] for run in runs]


def overhead(runs: Sequence[Run], run: Run) -> float | None:
    """Its time over that of plain averaging on the same data and machine; None where the machine had other work too."""
    plains = [one for one in runs if one.result.method == "fedavg" and alike(one, run)]
    plain = next((one for one in plains if one.result.machine == run.result.machine), None)
    return None if plain is None or run.shared else run.result.seconds / plain.result.seconds


def _or_empty(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _results(runs: Sequence[Run]) -> str:
    note = " † beside other work on the same machine: not comparable." if any(run.shared for run in runs) else ""
    return _table(*results(runs)) + f"<p>MB: a client and round.{note} Click on a heading to sort.</p>"


def _privacy(runs: Sequence[Run]) -> str:
    rows = [(run.label, one.adversary, one.kind, one.figure, one.why) for run in runs for one in run.guarantees]
    if not rows:
        return "<p>These runs have no ledger.</p>"
    return _table(("run", "against", "guarantee", "figure", "why"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col"><button type="button">{html.escape(name)}</button></th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _figure(number: int, name: str, figure: Figure) -> str:
    kind, told = ' class="tall"' if figure["data"][0]["type"] == "bar" else "", html.escape(name)
    link = f'<a class="download" data-figure="{number}" data-name="{told}" href="#">data</a>'
    plot = f'<div class="plot" id="figure-{number}" role="img" aria-label="{told}"></div>'
    return f"<figure{kind}><figcaption>{told} {link}</figcaption>{plot}</figure>"


def _configurations(runs: Sequence[Run]) -> str:
    """What all runs have in common once, then what each has of its own."""
    flat = [_flat(msgspec.to_builtins(run.config)) for run in runs]
    common = {key: value for key, value in flat[0].items() if all(other.get(key) == value for other in flat)}
    parts = [("All runs" if len(runs) > 1 else runs[0].label, common)]
    own = ({key: value for key, value in one.items() if key not in common} for one in flat)
    parts += [(run.label, found) for run, found in zip(runs, own, strict=True) if found]
    return "".join(
        f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(_settings(found))}</pre></details>"
        for name, found in parts
    )


def _flat(table: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{key}{name}.") if isinstance(value, Mapping) else {f"{key}{name}": value}
    return found


def _settings(found: Mapping[str, Any]) -> str:
    return "\n".join(tomli_w.dumps({"value": value}).replace("value", key, 1).strip() for key, value in found.items())
