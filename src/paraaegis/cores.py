"""Work on the chunks of a long vector, on all cores: numpy lets go of the interpreter while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def each(work: Callable[[int, Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """The answers of `work(index, item)` in order. The work must not call `each` itself."""
    numbered = list(enumerate(items))
    if len(numbered) < 2 or (threads := _threads()) is None:
        return [work(index, item) for index, item in numbered]
    return list(threads.map(lambda pair: work(*pair), numbered))


@cache
def _threads() -> ThreadPoolExecutor | None:
    """One pool a process, shared by all who ask: there are only so many cores."""
    cores = os.cpu_count() or 1
    return ThreadPoolExecutor(cores, thread_name_prefix="chunks") if cores > 1 else None
