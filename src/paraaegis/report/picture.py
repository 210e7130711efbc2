"""The trade-off as a PNG and the results as Markdown, for a README."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paraaegis.comparisons.table import as_markdown
from paraaegis.metrics import heading
from paraaegis.report.collect import Run, by_data
from paraaegis.report.figures import limits, pareto
from paraaegis.report.findings import headline, notes, over_seeds, results, sites
from paraaegis.report.styles import style_of

SPREAD = 30  # ratio of largest to smallest cost above which an axis is logarithmic


def write_picture(runs: Sequence[Run], path: Path, title: str = "") -> None:
    """Plot the metric against time and against bytes, one row per subject and split, with the Pareto front."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    groups = by_data(runs)
    figure, panels = plt.subplots(
        len(groups), 2, figsize=(11, 0.6 + 3.2 * len(groups)), sharey="row", squeeze=False, layout="constrained"
    )
    for (left, right), (name, some) in zip(panels, groups.items(), strict=True):
        hollow = " (hollow: machine had other work, not comparable)" if any(run.shared for run in some) else ""
        draw(left, some, [run.result.seconds for run in some], f"seconds{hollow}", timed=True)
        both = [run.megabytes("up") + run.megabytes("down") for run in some]
        draw(right, some, both, "MB per client per round, up and down")
        label = heading(some[0].metric)
        left.set_ylabel(label if len(groups) == 1 else f"{name}\n{label}")
    finish(figure, panels, path, title)
    plt.close(figure)


def finish(figure: Any, panels: Any, path: Path, title: str) -> None:
    """Add the legend, title and point labels, then save the figure."""
    handles: dict[str, Any] = {}
    for panel in panels[:, 1]:  # where all markers are filled
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.draw_without_rendering()  # fixes the positions of the points
    for panel in panels.flat:
        _spread(panel)
    figure.savefig(path, dpi=130)


def draw(panel: Any, runs: Sequence[Run], costs: Sequence[float], label: str, timed: bool = False) -> None:
    """Draw runs as points of cost and metric, with their Pareto front."""
    metric, values = runs[0].metric, [run.value for run in runs]
    points = list(zip(costs, values, strict=True))
    front = pareto([point for point, run in zip(points, runs, strict=True) if not (timed and run.shared)], metric)
    line = {"arrowstyle": "-", "color": "#888888", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    panel.step([x for x, _ in front], [y for _, y in front], where="post", color="#888888", linestyle=":", zorder=2)
    for run, (cost, value) in zip(runs, points, strict=True):
        method = run.result.method
        colour, marker = style_of(method)
        inner = "none" if timed and run.shared else colour
        panel.scatter(cost, value, s=60, facecolors=inner, edgecolors=colour, marker=marker, label=method, zorder=3)
        note = panel.annotate(run.mark, (cost, value), (0, 0), textcoords="offset points", fontsize=7, ha="center",
                              va="center", arrowprops=line)  # fmt: skip
        note.set_in_layout(False)
    if min(costs) > 0 and max(costs) > SPREAD * min(costs):
        panel.set(xscale="log", xlim=(min(costs) / 2, 2 * max(costs)))
        panel.xaxis.set_major_formatter("{x:g}")
    else:
        panel.set(xlim=(0, 1.15 * max(costs)))
    panel.set(xlabel=label, ylim=limits(metric, values))
    panel.grid(alpha=0.3)


def _spread(panel: Any) -> None:
    """Move each label to the nearest position to its point where it covers no point and no other label."""
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    notes = [child for child in panel.get_children() if isinstance(child, Annotation)]
    dot = panel.figure.dpi / 72  # pixels
    points = [panel.transData.transform(note.xy) for note in notes]
    taken = [Bbox.from_bounds(x - 5 * dot, y - 5 * dot, 10 * dot, 10 * dot) for x, y in points]
    for note, (x, y) in ((note, point) for note, point in zip(notes, points, strict=True) if note.get_text()):
        size = note.get_window_extent()
        for right, up in _around(size.width / dot, size.height / dot):
            box = Bbox.from_bounds(x + right * dot - size.width / 2, y + up * dot - size.height / 2, *size.size)
            inside = all(panel.bbox.contains(*corner) for corner in (box.min, box.max))
            if inside and not box.count_overlaps(taken):
                note.xyann = (right, up)
                taken.append(box)
                break


def _around(width: float, height: float) -> Iterator[tuple[float, float]]:
    """Offsets for a label's centre from its point, nearest first: below, above, right, left, then farther away."""
    for distance in (6, 12, 20, 30, 42, 56, 72, 90):
        for turn in (-90, 90, 0, 180, -45, -135, 45, 135, -20, 20, -160, 160):
            right, up = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            yield right * (distance + width / 2), up * (distance + height / 2)


def markdown(runs: Sequence[Run]) -> str:
    """The headline, the table of results and, if there are several, the tables over seeds and by site."""
    parts = [headline(runs), as_markdown(*results(runs)), notes(runs)]
    parts += [as_markdown(names, rows) for names, rows in (over_seeds(runs), sites(runs)) if rows]
    return "\n\n".join(parts) + "\n"
