"""Accuracy against time, the picture of a comparison."""

from __future__ import annotations

from pathlib import Path

from paraaegis.experiments.compare import Table, splits_of

# Okabe and Ito's colours, which colour-blind readers tell apart, with a marker each.
STYLES = {
    "fedavg": ("#000000", "*"),
    "dp-fedavg": ("#999999", "v"),
    "varying-dp": ("#999999", "<"),
    "lwe-secagg": ("#999999", "s"),
    "serial": ("#CC79A7", "X"),
    "ckks-fedavg": ("#0072B2", "D"),
    "paraaegis-static": ("#E69F00", "o"),
    "paraaegis-dynamic": ("#56B4E9", "P"),
    "paraaegis-feedback": ("#009E73", "^"),
}


def plot(table: Table, path: Path) -> None:
    """Write a PNG with one panel a split."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    splits = splits_of(table)
    figure, panels = plt.subplots(
        1, len(splits), figsize=(2.5 + 4.2 * len(splits), 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, split in zip(panels[0], splits, strict=True):
        for row in (row for row in table.rows if row.split == split):
            colour, marker = STYLES.get(row.method, ("#D55E00", "o"))
            panel.scatter(row.seconds, row.accuracy, s=70, color=colour, marker=marker, label=row.label, zorder=3)
        panel.set(title=split, xlabel="seconds", xlim=(0, None), ylim=(0, 104))
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("accuracy, %")
    handles = {
        label: handle for panel in panels[0] for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    figure.suptitle(table.title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
