"""A client's state on its node's disk, since every message may reach a new process.

Each array is in its own file and is never overwritten; a manifest lists the files that are currently valid. It is
replaced last and atomically, so a kill at any time leaves the state before or after a message, never in between.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import RunError
from paraaegis.files import sync_folder, write_whole
from paraaegis.protocol.state import ClientState
from paraaegis.types import Arrays, Vector


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    files: dict[str, str] = {}
    values: dict[str, int | float | str] = {}
    written: int = 0
    over: bool = False  # the run is over; without values its state is deleted too, and it can never start again
    spent: int = 0  # bytes of the client's ledger when this was written


def most_spent(runs: Path) -> int:
    """A lower bound on the ledger's size in bytes, from the run states in this folder."""
    return max((_read(path).spent for path in runs.glob("*/manifest.json")), default=0)


def _read(path: Path) -> _Manifest:
    if not path.exists():
        return _Manifest()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except msgspec.DecodeError as error:
        raise RunError(
            f"{path} is damaged: {error}; what this client did in that run is unknown; restore the file"
        ) from error


class Store:
    """The state of one client and its learner in one run, in a folder that only its owner can read.

    Only one process at a time can open it; others wait or, with `wait=False`, get a BlockingIOError.
    """

    def __init__(self, folder: Path, wait: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(folder.parent)
        self._folder, self._path = folder, folder / "manifest.json"
        self._lock = (folder / "lock").open("wb")
        try:  # a process whose node died may still be working on the last message
            fcntl.flock(self._lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._manifest = _read(self._path)
        except (OSError, RunError):
            self._lock.close()
            raise
        self._loaded: dict[str, NDArray[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    @property
    def empty(self) -> bool:
        """Whether nothing has been saved yet."""
        return not self._manifest.values

    @property
    def forgotten(self) -> bool:
        """Whether a run ended here and its state was deleted: answering it again would reuse its secret orders."""
        return self._manifest.over and self.empty

    def state(self, initial: Callable[[], Vector] | None = None) -> ClientState:
        """The client's last saved state; `initial` makes the initial model, which is not stored."""
        arrays = self._part("state")
        if "weights" not in arrays and initial is not None:
            arrays["weights"] = initial()
        return ClientState.from_arrays(arrays)

    def learner(self, again: bool = False) -> Arrays:
        """The learner's last saved state; with `again` the one before that, to train a round a second time."""
        return self._part("before" if again else "learner")

    def save(
        self,
        state: ClientState,
        learner: Mapping[str, NDArray[Any]] | None = None,
        again: bool = False,
        spent: int = 0,
    ) -> None:
        """Save a new state; arrays that are unchanged since loading are not written again.

        `learner` is None if its state has not changed. `spent` is the size of the client's ledger in bytes.
        """
        arrays = {f"state/{name}": value for name, value in state.to_arrays().items()}
        if not (state.number or state.applied):
            del arrays["state/weights"]  # the initial model, which its learner can make again
        arrays |= {f"learner/{name}": value for name, value in (learner or {}).items()}
        old = {name: file for name, file in self._manifest.files.items() if not name.startswith("state/")}
        if learner is not None:
            past = "before/" if again else "learner/"
            old = {f"before/{name.removeprefix(past)}": file for name, file in old.items() if name.startswith(past)}
        manifest = _Manifest(files=old, written=self._manifest.written + 1, spent=spent)
        for name, array in arrays.items():
            if array.ndim == 0 and name.startswith("state/"):  # a learner's arrays may have any type
                manifest.values[name] = array.item()
            elif self._loaded.get(name) is array and name in self._manifest.files:
                manifest.files[name] = self._manifest.files[name]
            else:
                manifest.files[name] = self._write(name, array, manifest.written)
                self._loaded[name] = array
        self._replace(manifest)

    def finish(self) -> None:
        """Mark the run as over. Delete the arrays of earlier finished runs, but remember that they took place."""
        self._replace(msgspec.structs.replace(self._manifest, over=True))
        for folder in self._folder.parent.iterdir():
            if folder == self._folder or not (folder / "manifest.json").exists():
                continue
            # Runs in progress are kept; a damaged one must not keep this run from ending.
            with suppress(BlockingIOError, RunError), Store(folder, wait=False) as past:
                if past._manifest.over:
                    past._replace(_Manifest(over=True, spent=past._manifest.spent))

    def _part(self, part: str) -> Arrays:
        arrays = {
            name.removeprefix(f"{part}/"): np.asarray(value)
            for name, value in self._manifest.values.items()
            if name.startswith(f"{part}/")
        }
        for name, file in self._manifest.files.items():
            if name.startswith(f"{part}/"):
                self._loaded[name] = arrays[name.removeprefix(f"{part}/")] = self._load(file)
        return arrays

    def _load(self, file: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(self._folder / file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise RunError(f"{self._folder / file} is missing or damaged: {error}") from error
        array.flags.writeable = False  # because `save` treats the same array as unchanged
        return array

    def _write(self, name: str, array: NDArray[Any], number: int) -> str:
        file = f"{number:06d}-{name.replace('/', '-')}.npy"
        with (self._folder / file).open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        return file

    def _replace(self, manifest: _Manifest) -> None:
        write_whole(self._path, lambda file: file.write(msgspec.json.encode(manifest)), mode=0o600)  # it holds keys
        self._manifest = manifest
        valid = set(manifest.files.values())
        for path in self._folder.glob("*.npy"):
            if path.name not in valid:
                path.unlink()
