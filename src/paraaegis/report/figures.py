"""The figures of a report as Plotly data and layout, with one place for their style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paraaegis.methods import METHODS
from paraaegis.report.collect import Run, by_split
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
    splits = by_split(runs)
    for split, some in splits.items():  # accuracies on different data are not comparable
        suffix = f", {split}" if len(splits) > 1 else ""
        both = [run.megabytes("up") + run.megabytes("down") for run in some]
        seconds = [run.result.seconds for run in some]
        drawn[f"Accuracy against time{suffix}"] = _scatter(some, "seconds", seconds, timed=True)
        drawn[f"Accuracy against bytes{suffix}"] = _scatter(some, "MB per client per round, up and down", both)
    drawn["Accuracy by round"] = _lines(
        runs, "accuracy, %", lambda run: [100 * record.metrics.get("accuracy", float("nan")) for record in run.records]
    )
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
                "y": [run.accuracy],
                "marker": {"size": 13, "color": colour, "symbol": symbol, "line": {"width": 1, "color": "#888"}},
                "hovertemplate": f"%{{fullData.name}}<br>%{{x:.2f}} {label}<br>%{{y:.2f}} %<extra></extra>",
            }
        )
    front = pareto([(cost, run.accuracy) for run, cost in zip(runs, costs, strict=True) if not (timed and run.shared)])
    edge = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": [cost for cost, _ in front],
        "y": [accuracy for _, accuracy in front],
        "line": {"dash": "dot", "color": "#888", "shape": "hv"},
        "hoverinfo": "skip",
    }
    return {"data": [edge, *points], "layout": {"xaxis": {"title": label, "rangemode": "tozero"}, "yaxis": _percent()}}


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The Pareto front: points that no other point beats in both cost (lower is better) and gain (higher is better)."""
    front: list[tuple[float, float]] = []
    for cost, gain in sorted(
        (point for point in points if point[1] == point[1]), key=lambda point: (point[0], -point[1])
    ):
        if not front or gain > front[-1][1]:
            front.append((cost, gain))
    return front


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


def _percent() -> dict[str, Any]:
    return {"title": "accuracy, %", "range": [0, 104]}
