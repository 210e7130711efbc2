"""The table of a comparison: its rows and their formatting."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

import msgspec


class TableRow(msgspec.Struct, kw_only=True):
    """One cell's result. Accuracy in percent (None: no evaluator at the end); bytes per client per round."""

    method: str
    label: str
    split: str
    seed: int
    accuracy: float | None
    seconds: float
    efficiency: float | None  # 100 · accuracy / seconds, the paper's ratio
    bytes_up: float
    bytes_down: float
    folder: str
    shared: bool = False  # whether its machine had other work, so that its seconds are not comparable


class Table(msgspec.Struct, kw_only=True):
    """A comparison."""

    title: str
    rows: list[TableRow]
    diverged: dict[str, str] = {}  # cells that stopped with an update that cannot be sent, and their errors


def by_label(table: Table) -> list[tuple[str, list[TableRow]]]:
    """Rows grouped by label, in order: all splits and seeds of a label together."""
    grouped: dict[str, list[TableRow]] = {}
    for row in table.rows:
        grouped.setdefault(row.label, []).append(row)
    return list(grouped.items())


def splits_of(table: Table) -> list[str]:
    """The splits in order of first appearance."""
    return list(dict.fromkeys(row.split for row in table.rows))


def cells_text(rows: Sequence[TableRow], splits: Sequence[str]) -> list[str]:
    """Accuracy, seconds and efficiency for each split, then bytes: the columns of the paper's Table 1 and ours.

    Several seeds are shown as mean and standard deviation.
    """
    groups = [[row for row in rows if row.split == split] for split in splits]
    first = next(group for group in groups if group)
    return [
        *(_spread([row.accuracy for row in group], 2, " %") for group in groups),
        *(_spread([row.seconds for row in group], 1, _mark(group)) for group in groups),
        *(_spread([row.efficiency for row in group], 1, _mark(group)) for group in groups),
        f"{fmean(row.bytes_up for row in first) / 1e6:.2f}",
        f"{fmean(row.bytes_down for row in first) / 1e6:.2f}",
    ]


def _mark(rows: Sequence[TableRow]) -> str:
    return "†" if any(row.shared for row in rows) else ""


def _spread(measured: Sequence[float | None], digits: int, unit: str = "") -> str:
    values = [value for value in measured if value is not None]
    if not values:
        return ""
    around = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{around}{unit}"


def headers(splits: Sequence[str]) -> list[str]:
    """The headers of `cells_text`."""
    groups = [f"{what} {split}" for what in ("accuracy", "seconds", "efficiency") for split in splits]
    return [*groups, "MB up", "MB down"]


def explained(table: Table) -> str:
    """A legend for the columns."""
    seeds = " ±: standard deviation over seeds." if len({row.seed for row in table.rows}) > 1 else ""
    shared = " †: the machine had other work; not comparable." if any(row.shared for row in table.rows) else ""
    lost = "".join(f" No result: {name} ({why})." for name, why in table.diverged.items())
    return f"Efficiency = 100 · accuracy / seconds.{seeds}{shared} MB: per client per round, first split.{lost}"


def markdown(table: Table) -> str:
    """The table as Markdown, with title and legend."""
    splits = splits_of(table)
    rows = [[label, *cells_text(rows, splits)] for label, rows in by_label(table)]
    parts = [f"**{table.title}**", as_markdown(["method", *headers(splits)], rows), explained(table)]
    return "\n\n".join(parts) + "\n"


def as_markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, with the contents of cells escaped."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(html.escape(cell, quote=False).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(names), "|---" + "|---:" * (len(names) - 1) + "|", *map(line, rows)])
