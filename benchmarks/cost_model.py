"""The cost model beside what it predicts: the quick comparison, every method and ratio on IID data.

    python benchmarks/cost_model.py

Measures this machine and the time of training, by plain averaging, and runs the comparison's rows. Ends with 1 if a
prediction is off by more than a fifth. A shared machine's speed changes from minute to minute: it is measured at every
row, training before and after it, and seconds are the median round's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from paraaegis.comparisons.preset import Cell, cells_of, read_preset
from paraaegis.launch import run
from paraaegis.planning.cost import Machine, Setting, at_once, estimate
from paraaegis.planning.measure import measure
from paraaegis.protocol.state import RoundRecord
from paraaegis.runs.experiment import model_length
from paraaegis.runs.folder import RunFolder

LIMIT = 0.2


def lines_of(cell: Cell, place: Path) -> list[RoundRecord]:
    """The rounds of a cell."""
    run(cell.config, place)
    return RunFolder(place).read_records()


def wall(lines: list[RoundRecord]) -> float:
    """Seconds of the median round, the first one left out."""
    return median(line.seconds["wall"] for line in lines[1:])


def predicted(machine: Machine, cell: Cell, length: int, train: float) -> tuple[float, float, float]:
    """Seconds, bytes up and bytes down of a round, all clients together."""
    config = cell.config
    found = estimate(
        machine,
        Setting(
            method=config.protect.method,
            length=length,
            clients=config.sampled,
            rounds=config.federation.rounds,
            ratio=config.protect.ratio,
            decay=config.protect.decay,
            train=train,
        ),
    )
    rounds = config.federation.rounds
    return found.seconds / rounds, found.bytes_up * config.sampled / rounds, found.bytes_down * config.sampled / rounds


def main() -> int:
    """Print predicted beside measured; 1 if one is off by more than the limit."""
    cells = [cell for cell in cells_of(read_preset("quick"), []) if cell.split == "iid"]
    plain = next(cell for cell in cells if cell.label == "fedavg")
    length, worst = model_length(plain.config.model.name, plain.config), 0.0
    print(f"{'':30} {'seconds a round':>24} {'MB up a round':>20} {'MB down a round':>20}")
    with tempfile.TemporaryDirectory() as folder:
        before = wall(lines_of(plain, Path(folder) / "first"))
        for number, cell in enumerate(cells):
            machine = measure(methods=("fedavg", cell.config.protect.method))
            lines = lines_of(cell, Path(folder) / str(number))
            after = wall(lines_of(plain, Path(folder) / f"after-{number}"))
            clients = plain.config.sampled
            unprotected = estimate(machine, Setting(method="fedavg", length=length, clients=clients, rounds=1)).seconds
            train = ((before + after) / 2 - unprotected) / clients * at_once(machine, clients)
            expected = predicted(machine, cell, length, train)
            before = after
            ups = sum(sum(line.bytes_up.values()) for line in lines) / len(lines)
            downs = sum(sum(line.bytes_down.values()) for line in lines) / len(lines)
            measured = (wall(lines), ups, downs)
            errors = [abs(a / b - 1) for a, b in zip(expected, measured, strict=True)]
            worst = max(worst, *errors)
            shown = [f"{expected[0]:.3f} / {measured[0]:.3f} {100 * errors[0]:4.0f}%"]
            shown += [f"{a / 1e6:.2f} / {b / 1e6:.2f} {100 * e:3.0f}%" for a, b, e in
                      zip(expected[1:], measured[1:], errors[1:], strict=True)]  # fmt: skip
            print(f"{cell.label:30} {shown[0]:>24} {shown[1]:>20} {shown[2]:>20}", flush=True)
    print(f"predicted / measured; the worst is off by {100 * worst:.0f}%, allowed are {100 * LIMIT:.0f}%")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
