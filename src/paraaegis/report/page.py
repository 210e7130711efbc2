"""The report page: one self-contained file that loads nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from paraaegis.config import as_toml
from paraaegis.files import write_whole
from paraaegis.planning.cost import Machine
from paraaegis.plural import plural
from paraaegis.privacy.guarantee import by_adversary
from paraaegis.report.collect import Run
from paraaegis.report.explorer import explorer, shown_methods
from paraaegis.report.figures import Figure, figures
from paraaegis.report.findings import headline, notes, over_seeds, results, sites
from paraaegis.version import __version__


def write_page(
    runs: Sequence[Run],
    problems: Sequence[str],
    path: Path,
    title: str = "",
    machine: Machine | None = None,
    refresh: int = 0,
) -> None:
    """Write the report on these runs."""
    write_whole(path, lambda file: file.write(page(runs, problems, title, machine, refresh).encode()))


def page(
    runs: Sequence[Run], problems: Sequence[str], title: str = "", machine: Machine | None = None, refresh: int = 0
) -> str:
    """The report as HTML; with an explorer if `machine` is given, and reloading every `refresh` seconds if not 0."""
    from plotly.offline import get_plotlyjs

    assets = files("paraaegis.report")
    drawn = figures(runs)
    parts = {
        "TITLE": html.escape(title or _title(runs)),
        "REFRESH": f'<meta http-equiv="refresh" content="{refresh}">' if refresh else "",
        "HEADLINE": html.escape(headline(runs)),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "PROBLEMS": _problems(problems),
        "RESULTS": _results(runs),
        "FIGURES": "\n".join(_figure(number, *item) for number, item in enumerate(drawn.items())),
        "PRIVACY": _privacy(runs),
        "CONFIGURATIONS": _configurations(runs),
        "VERSION": __version__,
        "EXPLORER": _explorer(machine, runs[0].metric) if machine else "",
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
    """A value as JSON that cannot close the script element it is in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _explorer(machine: Machine, metric: str) -> str:
    text = (files("paraaegis.report") / "explorer.html").read_text(encoding="utf-8")
    options = "".join(f"<option>{html.escape(name)}</option>" for name in shown_methods(machine))
    measured = f"in {machine.seconds:.0f} s on {plural(machine.cores, 'core')}"
    text = text.replace("{{OPTIONS}}", options).replace("{{MEASURED}}", measured)
    return text.replace("{{METRIC}}", html.escape(metric))


def _title(runs: Sequence[Run]) -> str:
    first = runs[0].config
    clients, rounds = plural(first.federation.clients, "client"), plural(first.federation.rounds, "round")
    return (
        f"{runs[0].subject}, {clients}, {rounds}"
        if len({run.subject for run in runs}) == 1
        else plural(len(runs), "run")
    )


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in problems)
    return f'<section class="problems"><h2>Skipped or incomplete</h2><ul>{items}</ul></section>'


def _results(runs: Sequence[Run]) -> str:
    names, rows = over_seeds(runs)
    seeds = _table(names, rows) if rows else ""
    return _table(*results(runs)) + f"<p>{notes(runs)} Click a heading to sort.</p>" + seeds + _sites(runs)


def _sites(runs: Sequence[Run]) -> str:
    names, rows = sites(runs)
    return f"<details><summary>By site</summary>{_table(names, rows)}</details>" if rows else ""


def _privacy(runs: Sequence[Run]) -> str:
    rows = [
        (run.label, adversary, units, each.kind, each.figure, each.why)
        for run in runs
        for adversary, guarantees in by_adversary(run.guarantees)
        for units, each in guarantees
    ]
    if not rows:
        return "<p>These runs have no ledger.</p>"
    return _table(("run", "against", "unit", "guarantee", "figure", "why"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col"><button type="button">{html.escape(name)}</button></th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _figure(number: int, name: str, figure: Figure) -> str:
    kind, title = ' class="tall"' if figure["data"][0]["type"] == "bar" else "", html.escape(name)
    link = f'<a class="download" data-figure="{number}" data-name="{title}" href="#">data</a>'
    plot = f'<div class="plot" id="figure-{number}" role="img" aria-label="{title}"></div>'
    return f"<figure{kind}><figcaption>{title} {link}</figcaption>{plot}</figure>"


def _configurations(runs: Sequence[Run]) -> str:
    """The settings that all runs share, then each run's own."""
    flat = [_flat(msgspec.to_builtins(run.config)) for run in runs]
    common = {key: value for key, value in flat[0].items() if all(other.get(key) == value for other in flat)}
    parts = [("All runs" if len(runs) > 1 else runs[0].label, common)]
    own = ({key: value for key, value in settings.items() if key not in common} for settings in flat)
    parts += [(run.label, settings) for run, settings in zip(runs, own, strict=True) if settings]
    return "".join(
        f"<details><summary>{html.escape(name)}</summary><pre>{html.escape(_settings(settings))}</pre></details>"
        for name, settings in parts
    )


def _flat(table: Mapping[str, Any], key: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{key}{name}.") if isinstance(value, Mapping) else {f"{key}{name}": value}
    return flat


def _settings(flat: Mapping[str, Any]) -> str:
    return "\n".join(f"{key} = {as_toml(value)}" for key, value in flat.items())
