"""The figure of docs/reproduction.md: accuracy against time and against bytes, from the cells of results/imagenette.

    python benchmarks/imagenette_figure.py docs/images/imagenette-iid.png

Accuracies and bytes are those of fifty rounds. Times are of the preset `overhead`, whose runs had the machine to
themselves; rows that it lacks have no point on the left. All points are of one clipping threshold.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from paraaegis.experiments.report.collect import Run, collect
from paraaegis.experiments.report.picture import draw, finish

CELLS = Path(__file__).parent.parent / "results" / "imagenette"


def round_seconds(run: Run) -> float:
    """Without the first round, which starts worker processes."""
    return fmean(line.seconds["wall"] for line in run.lines[1:])


def main(path: Path) -> None:
    """Write the figure."""
    cells = collect([CELLS / "paper-table1", CELLS / "beyond-table1"])[0]
    runs = [run for run in cells if run.split == "iid" and run.config.privacy.clip == 1]
    seconds = {run.row: round_seconds(run) for run in collect([CELLS / "overhead"])[0]}
    timed = [run for run in runs if run.row in seconds]
    figure, panels = plt.subplots(1, 2, figsize=(12, 5.4), sharey=True, squeeze=False, layout="constrained")
    left, right = panels[0]
    draw(left, timed, [seconds[run.row] / seconds["fedavg"] for run in timed], "time of a round over FedAvg's")
    both = [run.megabytes("up") + run.megabytes("down") for run in runs]
    draw(right, runs, both, "MB a client and round, up and down")
    left.set_ylabel("accuracy, %")
    finish(figure, panels, path, "Imagenette, ResNet-18, 10 clients, 50 rounds, IID")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
