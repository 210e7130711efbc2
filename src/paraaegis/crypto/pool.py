"""Worker processes for chunks: SEAL's bindings hold the GIL, so threads do not help, while processes use all cores.

Workers are fresh interpreters, never forks: the parent may run torch threads. Each has an arena of shared memory and is
fed by a thread of the parent. They start on first use and end with the pool, or when the parent dies.
"""

from __future__ import annotations

import itertools
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np

from paraaegis.crypto.profiles import PROFILES
from paraaegis.crypto.worker import KEPT, read_frame, write_frame
from paraaegis.errors import CryptoError
from paraaegis.parallel import threads
from paraaegis.types import Buffer

ARENA = 32 * max(profile.chunk for profile in PROFILES.values())  # bytes: twice the size of the largest chunk
AHEAD = 3  # tasks queued per worker
SMALL = 1  # chunks: up to this length a second process gains nothing


class Pool:
    """Up to `workers` processes; with one, the work is done in the calling process.

    This is the server's pool: its workers only add. They hold no key and cannot be given one.
    """

    kind = "sums"

    def __init__(self, workers: int = 0) -> None:
        self.workers = threads(workers)
        self._lock = threading.Lock()
        self._submitting = threading.Lock()
        self._started: list[_Worker] = []
        self._ids = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def worth(self, chunks: int) -> bool:
        """Whether spreading this many chunks over the workers pays off."""
        return self.workers > 1 and chunks > SMALL

    def submit(self, index: int, operation: str, arguments: Sequence[Any], data: Buffer) -> Future[memoryview]:
        """Submit work on chunk `index`; the same index always goes to the same worker, which keeps its sum."""
        workers = self._running()
        return workers[index % len(workers)].submit(operation, arguments, data)

    def map(self, tasks: Iterable[tuple[str, Sequence[Any], Buffer]]) -> Iterator[memoryview]:
        """The results of one task per chunk, in order. Only a few tasks are in flight at a time.

        Concurrent callers take turns: the first client's upload can be summed while the others are encrypted.
        """
        waiting: deque[Future[memoryview]] = deque()
        with self._submitting:
            for index, (operation, arguments, data) in enumerate(tasks):
                if len(waiting) >= AHEAD * self.workers:
                    yield waiting.popleft().result()
                waiting.append(self.submit(index, operation, arguments, data))
        while waiting:
            yield waiting.popleft().result()

    def new_sum(self, owner: object) -> int:
        """An id for sums kept by the workers; they are dropped when `owner` is garbage-collected."""
        sum_id = next(self._ids)
        weakref.finalize(owner, self._drop, sum_id)
        return sum_id

    def _drop(self, sum_id: int) -> None:
        for worker in self._started:
            worker.submit("drop", (sum_id,), b"")

    def _running(self) -> list[_Worker]:
        with self._lock:
            if not self._started:
                self._started = [_Worker(self.kind) for _ in range(self.workers)]
            return self._started

    def close(self) -> None:
        """End the workers; queued work is cancelled."""
        with self._lock:
            started, self._started = self._started, []
        for worker in started:
            worker.close()


class SecretPool(Pool):
    """The clients' pool: its workers take keys, encrypt and decrypt."""

    kind = "secrets"

    def __init__(self, workers: int = 0) -> None:
        super().__init__(workers)
        self._known: deque[bytes] = deque(maxlen=KEPT)  # ids of the keys that every worker holds
        self._turns = itertools.count()

    def submit(self, index: int, operation: str, arguments: Sequence[Any], data: Buffer) -> Future[memoryview]:  # noqa: ARG002
        """Submit work to each worker in turn, so that ten clients' first chunks go to ten workers, not to one."""
        return super().submit(next(self._turns), operation, arguments, data)

    def know(self, key_id: bytes, profile: str, key: bytes) -> None:
        """Give every worker a secret key, once; only the newest few are kept."""
        workers = self._running()
        with self._lock:
            if key_id in self._known:
                return
            self._known.append(key_id)
            # Under the lock: a second caller's work must queue behind the key.
            futures = [worker.submit("key", (profile,), key) for worker in workers]
        for future in futures:
            future.result()

    def close(self) -> None:
        """End the workers, and with them every copy of a key."""
        super().close()
        self._known.clear()


class _Worker:
    """One process, its arena and the thread that feeds it."""

    def __init__(self, kind: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[memoryview], str, Sequence[Any], Buffer] | None] = (
            queue.SimpleQueue()
        )
        with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:  # noqa: S108, PTH112
            file.truncate(ARENA)
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), ARENA), np.uint8)
            # -P: a process that may hold a key imports nothing from the working folder
            command = [sys.executable, "-P", "-m", "paraaegis.crypto.worker", kind, str(file.fileno()), str(ARENA)]
            self._process = subprocess.Popen(  # noqa: S603 — our own module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[file.fileno()]
            )
        self._thread = threading.Thread(target=self._feed, name="ckks-worker", daemon=True)
        self._thread.start()

    def submit(self, operation: str, arguments: Sequence[Any], data: Buffer) -> Future[memoryview]:
        future: Future[memoryview] = Future()
        self._tasks.put((future, operation, arguments, data))
        return future

    def _feed(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, operation, arguments, data = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._ask(operation, arguments, data))
            except BaseException as error:
                future.set_exception(error)

    def _ask(self, operation: str, arguments: Sequence[Any], data: Buffer) -> memoryview:
        view = memoryview(data).cast("B")
        if view.nbytes > ARENA:
            raise CryptoError(f"a chunk must have at most {ARENA} bytes, got {view.nbytes}")
        self._bytes[: view.nbytes] = np.frombuffer(view, np.uint8)  # numpy releases the GIL while it copies
        try:
            write_frame(_pipe(self._process.stdin), [operation, arguments, view.nbytes])
            reply = read_frame(_pipe(self._process.stdout))
        except (OSError, msgspec.DecodeError):
            reply = None
        if reply is None:
            raise CryptoError("an encryption worker ended unexpectedly; it may have been killed or run out of memory")
        error, size = reply
        if error:
            raise CryptoError(error)
        return self._bytes[:size].copy().data

    def close(self) -> None:
        self._tasks.put(None)
        with suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()  # the worker ends when its input does
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(timeout=5)
        _pipe(self._process.stdout).close()
        while not self._tasks.empty():
            if (task := self._tasks.get()) is not None:
                task[0].cancel()


def _pipe(stream: Any) -> BinaryIO:
    opened: BinaryIO = stream
    return opened
