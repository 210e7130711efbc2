"""The cost model of a run.

The seconds of a phase are linear in the number of values in the model and the number of ciphertexts per client; bytes
follow from the layout of the messages. The explorer of the report page evaluates the same data by the same rules; a
test compares the two.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from paraaegis.errors import ConfigError
from paraaegis.methods import METHODS
from paraaegis.protocol.gaps import typical_size
from paraaegis.protocol.schedule import Schedule

Fit = tuple[float, float, float]  # seconds: constant, per value in the model, per ciphertext that a client sends
Share = Literal["none", "elected", "rest", "all"]  # of the values of an update
PHASES = ("vote", "protect", "reveal")  # of a client; `combine` is the server's
BASE = 150e6  # bytes of memory of an idle process
# Flower, measured with two nodes on two cores (docs/performance.md): seconds per exchange, and per byte of a client.
FLOWER_EXCHANGE, FLOWER_BYTE = 8.0, 1.6e-7


def priced_as(name: str) -> str:
    """The first method in the registry with the same costs as this one; an unknown name is returned unchanged."""
    if name not in METHODS:
        return name
    return next(other for other, method in METHODS.items() if method.costs_like == METHODS[name].costs_like)


class MethodCost(msgspec.Struct, kw_only=True):
    """The costs of one method: how its values travel, and seconds by phase of one client with a machine to itself.

    `crowd` is what each client adds to the wall-clock time of a round if all clients share this machine.
    """

    encrypted: Share  # which values are packed into ciphertexts or pairs of residues
    in_clear: Share  # which are sent by themselves, in four bytes each
    votes: bool
    exchanges: int
    phases: dict[str, Fit]
    crowd: Fit
    share_up: float = 0.0  # bytes of key shares per client of a round
    share_down: float = 0.0  # also of their sums, if clients open the sum
    per_ciphertext: int = 0  # values
    cipher_up: float = 0.0  # bytes per ciphertext
    cipher_down: float = 0.0


class Machine(msgspec.Struct, kw_only=True):
    """The measured costs of one machine."""

    cores: int
    profile: str
    header: float  # bytes of everything else per client, round and direction
    methods: dict[str, MethodCost]
    seconds: float = 0.0  # taken by the measurement

    def method(self, name: str) -> MethodCost:
        """The costs of a method, or of the one with the same costs."""
        cost = self.methods.get(priced_as(name))
        if cost is None:
            raise ConfigError(f"the costs of {name!r} were not measured; known: {', '.join(self.methods)}")
        return cost


class Setting(msgspec.Struct, kw_only=True, frozen=True):
    """What to estimate. `train` is the seconds that one client trains per round on a core of this machine.

    With a bandwidth (Mbit/s of each client's own link), every client has a machine like this one; otherwise all share
    it.
    """

    method: str
    length: int
    clients: int
    rounds: int
    ratio: float = 0.1
    decay: float = 1.0
    train: float = 0.0
    bandwidth: float | None = None


class Estimate(msgspec.Struct, kw_only=True):
    """The estimate for a whole run. Bytes are per client; memory is the rough peak of a process."""

    seconds: float
    bytes_up: float
    bytes_down: float
    phases: dict[str, float]  # seconds in the whole run
    memory_client: float
    memory_server: float


class Load(msgspec.Struct):
    """What one client sends in one round."""

    encrypted: int
    ciphertexts: int
    in_clear: int
    votes: float  # bytes of a typical ballot


def estimate(machine: Machine, setting: Setting) -> Estimate:
    """Estimate seconds, bytes and memory of a run with this setting."""
    cost, schedule = machine.method(setting.method), Schedule(setting.ratio, setting.decay)
    total = Estimate(seconds=0.0, bytes_up=0.0, bytes_down=0.0, phases={}, memory_client=0.0, memory_server=0.0)
    for number in range(1, setting.rounds + 1):
        load = load_of(cost, setting.length, schedule.elected_at(number, setting.length))
        up, down = _traffic(machine, cost, setting, load)
        phases = _phases(machine, cost, setting, load, up + down)
        total.bytes_up += up
        total.bytes_down += down
        for phase, seconds in phases.items():
            total.phases[phase] = total.phases.get(phase, 0.0) + seconds
        client, server = _memory(cost, setting, load, up + down)
        total.memory_client = max(total.memory_client, client)
        total.memory_server = max(total.memory_server, server)
    total.seconds = sum(total.phases.values())
    return total


def load_of(cost: MethodCost, length: int, elected: int) -> Load:
    """What a client of this method sends of `length` values, `elected` of them elected."""
    values = {"none": 0, "elected": elected, "rest": length - elected, "all": length}
    encrypted = values[cost.encrypted]
    ciphertexts = math.ceil(encrypted / cost.per_ciphertext) if encrypted else 0
    votes = typical_size(min(elected, length - elected), length) if cost.votes else 0.0
    return Load(encrypted, ciphertexts, values[cost.in_clear], votes)


def _traffic(machine: Machine, cost: MethodCost, setting: Setting, load: Load) -> tuple[float, float]:
    common = machine.header + load.votes + 4 * load.in_clear
    up = common + cost.cipher_up * load.ciphertexts + cost.share_up * setting.clients
    return up, common + cost.cipher_down * load.ciphertexts + cost.share_down * setting.clients


def at_once(machine: Machine, clients: int) -> int:
    """How many clients train at the same time if all share a machine."""
    return min(machine.cores, clients)


def _phases(machine: Machine, cost: MethodCost, setting: Setting, load: Load, traffic: float) -> dict[str, float]:
    """Seconds of one round."""
    variables = (1.0, setting.length, load.ciphertexts)
    if setting.bandwidth is None:
        train = setting.clients * setting.train / at_once(machine, setting.clients)
        return {"train": train, "protect": setting.clients * _dot(cost.crowd, variables)}
    alone = {phase: _dot(cost.phases[phase], variables) for phase in PHASES if phase in cost.phases}
    combine = setting.clients * _dot(cost.phases["combine"], variables)
    transfer = 8 * traffic / (1e6 * setting.bandwidth)
    flower = FLOWER_EXCHANGE * cost.exchanges + FLOWER_BYTE * traffic
    return {"train": setting.train, **alone, "combine": combine, "transfer": transfer, "Flower": flower}


def _dot(fit: Fit, variables: tuple[float, float, float]) -> float:
    return sum(factor * variable for factor, variable in zip(fit, variables, strict=True))


def _memory(cost: MethodCost, setting: Setting, load: Load, traffic: float) -> tuple[float, float]:
    """Bytes of memory of a client and of the server.

    A client holds the model, its trained copy, the update and what is derived from it, and the secret order if it
    votes. The server holds its sums. Both hold the messages, and with Flower several copies of them.
    """
    vectors = 8 if cost.encrypted == "elected" and cost.in_clear == "none" else 6
    orders = 4 if cost.votes else 0  # the order, its inverse, the reordered values, and what the order was drawn from
    held = BASE + (4.0 * vectors + 8.0 * orders) * setting.length
    sums = BASE + 16.0 * load.encrypted + 8.0 * load.in_clear
    copies = (1, 1) if setting.bandwidth is None else (2, 3)
    return held + copies[0] * traffic, sums + copies[1] * traffic
