"""Measures this machine for the cost model: rounds of the real protocol, with an update that costs nothing to train."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import nnls

from paraaegis.config import make_config
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.profiles import profile
from paraaegis.engines.local import LocalTransport
from paraaegis.files import write_whole
from paraaegis.methods import METHODS, REFERENCE, find_method
from paraaegis.planning.cost import Fit, Machine, MethodCost, load_of, priced_as
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.state import RoundRecord, ServerState
from paraaegis.runs.assemble import assemble, make_keys
from paraaegis.runs.check import resolve
from paraaegis.types import Arrays, Metrics, Vector
from paraaegis.version import __version__

CLIENTS, ROUNDS = 5, 3  # the fewest that LWE masks in ring form allow
SMALL, LARGE = 20_000, 300_000  # values: one chunk, and several for every process
POINTS = ((SMALL, 0.1), (LARGE, 0.01), (LARGE, 0.2))
_OTHERS = {"header", "ballot", "ckks", "shares"}  # kinds of bytes that are not values of four bytes each
_DAY = 86_400.0
_SECONDS = ("vote", "protect", "combine", "reveal")


class NullLearner:
    """A learner that is only a vector of the right length."""

    samples = 947

    def __init__(self, length: int) -> None:
        self._weights = np.zeros(length, dtype=np.float32)

    def initial(self) -> Vector:
        """See Learner."""
        return self._weights

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:  # noqa: ARG002
        """See Learner."""
        return weights, {}

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """See Learner."""
        return weights + delta

    def evaluate(self, weights: Vector) -> Metrics:  # noqa: ARG002
        """See Learner."""
        return {}

    def state(self) -> Arrays:
        """See Learner."""
        return {}

    def load(self, state: object) -> None:
        """See Learner."""


class FixedUpdateLearner(NullLearner):
    """A learner whose update is drawn once."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._update: Vector = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:  # noqa: ARG002
        """See Learner."""
        return weights + self._update, {}


def remembered(chosen: str, progress: Callable[[str], None] = lambda _: None) -> Machine:
    """What was measured within a day, or measured now and remembered in the user's cache folder."""
    path = _place(chosen)
    try:
        fresh = time.time() - path.stat().st_mtime < _DAY
        found = msgspec.json.decode(path.read_bytes(), type=Machine) if fresh else None
    except (OSError, msgspec.DecodeError):
        found = None
    if found is not None and found.cores == os.cpu_count():
        return found
    found = measure(chosen, (), progress)
    with suppress(OSError):  # a cache that cannot be written is no reason to fail
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(msgspec.json.encode(found)))
    return found


def _place(chosen: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "paraaegis" / f"machine-{chosen}-{__version__}.json"


def measure(
    chosen: str = "precise", methods: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> Machine:
    """Play these methods, or all, at a few sizes and fit their lines: two to five seconds each on two cores."""
    start = time.perf_counter()
    machine = Machine(
        cores=os.cpu_count() or 1,
        profile=chosen,
        degree=profile(chosen).degree,
        cipher_up=0.0,
        cipher_down=0.0,
        header=0.0,
        methods={},
    )
    with SecretPool() as secrets, Pool() as pool:
        for method in dict.fromkeys(priced_as(name) for name in methods or METHODS):
            progress(method)
            _measure(machine, method, (secrets, pool))
    machine.seconds = time.perf_counter() - start
    return machine


def _measure(machine: Machine, method: str, pools: tuple[SecretPool, Pool]) -> None:
    points = POINTS if find_method(method).votes else ((SMALL, 1.0), (LARGE, 1.0))
    alone = [_play(machine.profile, method, length, ratio, 1, pools) for length, ratio in points]
    crowd = [_play(machine.profile, method, length, ratio, 0, pools) for length, ratio in points]
    last = alone[-1]
    kinds = last.bytes_up
    cost = MethodCost(
        inside=("elected" if last.agreement is not None else "all") if "ckks" in kinds else "none",
        outside=("rest" if last.agreement is not None else "all") if kinds.keys() - _OTHERS else "none",
        votes=last.agreement is not None,
        exchanges=2 if last.agreement is not None or "shares" in kinds else 1,
        phases={},
        crowd=(0.0, 0.0, 0.0),
    )
    ciphertexts = [load_of(cost, size, round(ratio * size), machine.degree).ciphertexts for size, ratio in points]
    variables = [(1.0, float(point[0]), float(count)) for point, count in zip(points, ciphertexts, strict=True)]
    for phase in _SECONDS:
        # The server's phase is of all clients together, the others are a client's own.
        share = CLIENTS if phase == "combine" else 1
        cost.phases[phase] = _fitted(variables, [record.seconds.get(phase, 0.0) / share for record in alone])
    cost.crowd = _fitted(variables, [record.seconds["wall"] / CLIENTS for record in crowd])
    if "shares" in kinds:
        cost.share = kinds["shares"] / CLIENTS**2
    if "ckks" in kinds:
        machine.cipher_up = kinds["ckks"] / CLIENTS / ciphertexts[-1]
        machine.cipher_down = last.bytes_down["ckks"] / CLIENTS / ciphertexts[-1]
    if method == REFERENCE:
        machine.header = (kinds["header"] + last.bytes_down["header"]) / 2 / CLIENTS
    machine.methods[method] = cost


def _play(
    chosen: str, method: str, length: int, ratio: float, workers: int, pools: tuple[SecretPool, Pool]
) -> RoundRecord:
    """The fastest round after the first, which warms up: other work on the machine only ever adds."""
    settings = [
        f"protect.method={method}",
        f"protect.profile={chosen}",
        f"protect.ratio={ratio}",
        f"federation.clients={CLIENTS}",
        f"federation.rounds={ROUNDS}",
        "privacy.noise=secret",
        "privacy.calibration=tight",
    ]
    config = resolve(make_config({}, settings), [NullLearner.samples])
    learners = dict.fromkeys(config.names, FixedUpdateLearner(length))
    federation = assemble(config, learners, make_keys(config), "client-0", pools)
    records: list[RoundRecord] = []
    LocalTransport(federation.clients, workers=workers).run(
        RoundServer(federation.parameters, federation.server, ServerState()), records.append, lambda _: None
    )
    return min(records[1:], key=lambda record: record.seconds["wall"])


def _fitted(variables: list[tuple[float, float, float]], seconds: list[float]) -> Fit:
    """The line through these points with no negative part; relative errors count, so that small models fit too."""
    weights = [1 / max(value, 1e-6) for value in seconds]
    rows = np.array([[weight * part for part in row] for weight, row in zip(weights, variables, strict=True)])
    found, _ = nnls(rows, np.array([weight * value for weight, value in zip(weights, seconds, strict=True)]))
    return float(found[0]), float(found[1]), float(found[2])
