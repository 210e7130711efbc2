"""The table of a comparison: its rows and their formatting."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

import msgspec

from paraaegis.metrics import ACCURACY, is_percent, lower_is_better


class TableRow(msgspec.Struct, kw_only=True):
    """One cell's result. `value` is the table's metric, accuracies in percent; bytes are per client per round."""

    method: str
    label: str
    split: str
    seed: int
    value: float | None  # None: no evaluator at the end
    seconds: float
    bytes_up: float
    bytes_down: float
    folder: str
    shared: bool = False  # whether its machine had other work, so that its seconds are not comparable

    @property
    def efficiency(self) -> float | None:
        """100 · accuracy / seconds, the paper's ratio, in a table of accuracies."""
        return None if self.value is None else 100 * self.value / self.seconds


class Table(msgspec.Struct, kw_only=True):
    """A comparison."""

    title: str
    metric: str = ACCURACY
    rows: list[TableRow]
    diverged: dict[str, str] = {}  # cells that stopped with an update that cannot be sent, and their errors


def as_json(table: Table) -> bytes:
    """The table as JSON. If it shows accuracies, its rows have the keys `accuracy` and `efficiency` for `value`."""
    content = msgspec.to_builtins(table)
    if table.metric == ACCURACY:
        del content["metric"]
        for row, fields in zip(table.rows, content["rows"], strict=True):
            fields |= {"accuracy": fields.pop("value"), "efficiency": row.efficiency}
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def by_label(table: Table) -> list[tuple[str, list[TableRow]]]:
    """Rows grouped by label, in order: all splits and seeds of a label together."""
    grouped: dict[str, list[TableRow]] = {}
    for row in table.rows:
        grouped.setdefault(row.label, []).append(row)
    return list(grouped.items())


def splits_of(table: Table) -> list[str]:
    """The splits in order of first appearance."""
    return list(dict.fromkeys(row.split for row in table.rows))


def cells_text(rows: Sequence[TableRow], splits: Sequence[str], metric: str) -> list[str]:
    """The metric, seconds and, for accuracy, efficiency for each split, then bytes: as in the paper's Table 1 and ours.

    Several seeds are shown as mean and standard deviation.
    """
    groups = [[row for row in rows if row.split == split] for split in splits]
    first = next(group for group in groups if group)
    value, deviation, unit = (".2f", ".2f", " %") if is_percent(metric) else ("#.4g", ".2g", "")
    efficiencies = [_spread([row.efficiency for row in group], ".1f", ".1f", _mark(group)) for group in groups]
    return [
        *(_spread([row.value for row in group], value, deviation, unit) for group in groups),
        *(_spread([row.seconds for row in group], ".1f", ".1f", _mark(group)) for group in groups),
        *(efficiencies if metric == ACCURACY else []),
        f"{fmean(row.bytes_up for row in first) / 1e6:.2f}",
        f"{fmean(row.bytes_down for row in first) / 1e6:.2f}",
    ]


def _mark(rows: Sequence[TableRow]) -> str:
    return "†" if any(row.shared for row in rows) else ""


def _spread(measured: Sequence[float | None], mean: str, deviation: str, unit: str) -> str:
    values = [value for value in measured if value is not None]
    if not values:
        return ""
    around = f" ± {stdev(values):{deviation}}" if len(values) > 1 else ""
    return f"{fmean(values):{mean}}{around}{unit}"


def headers(splits: Sequence[str], metric: str) -> list[str]:
    """The headers of `cells_text`."""
    columns = (metric, "seconds", *(["efficiency"] if metric == ACCURACY else []))
    return [*(f"{what} {split}" for what in columns for split in splits), "MB up", "MB down"]


def explained(table: Table) -> str:
    """A legend for the columns."""
    parts = [
        "Efficiency = 100 · accuracy / seconds." if table.metric == ACCURACY else "",
        f"A lower {table.metric} is better." if lower_is_better(table.metric) else "",
        "±: standard deviation over seeds." if len({row.seed for row in table.rows}) > 1 else "",
        "†: the machine had other work; not comparable." if any(row.shared for row in table.rows) else "",
        "MB: per client per round, first split.",
        *(f"No result: {name} ({why})." for name, why in table.diverged.items()),
    ]
    return " ".join(part for part in parts if part)


def markdown(table: Table) -> str:
    """The table as Markdown, with title and legend."""
    splits = splits_of(table)
    rows = [[label, *cells_text(rows, splits, table.metric)] for label, rows in by_label(table)]
    parts = [f"**{table.title}**", as_markdown(["method", *headers(splits, table.metric)], rows), explained(table)]
    return "\n\n".join(parts) + "\n"


def as_markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, with the contents of cells escaped."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(html.escape(cell, quote=False).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(names), "|---" + "|---:" * (len(names) - 1) + "|", *map(line, rows)])
