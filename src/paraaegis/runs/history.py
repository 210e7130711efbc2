"""A run's aggregates on disk, as opaque bytes, for clients that missed them.

A file holds the sizes of its frames in a line of JSON, then the frames. It is written once, before the state that
refers to it, and removed when no client can need it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from paraaegis.engines.spool import views
from paraaegis.errors import ProtocolError, RunError
from paraaegis.files import write_whole
from paraaegis.protocol.messages import Aggregate, pack, unpack_aggregate


class History:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, aggregate: Aggregate) -> Aggregate:
        """Write an aggregate; returns the same one, whose bytes are read from its file when they are needed."""
        self._write(aggregate)
        return self._load(self._path(aggregate))

    def save(self, aggregates: Sequence[Aggregate]) -> list[str]:
        """Write the aggregates that are not there yet; returns the names by which `load` finds them."""
        for aggregate in aggregates:
            if not self._path(aggregate).exists():
                self._write(aggregate)
        return [self._path(aggregate).name for aggregate in aggregates]

    def load(self, names: Sequence[str]) -> list[Aggregate]:
        """The aggregates with these names."""
        return [self._load(self.folder / name) for name in names]

    def prune(self, names: Collection[str] = ()) -> None:
        """Remove all files but these."""
        for path in self.folder.glob("*.aggregate*"):
            if path.name not in names:
                path.unlink()
        if not names and self.folder.is_dir():
            self.folder.rmdir()

    def _write(self, aggregate: Aggregate) -> None:
        frames = pack(aggregate)
        self.folder.mkdir(exist_ok=True)
        sizes = msgspec.json.encode([memoryview(frame).nbytes for frame in frames]) + b"\n"
        write_whole(self._path(aggregate), lambda file: file.writelines([sizes, *frames]), mode=0o600)

    def _load(self, path: Path) -> Aggregate:
        try:
            with path.open("rb") as file:
                line = file.readline()
                return unpack_aggregate(views(file, msgspec.json.decode(line, type=list[int]), len(line)))
        except (OSError, ValueError, msgspec.DecodeError, ProtocolError) as error:
            raise RunError(f"{path} is missing or damaged: {error}") from error

    def _path(self, aggregate: Aggregate) -> Path:
        return self.folder / f"{aggregate.number:06d}-{aggregate.attempt}.aggregate"
