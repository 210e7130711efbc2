"""metrics.jsonl: what clients measure in each round, in training and on their hold-out data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from paraaegis.files import write_whole
from paraaegis.types import Metrics


class MetricsLog:
    """A file with one line per measurement. Appended to, so a line that a kill cut off is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, **fields: str) -> Callable[[str, int, Metrics], None]:
        """A function that writes the metrics of `train` or `evaluate` in a round, with these fields."""

        def write(method: str, number: int, metrics: Metrics) -> None:
            line = {**fields, "round": number, "from": method, "metrics": metrics}
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")

        return write

    def truncate(self, **last: int) -> None:
        """Remove the lines of rounds after these last ones, by method: the rounds are repeated."""
        if not self.path.exists():
            return
        lines = self.path.read_bytes().split(b"\n")[:-1]
        kept = [line for line in lines if (read := msgspec.json.decode(line))["round"] <= last[read["from"]]]
        write_whole(self.path, lambda file: file.writelines(line + b"\n" for line in kept))
