"""Progress of a running command: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from paraaegis.cli.tables import metrics_text
from paraaegis.metrics import LOSS, choose
from paraaegis.plural import size
from paraaegis.protocol.records import RoundRecord


def _describing(metric: str | None) -> Callable[[RoundRecord], str]:
    """A function that describes a round in one line; it refuses a metric that no round so far reported."""
    names: dict[str, None] = {}

    def describe(record: RoundRecord) -> str:
        names.update(dict.fromkeys(record.metrics))
        return _record_text(record, choose(metric, names))

    return describe


def _record_text(record: RoundRecord, metric: str) -> str:
    shown = {name: value for name, value in record.metrics.items() if name in (metric, LOSS)}
    parts = [metrics_text(shown, metric), f"{record.seconds.get('wall', 0):.1f} s"]
    parts += [f"up {size(sum(record.bytes_up.values()))}", f"down {size(sum(record.bytes_down.values()))}"]
    if not record.clients:
        parts.append("aborted")
    elif record.dropped:
        parts.append(f"without {', '.join(record.dropped)}")
    return "  ".join(part for part in parts if part)


@contextmanager
def shown_rounds(
    rounds: int, title: str, metric: str | None = None, quiet: bool = False
) -> Iterator[Callable[[RoundRecord], None]]:
    """Yield a function that shows each finished round, with this metric and the loss."""
    describe = _describing(metric)
    console = Console(stderr=quiet, markup=False)  # a name may contain brackets
    if not console.is_terminal:
        stream = sys.stderr if quiet else sys.stdout
        stream.write(f"{title}\n")
        yield _plain(rounds, stream, describe)
        return
    columns = (
        TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True, min_width=5)),
        BarColumn(bar_width=8),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("left", table_column=Column(no_wrap=True, min_width=4)),
        TextColumn("{task.fields[now]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    console.print(title, highlight=False)
    with Progress(*columns, console=console, expand=True) as progress:
        task = progress.add_task("", total=rounds, now="")
        yield lambda record: progress.update(task, completed=record.round, now=describe(record))


def _plain(rounds: int, stream: TextIO, describe: Callable[[RoundRecord], str]) -> Callable[[RoundRecord], None]:
    walls: list[float] = []  # seconds per round, including rounds before a restart

    def show(record: RoundRecord) -> None:
        walls.append(record.seconds.get("wall", 0.0))
        left = fmean(walls) * (rounds - record.round)
        stream.write(f"  round {record.round}/{rounds}  {describe(record)}  {left:.0f} s left\n")
        stream.flush()

    return show


@contextmanager
def ticking(title: str, steps: int) -> Iterator[Callable[[], None]]:
    """Yield a function that advances a progress bar on standard error; if that is no terminal, show only the title."""
    console = Console(stderr=True)
    if not console.is_terminal:
        sys.stderr.write(f"{title}\n")
        yield lambda: None
        return
    with Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn(), console=console
    ) as progress:
        task = progress.add_task(title, total=steps)
        yield lambda: progress.update(task, advance=1)
