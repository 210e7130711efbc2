"""A grid of runs, one after another so that their times are comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from paraaegis.comparisons.preset import Cell
from paraaegis.comparisons.table import Table, TableRow, as_json, markdown
from paraaegis.config import naming
from paraaegis.errors import RunError, UpdateError
from paraaegis.files import write_whole
from paraaegis.launch import run
from paraaegis.metrics import choose, scaled
from paraaegis.runs.check import check_early
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.result import Result, bytes_per_client, read_done
from paraaegis.runs.run import OnRecord


class _Written(msgspec.Struct):
    """What a comparison needs of its earlier table.json, whose rows depend on the metric."""

    title: str
    rows: list[dict[str, Any]]
    diverged: dict[str, str] = {}


Shown = Callable[[str, int], AbstractContextManager[OnRecord]]


def compare(
    title: str,
    cells: Sequence[Cell],
    out: Path,
    fresh: bool,
    shown: Shown,
    wanted: Sequence[Cell] | None = None,
    metric: str | None = None,
) -> Table:
    """Run the wanted cells (default: all) that are not done yet; write and return the table of all that are done.

    The table shows this metric, by default accuracy or the first that was reported.
    """
    wanted = cells if wanted is None else wanted
    for cell in wanted:
        with naming(f"row {cell.label!r} in split {cell.split!r}"):
            check_early(cell.config)
    diverged = _check_folder(title, cells, out)
    for index, cell in enumerate(wanted):
        name = f"{index + 1}/{len(wanted)} {cell.label} {cell.split}" + (f" seed {cell.seed}" if cell.seed else "")
        try:
            if not fresh and not cell.config.learner and _result(cell, out) is not None:
                continue  # without needing its data or its machine again; a learner's code may have changed
            with shown(name, cell.config.federation.rounds) as show:
                run(cell.config, out / cell.folder, fresh, show)
            RunFolder(out / cell.folder).last.unlink(missing_ok=True)  # those of a whole grid would fill a disk
        except UpdateError as error:  # divergence is a result too: continue with the others
            diverged[cell.folder] = str(error)
        except RunError as error:
            if "--fresh" not in str(error):
                raise
            one = f"to repeat only this one, remove {out / cell.folder} and run it again"
            raise RunError(f"{error} (--fresh deletes and repeats all cells; {one})") from error
    return _tabulate(title, cells, out, diverged, metric)


def _tabulate(title: str, cells: Sequence[Cell], out: Path, diverged: dict[str, str], metric: str | None) -> Table:
    """Write the table of all cells that are done."""
    results = [(cell, result) for cell in cells if (result := _result(cell, out)) is not None]
    lost = {cell.folder for cell in cells} - {cell.folder for cell, _ in results}
    diverged = {name: why for name, why in diverged.items() if name in lost}
    if not results:
        raise RunError(f"no cell has a result: {'; '.join(f'{name}: {why}' for name, why in diverged.items())}")
    metric = choose(metric, (name for _, result in results for name in result.metrics))
    rows = [row_of(cell, result, metric) for cell, result in results]
    table = Table(title=title, metric=metric, rows=rows, diverged=diverged)
    write_whole(out / "table.json", lambda file: file.write(as_json(table)))
    write_whole(out / "table.md", lambda file: file.write(markdown(table).encode()))
    return table


def _check_folder(title: str, cells: Sequence[Cell], out: Path) -> dict[str, str]:
    """Refuse a folder that is not a comparison's, or is another comparison's; return the cells that had diverged."""
    ours = {"table.json", "table.md", "plot.png", "report.html", *(cell.folder for cell in cells)}
    known = any((out / cell.folder).exists() for cell in cells)
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file and cannot be a comparison's folder; choose another --out")
    if out.exists() and not known and (foreign := sorted({path.name for path in out.iterdir()} - ours)):
        raise RunError(
            f"{out} is not this comparison's folder: it holds {', '.join(foreign[:5])}; choose another --out"
        )
    if (out / "table.json").exists():
        try:
            table = msgspec.json.decode((out / "table.json").read_bytes(), type=_Written)
        except msgspec.DecodeError as error:
            if known:
                return {}  # the table is rebuilt from the cells
            raise RunError(
                f"{out / 'table.json'} is not a comparison's table: {error}; choose another --out"
            ) from error
        if table.title != title:
            raise RunError(f"{out} holds the comparison {table.title!r}, not {title!r}; choose another --out")
        return table.diverged
    return {}


def _result(cell: Cell, out: Path) -> Result | None:
    """The result of exactly this configuration in this folder; None if it is not done."""
    folder = RunFolder(out / cell.folder)
    config = folder.read_config()
    return read_done(folder) if config and cell.config.filled(config).digest() == config.digest() else None


def row_of(cell: Cell, result: Result, metric: str) -> TableRow:
    """A cell's row in the table."""
    measured = result.metrics.get(metric, math.nan)
    up, down = bytes_per_client(result, cell.config)
    return TableRow(
        method=result.method,
        label=f"{cell.label} (stopped)" if result.stopped else cell.label,
        split=cell.split,
        seed=cell.seed,
        value=None if math.isnan(measured) else scaled(metric, measured),
        seconds=result.seconds,
        bytes_up=up,
        bytes_down=down,
        folder=cell.folder,
        shared=result.shared,
    )
