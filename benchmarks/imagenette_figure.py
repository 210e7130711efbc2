"""The figure in docs/reproduction.md: accuracy against time and against bytes, from the cells in results/imagenette.

    python benchmarks/imagenette_figure.py docs/images/imagenette-iid.png

Accuracies and bytes are from fifty rounds. Times are relative to FedAvg, from the preset `overhead`, whose runs had the
machine to themselves; rows that it lacks have no point on the left. All points have the same clipping threshold.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from paraaegis.report.collect import collect
from paraaegis.report.picture import draw, finish

CELLS = Path(__file__).parent.parent / "results" / "imagenette"


def over_fedavg(folder: Path) -> dict[str, float]:
    """Time per round relative to FedAvg, by row; without the first round, which starts worker processes."""
    seconds = {run.row: median(line.seconds["wall"] for line in run.records[1:]) for run in collect([folder])[0]}
    return {row: time / seconds["fedavg"] for row, time in seconds.items()}


def main(path: Path) -> None:
    """Write the figure."""
    larger = CELLS / "conclusions" / "paraaegis-feedback-5-server1_5--iid--seed0"
    cells = collect([CELLS / "paper-table1", CELLS / "beyond-table1", larger])[0]
    runs = [run for run in cells if run.split == "iid" and run.config.privacy.clip == 1]
    times = over_fedavg(CELLS / "overhead")
    timed = [run for run in runs if run.row in times]
    figure, panels = plt.subplots(1, 2, figsize=(12, 5.4), sharey=True, squeeze=False, layout="constrained")
    left, right = panels[0]
    draw(left, timed, [times[run.row] for run in timed], "time per round over FedAvg's")
    both = [run.megabytes("up") + run.megabytes("down") for run in runs]
    draw(right, runs, both, "MB per client per round, up and down")
    left.set_ylabel("accuracy, %")
    finish(figure, panels, path, "Imagenette, ResNet-18, 10 clients, 50 rounds, IID")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
