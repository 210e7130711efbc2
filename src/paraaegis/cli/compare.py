"""`paraaegis compare`: run a grid of configurations and show its table."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paraaegis.cli.options import Json, Metric, say_measured
from paraaegis.config import LOCAL_KEYS
from paraaegis.errors import ConfigError, RunError

if TYPE_CHECKING:
    from paraaegis.comparisons.preset import Cell


def compare(
    configs: Annotated[list[Path] | None, typer.Argument(help="Configurations to compare, one cell each.")] = None,
    preset: Annotated[str, typer.Option(help="The name of a preset (see `paraaegis presets`) or a TOML file.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key in every cell.")
    ] = None,
    splits: Annotated[list[str] | None, typer.Option("--split", help="Only these splits of the preset.")] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only these rows of the preset.")] = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only these seeds of the preset.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison. Default: runs/compare-NAME.")] = None,
    fresh: Annotated[bool, typer.Option(help="Start over: delete the earlier results first.")] = False,
    metric: Metric = None,
    as_json: Json = False,
) -> None:
    """Run a grid of configurations one after another, or continue an interrupted one, and show the table."""
    if bool(preset) == bool(configs):
        got = "both" if preset else "neither"
        raise ConfigError(f"give either --preset NAME or configurations to compare, got {got}")
    title, cells, wanted = _grid(preset, configs or [], settings or [], (splits or [], rows or [], seeds or []))
    _find_learners(cells, [Path(preset)] if preset.endswith(".toml") else configs or [])
    folder = out or Path("runs") / f"compare-{Path(preset).stem if preset else '-'.join(p.stem for p in configs or [])}"

    from paraaegis.cli.display import shown_rounds
    from paraaegis.cli.tables import show_table
    from paraaegis.comparisons.compare import compare as run_cells
    from paraaegis.planning.measure import remembered
    from paraaegis.report.collect import collect, profile_of
    from paraaegis.report.page import write_page
    from paraaegis.report.picture import write_picture
    from paraaegis.runs.run import OnRecord

    def shown(name: str, rounds: int) -> AbstractContextManager[OnRecord]:
        return shown_rounds(rounds, name, metric, quiet=as_json)

    table = run_cells(title, cells, folder, fresh, shown, wanted, metric)
    runs, problems = collect([folder], metric=table.metric)
    if not runs:
        raise RunError(f"no run in {folder} can be shown: {'; '.join(problems)}")
    machine = remembered(profile_of(runs), say_measured)
    write_picture(runs, folder / "plot.png", title)
    write_page(runs, problems, folder / "report.html", title, machine)
    if as_json:
        sys.stdout.write((folder / "table.json").read_text() + "\n")
    else:
        show_table(table, folder)


def _grid(
    preset: str, configs: list[Path], settings: list[str], selected: tuple[list[str], list[str], list[int]]
) -> tuple[str, list[Cell], list[Cell]]:
    """A comparison's title, its cells, and those of the selected splits, rows and seeds."""
    from paraaegis.comparisons.preset import cells_of, cells_of_files, only, read_preset

    if preset:
        grid = read_preset(preset)
        cells = cells_of(grid, settings)
        return titled(grid.title, settings), cells, only(cells, *selected)
    if any(selected):
        raise ConfigError("--split, --row and --seed select cells of a preset; use them with --preset")
    cells = cells_of_files(configs, settings)
    return titled("Comparison", settings), cells, cells


def _find_learners(cells: Iterable[Cell], files: Iterable[Path]) -> None:
    """Let the cells' learners be imported from the folder of their files, if they have any."""
    from paraaegis.runs.learners import importable

    if not any(cell.config.learner for cell in cells):
        return
    folders = {path.resolve().parent for path in files}
    if len(folders) > 1:
        raise ConfigError(
            f"these configurations are in {' and '.join(map(str, sorted(folders)))}; with learners of your own, put "
            "them into one folder"
        )
    importable(next(iter(folders), None))


def titled(title: str, settings: list[str]) -> str:
    """The title, followed by the settings that change results, since the title may mention what they replace."""
    shown = [setting for setting in settings if not setting.strip().startswith(LOCAL_KEYS)]
    return f"{title} ({', '.join(shown)})" if shown else title
