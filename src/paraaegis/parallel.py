"""Work in threads, which pays where numpy lets go of the interpreter: chunks of a long vector, and work ahead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_lock = threading.Lock()
_callers = 0  # threads that are in `each` now


def threads(asked: int) -> int:
    """How many work at a time: as many as were asked for, or one a core."""
    return asked or os.cpu_count() or 1


def parallel_map(work: Callable[[int, Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """The answers of `work(index, item)` in order.

    The caller works itself, helped by as many threads as its share of the cores allows: ten clients on ten cores
    need no help.
    """
    global _callers
    numbered = list(enumerate(items))
    todo, answers = iter(numbered), dict[int, Answer]()  # several threads may take from one iterator

    def take() -> None:
        try:
            for index, item in todo:
                answers[index] = work(index, item)
        except BaseException:
            for _ in todo:  # nobody begins another piece
                pass
            raise

    with _lock:
        _callers += 1
        share = -(-(os.cpu_count() or 1) // _callers)
    try:
        helpers = [_threads().submit(take) for _ in range(min(share, len(numbered)) - 1)]
        try:
            take()
        finally:
            _end(helpers)
    finally:
        with _lock:
            _callers -= 1
    return [answers[index] for index, _ in numbered]


def _end(helpers: list[Future[None]]) -> None:
    """Wait for those that began; the others find nothing left to do."""
    began = [helper for helper in helpers if not helper.cancel()]
    wait(began)
    for helper in began:
        helper.result()


def in_background(compute: Callable[[], Answer]) -> Future[Answer]:
    """Start work whose result is needed later, in a thread of its own."""
    future: Future[Answer] = Future()

    def work() -> None:
        try:
            future.set_result(compute())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="soon", daemon=True).start()
    return future


@cache
def _threads() -> ThreadPoolExecutor:
    """One pool a process, shared by all who ask: there are only so many cores."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="chunks")
