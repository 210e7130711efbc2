"""The trade-off as a PNG and the results as Markdown, for a README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paraaegis.experiments.compare import as_markdown
from paraaegis.experiments.report.collect import Run
from paraaegis.experiments.report.figures import pareto
from paraaegis.experiments.report.findings import headline, notes, over_seeds, results
from paraaegis.experiments.report.looks import OTHER, STYLES


def write_picture(runs: Sequence[Run], path: Path, title: str = "") -> None:
    """Accuracy against time and against bytes, a row a split, with the front that no run beats in both."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    splits = list(dict.fromkeys(run.split for run in runs))
    figure, panels = plt.subplots(
        len(splits), 2, figsize=(11, 0.6 + 3.2 * len(splits)), sharey=True, squeeze=False, layout="constrained"
    )
    for (left, right), split in zip(panels, splits, strict=True):
        chosen = [run for run in runs if run.split == split]
        hollow = " (hollow: beside other work, not comparable)" if any(run.shared for run in chosen) else ""
        _panel(left, chosen, [run.result.seconds for run in chosen], f"seconds{hollow}", timed=True)
        both = [run.megabytes("up") + run.megabytes("down") for run in chosen]
        _panel(right, chosen, both, "MB a client and round, up and down")
        left.set_ylabel("accuracy, %" if len(splits) == 1 else f"{split}\naccuracy, %")
    handles: dict[str, Any] = {}
    for panel in panels[:, 1]:  # where all are filled
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(panel: Any, runs: Sequence[Run], costs: Sequence[float], label: str, timed: bool = False) -> None:
    points = list(zip(costs, [run.accuracy for run in runs], strict=True))
    front = pareto([point for point, run in zip(points, runs, strict=True) if not (timed and run.shared)])
    panel.step([x for x, _ in front], [y for _, y in front], where="post", color="#888888", linestyle=":", zorder=2)
    for run, (cost, accuracy) in zip(runs, points, strict=True):
        method = run.result.method
        colour, marker = STYLES.get(method, OTHER)
        inner = "none" if timed and run.shared else colour
        panel.scatter(cost, accuracy, s=60, facecolors=inner, edgecolors=colour, marker=marker, label=method, zorder=3)
        panel.annotate(
            run.mark, (cost, accuracy), (0, -7), textcoords="offset points", fontsize=7, ha="center", va="top"
        )
    panel.set(xlabel=label, xlim=(0, 1.15 * max(costs)), ylim=(0, 104))
    panel.grid(alpha=0.3)


def markdown(runs: Sequence[Run]) -> str:
    """The headline, the table of results and, where there are several, that of seeds."""
    parts = [headline(runs), as_markdown(*results(runs)), notes(runs)]
    names, rows = over_seeds(runs)
    if rows:
        parts.append(as_markdown(names, rows))
    return "\n\n".join(parts) + "\n"
