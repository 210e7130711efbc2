"""Work that all clients of one process need but only the first should do; and timing."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

Value = TypeVar("Value")


class SingleFlight:
    """Computes a value once per key, in the thread that asks first; the others wait for it. Keeps the newest few."""

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Future[Any]] = OrderedDict()

    def __call__(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """The value of this key."""
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
                while len(self._values) > self._keep:
                    self._values.popitem(last=False)
        if mine:
            try:
                future.set_result(compute())
            except BaseException as error:
                with self._lock:  # the next caller may have better input
                    self._values.pop(key, None)
                future.set_exception(error)
                raise
        result: Value = future.result()
        return result

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()


class Stopwatch:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
