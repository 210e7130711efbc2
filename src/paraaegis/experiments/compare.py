"""A grid of runs, one after another so that seconds mean something, and the table made of them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from paraaegis.errors import RunError, UpdateError
from paraaegis.experiments.folder import RunFolder
from paraaegis.experiments.preset import Cell
from paraaegis.experiments.run import OnLine, Result, check_config, read_done, run
from paraaegis.files import write_whole

Shown = Callable[[str, int], AbstractContextManager[OnLine]]


class TableRow(msgspec.Struct, kw_only=True):
    """One cell's result. Accuracy in percent; bytes of a client and round."""

    method: str
    label: str
    split: str
    seed: int
    accuracy: float
    seconds: float
    efficiency: float  # 100 · accuracy / seconds, the paper's ratio
    bytes_up: float
    bytes_down: float
    folder: str
    shared: bool = False  # whether its machine had other work, so that its seconds cannot be compared


class Table(msgspec.Struct, kw_only=True):
    """A comparison."""

    title: str
    rows: list[TableRow]
    diverged: dict[str, str] = {}  # cells that stopped with an update that cannot be sent, and what they said


def compare(
    title: str,
    cells: Sequence[Cell],
    out: Path,
    fresh: bool,
    shown: Shown,
    wanted: Sequence[Cell] | None = None,
) -> Table:
    """Run every wanted cell that is not done yet (default: all); write and return the table of all that are done."""
    wanted = cells if wanted is None else wanted
    for cell in wanted:
        check_config(cell.config)
    diverged = _check_folder(title, cells, out)
    for index, cell in enumerate(wanted):
        if not fresh and _result(cell, out) is not None:
            continue  # and neither its data nor its machine is needed again
        name = f"{index + 1}/{len(wanted)} {cell.label} {cell.split}" + (f" seed {cell.seed}" if cell.seed else "")
        try:
            with shown(name, cell.config.federation.rounds) as show:
                run(cell.config, out / cell.folder, fresh, show)
        except UpdateError as error:  # a result of its own kind: the others are not held up
            diverged[cell.folder] = str(error)
    done = {cell.folder: row_of(cell, result) for cell in cells if (result := _result(cell, out)) is not None}
    rows, diverged = list(done.values()), {name: why for name, why in diverged.items() if name not in done}
    if not rows:
        raise RunError(f"no cell came to a result: {'; '.join(f'{name}: {why}' for name, why in diverged.items())}")
    table = Table(title=title, rows=rows, diverged=diverged)
    write_whole(out / "table.json", lambda file: file.write(msgspec.json.format(msgspec.json.encode(table), indent=2)))
    write_whole(out / "table.md", lambda file: file.write(markdown(table).encode()))
    return table


def _check_folder(title: str, cells: Sequence[Cell], out: Path) -> dict[str, str]:
    """Refuse a folder of somebody else's, or of another comparison; which cells had diverged."""
    ours = {"table.json", "table.md", "plot.png", "report.html", *(cell.folder for cell in cells)}
    known = any((out / cell.folder).exists() for cell in cells)
    if out.exists() and not known and (foreign := sorted({path.name for path in out.iterdir()} - ours)):
        raise RunError(
            f"{out} is not this comparison's folder: it holds {', '.join(foreign[:5])}; choose another --out"
        )
    if (out / "table.json").exists():
        try:
            found = msgspec.json.decode((out / "table.json").read_bytes(), type=Table)
        except msgspec.DecodeError as error:
            if known:
                return {}  # it is made anew from the cells
            raise RunError(
                f"{out / 'table.json'} is not a comparison's table: {error}; choose another --out"
            ) from error
        if found.title != title:
            raise RunError(f"{out} holds the comparison {found.title!r}, not {title!r}; choose another --out")
        return found.diverged
    return {}


def _result(cell: Cell, out: Path) -> Result | None:
    """What this very configuration came to here; None where it is not done."""
    folder = RunFolder(out / cell.folder)
    found = folder.read_config()
    return read_done(folder) if found and cell.config.filled(found).digest() == found.digest() else None


def row_of(cell: Cell, result: Result) -> TableRow:
    """A cell's line of the table."""
    accuracy = 100 * result.metrics.get("accuracy", math.nan)  # none where its evaluator was away at the end
    return TableRow(
        method=result.method,
        label=f"{cell.label} (stopped)" if result.stopped else cell.label,
        split=cell.split,
        seed=cell.seed,
        accuracy=accuracy,
        seconds=result.seconds,
        efficiency=100 * accuracy / result.seconds,
        bytes_up=result.bytes_up / result.rounds / cell.config.sampled,
        bytes_down=result.bytes_down / result.rounds / cell.config.sampled,
        folder=cell.folder,
        shared=result.shared,
    )


def by_label(table: Table) -> list[tuple[str, list[TableRow]]]:
    """Rows of one label together, in order: all its splits and seeds."""
    grouped: dict[str, list[TableRow]] = {}
    for row in table.rows:
        grouped.setdefault(row.label, []).append(row)
    return list(grouped.items())


def splits_of(table: Table) -> list[str]:
    """The splits, in the order in which they come."""
    return list(dict.fromkeys(row.split for row in table.rows))


def cells_text(rows: Sequence[TableRow], splits: Sequence[str]) -> list[str]:
    """Accuracy, seconds and efficiency for each split, then bytes: the columns of the paper's Table 1 and ours.

    Several seeds stand as their mean and standard deviation.
    """
    found = [[row for row in rows if row.split == split] for split in splits]
    first = next(present for present in found if present)
    return [
        *(_spread([row.accuracy for row in present], 2, " %") for present in found),
        *(_spread([row.seconds for row in present], 1, _mark(present)) for present in found),
        *(_spread([row.efficiency for row in present], 1, _mark(present)) for present in found),
        f"{fmean(row.bytes_up for row in first) / 1e6:.2f}",
        f"{fmean(row.bytes_down for row in first) / 1e6:.2f}",
    ]


def _mark(rows: Sequence[TableRow]) -> str:
    return "†" if any(row.shared for row in rows) else ""


def _spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    if not values:
        return ""
    around = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{around}{unit}"


def headers(splits: Sequence[str]) -> list[str]:
    """The headers of `cells_text`."""
    groups = [f"{what} {split}" for what in ("accuracy", "seconds", "efficiency") for split in splits]
    return [*groups, "MB up", "MB down"]


def explained(table: Table) -> str:
    """What the columns mean."""
    seeds = " ±: standard deviation over seeds." if len({row.seed for row in table.rows}) > 1 else ""
    shared = " †: the machine had other work; not comparable." if any(row.shared for row in table.rows) else ""
    lost = "".join(f" Without a result: {name} ({why})." for name, why in table.diverged.items())
    return f"Efficiency = 100 · accuracy / seconds.{seeds}{shared} MB: a client and round, first split.{lost}"


def markdown(table: Table) -> str:
    """The table for a document."""
    splits = splits_of(table)
    rows = [[label, *cells_text(rows, splits)] for label, rows in by_label(table)]
    parts = [f"**{table.title}**", as_markdown(["method", *headers(splits)], rows), explained(table)]
    return "\n\n".join(parts) + "\n"


def as_markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, whatever its cells say."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(html.escape(cell, quote=False).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(names), "|---" + "|---:" * (len(names) - 1) + "|", *map(line, rows)])
