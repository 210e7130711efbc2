"""Compare the cost model's predictions with measurements: the quick comparison's methods and ratios on IID data.

    python benchmarks/cost_model.py

Measures this machine and the training time (by plain averaging), and runs the comparison's rows. Exits with status 1 if
a prediction is off by more than 20 %. A shared machine's speed changes from minute to minute, so it is measured again
for every row, training both before and after the row, and times are of the median round.
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
from paraaegis.protocol.records import RoundRecord
from paraaegis.runs.experiment import model_length
from paraaegis.runs.folder import RunFolder

LIMIT = 0.2


def lines_of(cell: Cell, place: Path) -> list[RoundRecord]:
    """Run a cell; return the records of its rounds."""
    run(cell.config, place)
    return RunFolder(place).read_records()


def wall(lines: list[RoundRecord]) -> float:
    """Seconds of the median round, without the first."""
    return median(line.seconds["wall"] for line in lines[1:])


def predicted(machine: Machine, cell: Cell, length: int, train: float) -> tuple[float, float, float]:
    """Predicted seconds, bytes up and bytes down of a round, for all clients together."""
    config = cell.config
    run_estimate = estimate(
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
    per_round = config.sampled / rounds
    return run_estimate.seconds / rounds, run_estimate.bytes_up * per_round, run_estimate.bytes_down * per_round


def main() -> int:
    """Print predicted and measured costs; return 1 if a prediction is off by more than the limit."""
    cells = [cell for cell in cells_of(read_preset("quick"), []) if cell.split == "iid"]
    plain = next(cell for cell in cells if cell.label == "fedavg")
    length, worst = model_length(plain.config.model.name, plain.config), 0.0
    print(f"{'':30} {'seconds per round':>24} {'MB up per round':>20} {'MB down per round':>20}")
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
    print(f"predicted / measured; the largest error is {100 * worst:.0f}%, the limit {100 * LIMIT:.0f}%")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
