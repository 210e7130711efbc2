"""The explorer's data: a machine's costs, the noise for a range of budgets, and the measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from paraaegis.methods import METHODS, REFERENCE
from paraaegis.metrics import text
from paraaegis.planning.cost import BASE, FLOWER_BYTE, FLOWER_EXCHANGE, Machine, priced_as
from paraaegis.privacy.calibrate import mu_of
from paraaegis.report.collect import Run

DELTA = 1e-5
BUDGETS = np.geomspace(0.1, 100, 61)


def explorer(machine: Machine, runs: Sequence[Run]) -> dict[str, Any]:
    """Everything the page needs to respond to a slider."""
    names = shown_methods(machine)
    return {
        "machine": msgspec.to_builtins(machine),
        "methods": {name: priced_as(name) for name in names},
        "decaying": [name for name in names if METHODS[name].votes and METHODS[name].ratio != "constant"],
        "noised": [name for name in names if METHODS[name].noised],
        "constants": {"base": BASE, "flowerExchange": FLOWER_EXCHANGE, "flowerByte": FLOWER_BYTE},
        "budgets": [{"epsilon": float(f"{epsilon:.3g}"), "mu": mu_of(float(epsilon), DELTA)} for epsilon in BUDGETS],
        "delta": DELTA,
        "measured": [_measured(run, runs, machine) for run in runs],
        "start": _start(runs),
    }


def shown_methods(machine: Machine) -> list[str]:
    """The methods whose costs are known."""
    return sorted(name for name in METHODS if priced_as(name) in machine.methods)


def _measured(run: Run, runs: Sequence[Run], machine: Machine) -> dict[str, Any]:
    protect, subject = run.config.protect, run.subject
    siblings = (other.length for other in runs if other.subject == subject)
    cost = machine.methods.get(priced_as(run.result.method))
    return {
        "label": run.label,
        "method": run.result.method,
        "ratio": protect.ratio,
        "decay": protect.decay,
        "clients": run.config.sampled,
        "length": run.length or max(siblings, default=0),
        "elects": cost is not None and cost.encrypted == "elected",
        "shared": run.shared,
        "rounds": run.result.rounds,
        "value": "" if run.value != run.value else text(run.metric, run.value),
        "seconds": run.result.seconds / run.result.rounds,
        "up": 1e6 * run.megabytes("up"),
        "down": 1e6 * run.megabytes("down"),
    }


def _start(runs: Sequence[Run]) -> dict[str, Any]:
    """The sliders' initial values: from these runs, with the method of a feedback run or of the first that votes."""
    first = runs[0]
    length = next((run.length for run in runs if run.length), 1_000_000)
    voted = [run for run in runs if run.result.method in METHODS and METHODS[run.result.method].votes]
    example = next((run for run in voted if METHODS[run.result.method].withholds), [*voted, first][0])
    protect, epsilon = example.config.protect, min(example.config.privacy.epsilon, BUDGETS[-1])
    plain = next((run for run in runs if run.result.method == REFERENCE), first)
    train = sum(record.seconds.get("train", 0.0) for record in plain.records) / len(plain.records)
    return {
        "here": all(run.config.engine.name == "local" for run in runs),
        "method": example.result.method,
        "ratio": protect.ratio,
        "decay": protect.decay,
        "budget": int(np.abs(np.log(BUDGETS / epsilon)).argmin()),
        "clients": first.config.sampled,
        "rounds": first.config.federation.rounds,
        "length": length,
        "train": train,
        "clip": first.config.privacy.clip if first.config.privacy.clip < 1e6 else 1.0,
    }
