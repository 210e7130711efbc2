"""A comparison as a TOML file: one configuration, varied by rows (methods), splits and seeds.

title = "…"
seeds = [0]
[config.federation] …               # what all cells share, with the keys of a run's configuration
[splits.iid]
"data.split" = "iid"
[[rows]]
label = "paraaegis-static-10"
splits = ["iid"]                    # default: all
seeds = [0, 1, 2]                   # default: the preset's
set = { "protect.method" = "paraaegis-static", "protect.ratio" = 0.1 }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec

from paraaegis.config import Config, as_toml, explain, load_config, make_config, meant, naming
from paraaegis.errors import ConfigError


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table: its changes to the configuration, and the splits and seeds it is run with."""

    label: str
    set: dict[str, Any] = {}
    splits: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grid of runs."""

    title: str
    rows: list[Row]
    splits: dict[str, dict[str, Any]]
    config: dict[str, Any] = {}
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (0,)


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    split: str
    seed: int
    config: Config

    @property
    def folder(self) -> str:
        """The name of the cell's folder in the comparison's folder."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.label}--{self.split}--seed{self.seed}")


def preset_names() -> list[str]:
    """The names of the presets that ship with the package."""
    shipped = (file for file in files("paraaegis.configs").iterdir() if file.name.endswith(".toml"))
    return sorted(file.name[:-5] for file in shipped if "[[rows]]" in file.read_text())


def read_preset(name: str) -> Preset:
    """A shipped preset by name, or your own by path."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"preset file {name} does not exist")
        content = path.read_bytes()
    elif name in preset_names():
        content = (files("paraaegis.configs") / f"{name}.toml").read_bytes()
    else:
        names = preset_names()
        raise ConfigError(f"preset must be one of {', '.join(names)} or a path, got {name!r}{meant(name, names)}")
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"preset {name} is not valid TOML: {error}") from error
    try:
        return msgspec.convert(tables, Preset)
    except msgspec.ValidationError as error:
        raise ConfigError(f"preset {name}: {explain(str(error), Preset, tables)}") from error


def cells_of(preset: Preset, settings: Iterable[str] = ()) -> list[Cell]:
    """Every run of a preset, with all configurations checked up front; `settings` apply to all of them."""
    settings = list(settings)
    changed = {setting.partition("=")[0].strip(): setting for setting in settings}
    if "seed" in changed:
        raise ConfigError(
            "a preset has its own seeds, so --set seed=… is not allowed; choose among them with --seed, or copy the "
            "preset and change `seeds`"
        )
    varied = {key: f"row {row.label!r}" for row in preset.rows for key in row.set}
    varied |= {key: f"split {name!r}" for name, changes in preset.splits.items() for key in changes}
    for key, setting in changed.items():
        if source := varied.get(key):
            raise ConfigError(
                f"--set {setting} conflicts with {source} of the preset, which sets the same key; copy the preset and "
                "change it"
            )
    cells = []
    for row in preset.rows:
        for split in row.splits or preset.splits:
            if split not in preset.splits:
                raise ConfigError(
                    f"row {row.label!r} names split {split!r}, but the preset's splits are {', '.join(preset.splits)}"
                )
            for seed in row.seeds or preset.seeds:
                changes = {**preset.splits[split], **row.set, "seed": seed}
                assigned = [f"{key}={as_toml(value)}" for key, value in changes.items()]
                with naming(f"row {row.label!r} in split {split!r}", settings):
                    cells.append(Cell(row.label, split, seed, make_config(preset.config, [*assigned, *settings])))
    return _distinct(cells)


def _distinct(cells: list[Cell]) -> list[Cell]:
    known: dict[str, Cell] = {}
    for cell in cells:
        if (other := known.setdefault(cell.folder, cell)) is not cell:
            raise ConfigError(
                f"{other.label!r} and {cell.label!r} in split {cell.split!r}, seed {cell.seed}, would share the folder "
                f"{cell.folder}; give one of them a different label (or file name, or seed)"
            )
    return cells


def only(
    cells: list[Cell], splits: Sequence[str] = (), rows: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[Cell]:
    """The cells with these splits, rows and seeds; an empty selection means all."""
    selected = cells
    for kind, wanted, name in (("split", splits, "split"), ("row", rows, "label"), ("seed", seeds, "seed")):
        known = sorted({getattr(cell, name) for cell in cells})
        if unknown := [value for value in wanted if value not in known]:
            raise ConfigError(
                f"no {kind} {unknown[0]!r} in this preset; its {kind}s are {', '.join(map(str, known))} "
                "(for others, copy the preset and change it)"
            )
        selected = [cell for cell in selected if not wanted or getattr(cell, name) in wanted]
    if not selected:
        raise ConfigError("no cell of this preset has that combination of split, row and seed")
    return selected


def cells_of_files(paths: Iterable[Path], settings: Sequence[str] = ()) -> list[Cell]:
    """Configuration files as cells, labelled by file name."""
    cells = []
    for path in paths:
        config = load_config(path, settings)
        cells.append(Cell(path.stem, config.split, config.seed, config))
    return _distinct(cells)
