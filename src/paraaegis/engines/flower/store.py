"""A client's state on its node's disk: every message may reach a fresh process.

Arrays lie in files of their own and are never written twice; a manifest names those that are valid now. It is
replaced last and at once, so that a kill at any time leaves the state before or after a message, never between.
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
    over: bool = False  # the run is over; without values it is forgotten too, and never begun again
    spent: int = 0  # bytes of the client's ledger when this was written


def most_spent(runs: Path) -> int:
    """How long the client's ledger was, at least, by the runs whose states lie in this folder."""
    return max((_read(path).spent for path in runs.glob("*/manifest.json")), default=0)


def _read(path: Path) -> _Manifest:
    if not path.exists():
        return _Manifest()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except msgspec.DecodeError as error:
        raise RunError(
            f"{path} is damaged: {error}; what this client did in that run cannot be known; bring it back"
        ) from error


class Store:
    """The state of one run of one client, and of its learner, in a folder that only its owner can read.

    One process at a time has it; another waits or, if it will not, meets a BlockingIOError.
    """

    def __init__(self, folder: Path, wait: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        sync_folder(folder.parent)
        self._folder, self._path = folder, folder / "manifest.json"
        self._lock = (folder / "lock").open("wb")
        try:  # a process that lost its node may still be at work on the last message
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
        """Whether nothing was saved yet."""
        return not self._manifest.values

    @property
    def forgotten(self) -> bool:
        """Whether a run was played to its end here and its state is gone: answering it anew would repeat its orders."""
        return self._manifest.over and self.empty

    def state(self, initial: Callable[[], Vector] | None = None) -> ClientState:
        """The client's state as it was saved last; `initial` makes the first model, which is not kept."""
        arrays = self._part("state")
        if "weights" not in arrays and initial is not None:
            arrays["weights"] = initial()
        return ClientState.from_arrays(arrays)

    def learner(self, again: bool = False) -> Arrays:
        """The learner's state as it was saved last; `again`: as it was before that, to train in a round once more."""
        return self._part("before" if again else "learner")

    def save(
        self,
        state: ClientState,
        learner: Mapping[str, NDArray[Any]] | None = None,
        again: bool = False,
        spent: int = 0,
    ) -> None:
        """Keep a new state; arrays that are still the loaded ones are not written. None: the learner is as it was.

        `spent` is how long the client's ledger is.
        """
        arrays = {f"state/{name}": value for name, value in state.to_arrays().items()}
        if not (state.number or state.applied):
            del arrays["state/weights"]  # the first model, which its learner makes again
        arrays |= {f"learner/{name}": value for name, value in (learner or {}).items()}
        old = {name: file for name, file in self._manifest.files.items() if not name.startswith("state/")}
        if learner is not None:
            past = "before/" if again else "learner/"
            old = {f"before/{name.removeprefix(past)}": file for name, file in old.items() if name.startswith(past)}
        manifest = _Manifest(files=old, written=self._manifest.written + 1, spent=spent)
        for name, array in arrays.items():
            if array.ndim == 0 and name.startswith("state/"):  # a learner's may be of any kind
                manifest.values[name] = array.item()
            elif self._loaded.get(name) is array and name in self._manifest.files:
                manifest.files[name] = self._manifest.files[name]
            else:
                manifest.files[name] = self._write(name, array, manifest.written)
                self._loaded[name] = array
        self._replace(manifest)

    def finish(self) -> None:
        """The run is over. The arrays of others that were are removed; that they were played is remembered."""
        self._replace(msgspec.structs.replace(self._manifest, over=True))
        for folder in self._folder.parent.iterdir():
            if folder == self._folder or not (folder / "manifest.json").exists():
                continue
            # A run that goes on is not over; one that is damaged is no reason not to end this one.
            with suppress(BlockingIOError, RunError), Store(folder, wait=False) as past:
                if past._manifest.over:
                    past._replace(_Manifest(over=True, spent=past._manifest.spent))

    def _part(self, part: str) -> Arrays:
        found = {
            name.removeprefix(f"{part}/"): np.asarray(value)
            for name, value in self._manifest.values.items()
            if name.startswith(f"{part}/")
        }
        for name, file in self._manifest.files.items():
            if name.startswith(f"{part}/"):
                self._loaded[name] = found[name.removeprefix(f"{part}/")] = self._load(file)
        return found

    def _load(self, file: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(self._folder / file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise RunError(f"{self._folder / file} is missing or damaged: {error}") from error
        array.flags.writeable = False  # `save` takes the same array for unchanged
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
