"""Work in threads, which pays off where numpy releases the GIL: chunks of a long vector, and background work."""

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
_callers = 0  # threads inside `parallel_map` now


def threads(asked: int) -> int:
    """The number of workers: as many as were asked for, or one per core for 0."""
    return asked or os.cpu_count() or 1


def parallel_map(work: Callable[[int, Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Call `work(index, item)` for each item in parallel; return the results in order.

    The calling thread works too, helped by as many threads as its share of the cores allows: ten clients on ten cores
    get no helpers.
    """
    global _callers
    numbered = list(enumerate(items))
    todo, answers = iter(numbered), dict[int, Answer]()  # threads can share this iterator

    def take() -> None:
        try:
            for index, item in todo:
                answers[index] = work(index, item)
        except BaseException:
            for _ in todo:  # so that no thread starts another item
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
    """Cancel the helpers that have not started, and wait for the others."""
    started = [helper for helper in helpers if not helper.cancel()]
    wait(started)
    for helper in started:
        helper.result()


def in_background(compute: Callable[[], Answer]) -> Future[Answer]:
    """Start work whose result is needed later, in its own thread."""
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
    """One pool per process, shared by all callers, since the cores are shared too."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="chunks")
