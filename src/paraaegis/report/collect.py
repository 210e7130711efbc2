"""Read runs for a report from their folders; broken or unfinished runs are listed and skipped."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paraaegis.config import Config
from paraaegis.errors import ParaAegisError, RunError
from paraaegis.methods import METHODS
from paraaegis.metrics import ACCURACY, choose, scaled
from paraaegis.plural import plural
from paraaegis.privacy.guarantee import Guarantee
from paraaegis.protocol.records import RoundRecord
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import spending
from paraaegis.runs.origin import Origin, read_origin
from paraaegis.runs.result import Result, bytes_per_client, read_done, summarise


@dataclass(frozen=True)
class Run:
    """One complete run. Its label is its folder's name, in a comparison without the parts shared by all runs."""

    config: Config
    records: list[RoundRecord]
    result: Result
    guarantees: list[Guarantee]
    name: str  # its folder's
    label: str
    parent: str = ""
    running: bool = False
    metric: str = ACCURACY  # the one that the report shows
    origin: Origin | None = None  # of the model and its learners, if they are the user's own

    @property
    def row(self) -> str:
        """Its row in a comparison, or its label."""
        return self._parts[0] if len(self._parts) == 3 else self.label

    @property
    def mark(self) -> str:
        """A short label that distinguishes it from other runs of its method: its ratio, or its row's name."""
        method, protect = self.result.method, self.config.protect
        if not self.row.startswith(method):
            return self.row
        rest = self.row.removeprefix(method).strip(" -")
        if method not in METHODS or not METHODS[method].votes:
            return rest
        decay = f" × {protect.decay:g}" if protect.decay < 1 else ""
        suffix = "carry" if protect.carry else ""
        if len(self._parts) == 3:  # its row has a name, which may say more than its ratio
            suffix = rest.lstrip("0123456789_.x- ")
        return f"{100 * protect.ratio:g}%{decay} {suffix}".strip()

    @property
    def shared(self) -> bool:
        """Whether its machine had other work."""
        return self.result.shared

    @property
    def subject(self) -> str:
        """What was trained; for a user's own learner, whose name may say little, also the size of the model."""
        return self.config.subject + (f", {plural(self.origin.length, 'value')}" if self.origin else "")

    @property
    def split(self) -> str:
        """The name of its data split."""
        return self.config.split

    @property
    def _parts(self) -> list[str]:
        return [part.strip("-") for part in self.name.rsplit("--", 2)]

    @property
    def value(self) -> float:
        """The metric of the final model, accuracies in percent; NaN if it was not reported."""
        return scaled(self.metric, self.result.metrics.get(self.metric, math.nan))

    @property
    def values(self) -> list[float]:
        """The metric after each round."""
        return [scaled(self.metric, record.metrics.get(self.metric, math.nan)) for record in self.records]

    @property
    def length(self) -> int:
        """The number of values in the model, estimated from its round records; 0 if they do not show it."""
        record = next((record for record in self.records if record.clients), self.records[0])
        if record.elected and record.ratio:
            return round(record.elected / record.ratio)
        method = METHODS.get(self.result.method)
        parts = method.parts.values() if method else ()
        kinds = {part.kind(self.config) for part in parts if not part.per_ciphertext(self.config)}
        return sum(record.bytes_up.get(kind, 0) for kind in kinds) // 4 // max(1, len(record.clients))

    def megabytes(self, direction: Literal["up", "down"]) -> float:
        """MB per client per round."""
        up, down = bytes_per_client(self.result, self.config)
        return (up if direction == "up" else down) / 1e6


def by_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs grouped by subject and data split, since metrics on different data are not comparable.

    A group is named after its split, and after its subject only if another one has the same split.
    """
    splits = Counter(split for _, split in {(run.subject, run.split) for run in runs})
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        name = run.split if splits[run.split] == 1 else f"{run.subject}, {run.split}"
        grouped.setdefault(name, []).append(run)
    return grouped


def collect(paths: Iterable[Path], running: bool = False, metric: str | None = None) -> tuple[list[Run], list[str]]:
    """All complete runs in or directly below these folders, and a sentence about each one that cannot be shown.

    With `running`, runs in progress are included too, with their rounds so far. All show the same metric, by default
    accuracy or the first that was reported.
    """
    runs, problems = [], []
    for folder in dict.fromkeys(path.resolve() for path in _folders(paths)):
        try:
            runs.append(_read(folder, running))
            if not runs[-1].guarantees:
                problems.append(f"{folder.name}: it has no ledger, so its guarantees are not shown")
        except (ParaAegisError, OSError) as error:
            problems.append(f"{folder.name}: {error}")
    shown = choose(metric, (name for run in runs for record in run.records for name in record.metrics))
    return [replace(run, metric=shown) for run in _labelled(runs)], problems


def profile_of(runs: Iterable[Run]) -> str:
    """The profile that most of these runs use."""
    return Counter(run.config.protect.profile for run in runs).most_common(1)[0][0]


def _labelled(runs: list[Run]) -> list[Run]:
    """Label runs by names of the form row--split--seed, without the parts that are the same in all."""
    names = [run._parts for run in runs]
    if len({len(parts) for parts in names}) != 1:
        return runs
    differing = [len(set(column)) > 1 for column in zip(*names, strict=True)]
    kept = [[part for part, differs in zip(parts, differing, strict=True) if differs] for parts in names]
    labelled = [replace(run, label=", ".join(parts) or run.label) for run, parts in zip(runs, kept, strict=True)]
    twice = {label for label, count in Counter(run.label for run in labelled).items() if count > 1}
    return [replace(run, label=f"{run.parent}/{run.label}") if run.label in twice else run for run in labelled]


def _folders(paths: Iterable[Path]) -> list[Path]:
    folders = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is not a folder; give run folders or a comparison's folder")
        traces = ("config.toml", "rounds.jsonl", "result.json")
        below = sorted(sub for sub in path.iterdir() if sub.is_dir() and any((sub / name).exists() for name in traces))
        folders += [path] if (path / "config.toml").exists() else below
    if not folders:
        raise RunError("there is no run in these folders: none of them contains a config.toml")
    return folders


def _read(path: Path, running: bool) -> Run:
    folder = RunFolder(path)
    if (config := folder.read_config()) is None:
        raise RunError("its config.toml cannot be read")
    done, records = read_done(folder), folder.read_records()
    if done is None and not running:
        raise RunError("it is not complete; run the command that started it again to resume it")
    if not records:
        raise RunError("it has no rounds yet" if running else "it has no rounds")
    if done is not None and len(records) != done.rounds:
        raise RunError(f"its rounds.jsonl has {len(records)} of {plural(done.rounds, 'round')}")
    guarantees = []
    if folder.ledger.exists():
        guarantees = spending(path).guarantees
    name, parent = path.resolve().name, path.resolve().parent.name
    result, origin = done or summarise(config, folder), read_origin(folder.origin)
    return Run(config, records, result, guarantees, name, name, parent, done is None, origin=origin)
