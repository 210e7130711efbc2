"""The figures of a report as Plotly data and layout, with one place for their style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paraaegis.methods import METHODS
from paraaegis.metrics import better, heading, is_percent, lower_is_better, named
from paraaegis.report.collect import Run, by_data
from paraaegis.report.styles import style_of

Figure = dict[str, Any]
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PHASES = {"train": "#0072B2", "evaluate": "#999999", "vote": "#F0E442", "protect": "#E69F00", "combine": "#CC79A7",
          "reveal": "#009E73"}  # fmt: skip
_SYMBOLS = {"*": "star", "v": "triangle-down", "<": "triangle-left", "s": "square", "X": "x", "D": "diamond",
            "o": "circle", "P": "cross", "^": "triangle-up"}  # fmt: skip


def figures(runs: Sequence[Run]) -> dict[str, Figure]:
    """All figures that these runs have data for, by title."""
    drawn: dict[str, Figure] = {}
    groups = by_data(runs)
    metric = runs[0].metric
    title = metric[:1].upper() + metric[1:]
    for name, some in groups.items():
        suffix = f", {name}" if len(groups) > 1 else ""
        both = [run.megabytes("up") + run.megabytes("down") for run in some]
        seconds = [run.result.seconds for run in some]
        drawn[f"{title} against time{suffix}"] = _scatter(some, "seconds", seconds, timed=True)
        drawn[f"{title} against bytes{suffix}"] = _scatter(some, "MB per client per round, up and down", both)
    drawn[f"{title} by round"] = _lines(runs, heading(metric), lambda run: run.values)
    drawn["Where the time goes"] = _phases(runs)
    drawn["Bytes by direction"] = _bytes(runs)
    voting = [run for run in runs if any(record.agreement is not None for record in run.records)]
    if voting:
        drawn["Ratio by round"] = _lines(voting, "r_t, %", lambda run: [100 * record.ratio for record in run.records])
        drawn["Agreement of the votes"] = _lines(
            voting, "votes on elected values, %", lambda run: [100 * (record.agreement or 0) for record in run.records]
        )
    return drawn


def _style(run: Run) -> tuple[str, str]:
    colour, marker = style_of(run.result.method)
    return colour, _SYMBOLS.get(marker, "circle")


def _label_place(name: str) -> str:
    """Where a point's label goes: the same ratio lies close together, constant and decaying, and so do splits."""
    method = METHODS.get(name)
    if method is None or not method.votes or method.ratio == "constant":
        return "bottom center"
    return "middle right" if method.withholds else "top center"


def _rank(runs: Sequence[Run], run: Run) -> int:
    """The index of this run among those of its method, to distinguish lines of the same colour."""
    return [other.label for other in runs if other.result.method == run.result.method].index(run.label)


def _scatter(runs: Sequence[Run], label: str, costs: Sequence[float], timed: bool = False) -> Figure:
    points = []
    for run, cost in zip(runs, costs, strict=True):
        colour, symbol = _style(run)
        hover = f"%{{fullData.name}}<br>%{{x:.2f}} {label}<br>{named(run.metric, run.value, 2)}<extra></extra>"
        points.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "text": [run.mark],
                "textposition": _label_place(run.result.method),
                "textfont": {"size": 9},
                "name": run.label,
                "legendgroup": run.result.method,
                "x": [cost],
                "y": [run.value],
                "marker": {"size": 13, "color": colour, "symbol": symbol, "line": {"width": 1, "color": "#888"}},
                "hovertemplate": hover,
            }
        )
    metric = runs[0].metric
    known = [(cost, run.value) for run, cost in zip(runs, costs, strict=True) if not (timed and run.shared)]
    front = pareto(known, metric)
    edge = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": [cost for cost, _ in front],
        "y": [value for _, value in front],
        "line": {"dash": "dot", "color": "#888", "shape": "hv"},
        "hoverinfo": "skip",
    }
    axis = {"title": heading(metric), "range": limits(metric, [run.value for run in runs])}
    return {"data": [edge, *points], "layout": {"xaxis": {"title": label, "rangemode": "tozero"}, "yaxis": axis}}


def pareto(points: Iterable[tuple[float, float]], metric: str) -> list[tuple[float, float]]:
    """The Pareto front: points that no other point beats in both cost, where lower is better, and the metric."""
    sign = 1 if lower_is_better(metric) else -1
    front: list[tuple[float, float]] = []
    for cost, value in sorted([(x, y) for x, y in points if y == y], key=lambda point: (point[0], sign * point[1])):
        if not front or better(metric, value, front[-1][1]):
            front.append((cost, value))
    return front


def limits(metric: str, values: Iterable[float]) -> tuple[float, float]:
    """The range of the metric's axis, with 4 % of room: 0 to 100 % for accuracy, 0 to 1 for scores that fit there."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min([0.0, *known]), max([0.0, *known])
    if is_percent(metric):
        high = 100.0
    elif not lower_is_better(metric) and low == 0 and high <= 1:
        high = 1.0
    room = 0.04 * ((high - low) or 1.0)
    return low - room * (low < 0), high + room


def _lines(runs: Sequence[Run], label: str, values: Callable[[Run], list[float]]) -> Figure:
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": run.label,
            "legendgroup": run.result.method,
            "x": [record.round for record in run.records],
            "y": values(run),
            "line": {"color": _style(run)[0], "width": 1.5, "dash": _DASHES[_rank(runs, run) % len(_DASHES)]},
            "marker": {"size": 6, "symbol": _style(run)[1], "color": _style(run)[0]},
        }
        for run in runs
    ]
    return {"data": data, "layout": {"xaxis": {"title": "round"}, "yaxis": {"title": label, "rangemode": "tozero"}}}


def _phases(runs: Sequence[Run]) -> Figure:
    def mean(run: Run, phase: str) -> float:
        return sum(record.seconds.get(phase, 0.0) for record in run.records) / len(run.records)

    data = [
        _bars("combine (server)" if phase == "combine" else phase, colour, runs, [mean(run, phase) for run in runs])
        for phase, colour in PHASES.items()
    ]
    title = "seconds per round: of a client (mean; clients run in parallel) and of the server for all clients"
    return {"data": data, "layout": _tall(runs, "stack", title)}


def _bytes(runs: Sequence[Run]) -> Figure:
    data = [
        _bars("up", "#0072B2", runs, [run.megabytes("up") for run in runs]),
        _bars("down", "#E69F00", runs, [run.megabytes("down") for run in runs]),
    ]
    return {"data": data, "layout": _tall(runs, "group", "MB per client per round")}


def _bars(name: str, colour: str, runs: Sequence[Run], values: Sequence[float]) -> dict[str, Any]:
    labels = [run.label for run in runs]
    return {"type": "bar", "orientation": "h", "name": name, "y": labels, "x": values, "marker": {"color": colour}}


def _tall(runs: Sequence[Run], mode: str, title: str) -> dict[str, Any]:
    """The layout of a bar chart with one bar per run."""
    axes = {"xaxis": {"title": title}, "yaxis": {"automargin": True, "autorange": "reversed"}}
    return {"barmode": mode, "height": 140 + 34 * len(runs), **axes}
