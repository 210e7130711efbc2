"""Runs for a report, read from their folders; what is broken or unfinished is named and left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paraaegis.config import Config
from paraaegis.errors import ParaAegisError, RunError
from paraaegis.experiments.folder import RunFolder
from paraaegis.experiments.promise import spending
from paraaegis.experiments.run import Result, read_done
from paraaegis.privacy.guarantee import Guarantee
from paraaegis.protocol.state import Line


@dataclass(frozen=True)
class Run:
    """One complete run. Its label is its folder's name, in a comparison without what all have in common."""

    config: Config
    lines: list[Line]
    result: Result
    guarantees: list[Guarantee]
    label: str

    @property
    def accuracy(self) -> float:
        """Of the final model, in percent."""
        return 100 * self.result.metrics.get("accuracy", float("nan"))

    def megabytes(self, direction: Literal["up", "down"]) -> float:
        """Of a client and round."""
        total = self.result.bytes_up if direction == "up" else self.result.bytes_down
        return total / self.result.rounds / self.config.sampled / 1e6


def collect(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All complete runs in or right below these folders, and a sentence about each that cannot be shown."""
    runs, problems = [], []
    for folder in _folders(paths):
        try:
            runs.append(_read(folder))
        except (ParaAegisError, OSError) as error:
            problems.append(f"{folder.name}: {error}")
    return _labelled(runs), problems


def _labelled(runs: list[Run]) -> list[Run]:
    """Names of the form row--split--seed, without the parts that are the same in all."""
    names = [[part.strip("-") for part in run.label.rsplit("--", 2)] for run in runs]
    if len({len(parts) for parts in names}) != 1:
        return runs
    differing = [len(set(column)) > 1 for column in zip(*names, strict=True)]
    kept = [[part for part, differs in zip(parts, differing, strict=True) if differs] for parts in names]
    return [replace(run, label=", ".join(parts) or run.label) for run, parts in zip(runs, kept, strict=True)]


def _folders(paths: Iterable[Path]) -> list[Path]:
    found = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a folder; give run folders, or a comparison's")
        below = sorted(one for one in path.iterdir() if one.is_dir() and (one / "config.toml").exists())
        found += [path] if (path / "config.toml").exists() else below
    if not found:
        raise RunError("there is no run in these folders: none holds a config.toml")
    return found


def _read(path: Path) -> Run:
    folder = RunFolder(path)
    if (config := folder.read_config()) is None:
        raise RunError("its config.toml cannot be read")
    if (result := read_done(folder)) is None:
        raise RunError("it is not complete; the command that began it goes on with it")
    if not (lines := folder.read_lines()):
        raise RunError("it has no rounds")
    guarantees = spending(path).guarantees if folder.ledger.exists() else []
    return Run(config, lines, result, guarantees, path.resolve().name)
