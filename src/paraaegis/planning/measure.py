"""Measure this machine for the cost model: rounds of the real protocol, with updates that need no training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import nnls

from paraaegis.config import PROFILES, Config, make_config
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.engines.local import LocalTransport
from paraaegis.files import write_whole
from paraaegis.methods import METHODS, REFERENCE, Method, find_method
from paraaegis.planning.cost import Fit, Machine, MethodCost, Share, load_of, priced_as
from paraaegis.privacy.ledger import ELECTED, REST, WHOLE
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import assemble, make_keys
from paraaegis.runs.check import resolve
from paraaegis.types import Arrays, Metrics, Vector
from paraaegis.version import __version__

CLIENTS, ROUNDS = 5, 3  # masks need three clients or more
SMALL, LARGE = 20_000, 300_000  # values: one chunk, and several per process
POINTS = ((SMALL, 0.1), (LARGE, 0.01), (LARGE, 0.2))
_SHARES: dict[str, Share] = {ELECTED: "elected", REST: "rest", WHOLE: "all"}
_DAY = 86_400.0
_SECONDS = ("vote", "protect", "combine", "reveal")


class NullLearner:
    """A learner that only holds a vector of the right length."""

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
    """A learner whose update is drawn once and then stays the same."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._update: Vector = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:  # noqa: ARG002
        """See Learner."""
        return weights + self._update, {}


def remembered(chosen: str, progress: Callable[[str], None] = lambda _: None) -> Machine:
    """The costs of this machine: from the user's cache folder if measured within a day, otherwise measured now."""
    path = _place(chosen)
    try:
        fresh = time.time() - path.stat().st_mtime < _DAY
        machine = msgspec.json.decode(path.read_bytes(), type=Machine) if fresh else None
    except (OSError, msgspec.DecodeError):
        machine = None
    if machine is not None and machine.cores == os.cpu_count():
        return machine
    machine = measure(chosen, (), progress)
    with suppress(OSError):  # an unwritable cache is no reason to fail
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(msgspec.json.encode(machine)))
    return machine


def _place(profile_name: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "paraaegis" / f"machine-{profile_name}-{__version__}.json"


def measure(
    chosen: str = "precise", methods: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> Machine:
    """Run these methods, or all, at a few sizes and fit the cost model: two to five seconds each on two cores."""
    start = time.perf_counter()
    machine = Machine(
        cores=os.cpu_count() or 1,
        profile=chosen,
        header=0.0,
        methods={},
    )
    with SecretPool() as secrets, Pool() as pool:
        for method in dict.fromkeys(priced_as(name) for name in methods or METHODS):
            progress(method)
            _measure(machine, method, (secrets, pool))
    machine.seconds = time.perf_counter() - start
    return machine


def _measure(machine: Machine, name: str, pools: tuple[SecretPool, Pool]) -> None:
    method = find_method(name)
    points = POINTS if method.votes else ((SMALL, 1.0), (LARGE, 1.0))
    configs = [_config(machine.profile, name, ratio) for _, ratio in points]
    alone = [_play(config, length, 1, pools) for config, (length, _) in zip(configs, points, strict=True)]
    crowd = [_play(config, length, 0, pools) for config, (length, _) in zip(configs, points, strict=True)]
    last = alone[-1]
    kinds = last.bytes_up
    cost = _layout(method, configs[0])
    cost.exchanges += "shares" in kinds
    ciphertexts = [load_of(cost, size, round(ratio * size)).ciphertexts for size, ratio in points]
    variables = [(1.0, float(point[0]), float(count)) for point, count in zip(points, ciphertexts, strict=True)]
    for phase in _SECONDS:
        # The server's phase covers all clients; the others are per client.
        share = CLIENTS if phase == "combine" else 1
        cost.phases[phase] = _fitted(variables, [record.seconds.get(phase, 0.0) / share for record in alone])
    cost.crowd = _fitted(variables, [record.seconds["wall"] / CLIENTS for record in crowd])
    if "shares" in kinds:
        cost.share_up = kinds["shares"] / CLIENTS**2
        cost.share_down = last.bytes_down["shares"] / CLIENTS**2
    if cost.per_ciphertext:
        (kind,) = (part.kind(configs[-1]) for share, part in method.parts.items() if _SHARES[share] == cost.encrypted)
        cost.cipher_up = kinds[kind] / CLIENTS / ciphertexts[-1]
        cost.cipher_down = last.bytes_down[kind] / CLIENTS / ciphertexts[-1]
    if name == REFERENCE:
        machine.header = (kinds["header"] + last.bytes_down["header"]) / 2 / CLIENTS
    machine.methods[name] = cost


def _layout(method: Method, config: Config) -> MethodCost:
    """A cost without figures: how a method's values travel."""
    sizes = {_SHARES[name]: part.per_ciphertext(config) for name, part in method.parts.items()}
    none: Share = "none"
    encrypted = next((share for share, size in sizes.items() if size), none)
    return MethodCost(
        encrypted=encrypted,
        in_clear=next((share for share, size in sizes.items() if not size), none),
        votes=method.votes,
        exchanges=1 + method.votes,
        phases={},
        crowd=(0.0, 0.0, 0.0),
        per_ciphertext=sizes.get(encrypted, 0),
    )


def _config(profile_name: str, method: str, ratio: float) -> Config:
    settings = [
        f"protect.method={method}",
        f"protect.cipher={next(cipher for cipher, names in PROFILES.items() if profile_name in names)}",
        f"protect.profile={profile_name}",
        f"protect.ratio={ratio}",
        f"federation.clients={CLIENTS}",
        f"federation.rounds={ROUNDS}",
        "privacy.noise=secret",
        "privacy.calibration=tight",
    ]
    return resolve(make_config({}, settings), [NullLearner.samples])


def _play(config: Config, length: int, workers: int, pools: tuple[SecretPool, Pool]) -> RoundRecord:
    """The fastest round after the first, which warms up; other work on the machine can only add time."""
    learners = {name: FixedUpdateLearner(length) for name in config.names}
    federation = assemble(config, learners, make_keys(config), "client-0", pools)
    records: list[RoundRecord] = []
    LocalTransport(federation.clients, workers=workers).run(
        RoundServer(federation.parameters, federation.server, ServerState()), records.append, lambda _: None
    )
    return min(records[1:], key=lambda record: record.seconds["wall"])


def _fitted(variables: list[tuple[float, float, float]], seconds: list[float]) -> Fit:
    """A linear fit with nonnegative coefficients. It minimises relative errors, so that small models fit too."""
    weights = [1 / max(value, 1e-6) for value in seconds]
    rows = np.array([[weight * part for part in row] for weight, row in zip(weights, variables, strict=True)])
    factors, _ = nnls(rows, np.array([weight * value for weight, value in zip(weights, seconds, strict=True)]))
    return float(factors[0]), float(factors[1]), float(factors[2])
