"""What a round costs: a line a phase in the values of the model and the ciphertexts of a client, bytes by their layout.

The page's explorer evaluates the same data by the same rules; a test compares the two.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from paraaegis.errors import ConfigError
from paraaegis.methods import METHODS
from paraaegis.protocol.schedule import Schedule

Fit = tuple[float, float, float]  # of 1, of values in the model, of ciphertexts that a client sends
PHASES = ("vote", "protect", "reveal")  # a client's; `combine` is the server's
BASE = 150e6  # bytes of a process that has done nothing yet
# Flower, measured with two nodes on two cores (docs/performance.md): seconds an exchange, and a byte of a client's.
FLOWER_EXCHANGE, FLOWER_BYTE = 8.0, 1.6e-7


def priced_as(name: str) -> str:
    """The first method of the registry that costs what this one does; one that is not in it stands for itself."""
    if name not in METHODS:
        return name
    return next(other for other, method in METHODS.items() if method.costs_like == METHODS[name].costs_like)


class MethodCost(msgspec.Struct, kw_only=True):
    """One method: which values travel how, the seconds of one client that has a machine to itself, and in a crowd.

    `crowd` is what each client adds to the wall clock of a round where all of them share this machine.
    """

    inside: Literal["none", "elected", "all"]
    outside: Literal["none", "rest", "all"]
    votes: bool
    exchanges: int
    phases: dict[str, Fit]
    crowd: Fit
    share: float = 0.0  # bytes of key shares for each client of a round


class Machine(msgspec.Struct, kw_only=True):
    """A machine, as it was when it was measured."""

    cores: int
    profile: str
    degree: int  # values in a ciphertext
    cipher_up: float  # bytes of a ciphertext
    cipher_down: float
    header: float  # bytes of everything else in a client's round and direction
    methods: dict[str, MethodCost]
    seconds: float = 0.0  # that the measuring took

    def method(self, name: str) -> MethodCost:
        """The costs of a method, or of the one that costs the same."""
        found = self.methods.get(priced_as(name))
        if found is None:
            raise ConfigError(f"the costs of {name!r} were not measured; known: {', '.join(self.methods)}")
        return found


class Setting(msgspec.Struct, kw_only=True, frozen=True):
    """What is to be estimated. `train` are seconds of one client's training in a round on a core of this machine.

    With a bandwidth (Mbit/s, of each client's own link) every client has such a machine; without one, all share this.
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
    """A whole run. Bytes are one client's; memory is a process's peak, roughly."""

    seconds: float
    bytes_up: float
    bytes_down: float
    phases: dict[str, float]  # seconds of the whole run
    memory_client: float
    memory_server: float


class Load(msgspec.Struct):
    """What one client sends in one round."""

    inside: int
    ciphertexts: int
    outside: int
    votes: int  # bytes of a ballot


def estimate(machine: Machine, setting: Setting) -> Estimate:
    """Seconds, bytes and memory of a run with this setting."""
    cost, schedule = machine.method(setting.method), Schedule(setting.ratio, setting.decay)
    found = Estimate(seconds=0.0, bytes_up=0.0, bytes_down=0.0, phases={}, memory_client=0.0, memory_server=0.0)
    for number in range(1, setting.rounds + 1):
        load = load_of(cost, setting.length, schedule.elected_at(number, setting.length), machine.degree)
        up, down = _traffic(machine, cost, setting, load)
        phases = _phases(machine, cost, setting, load, up + down)
        found.bytes_up += up
        found.bytes_down += down
        for phase, seconds in phases.items():
            found.phases[phase] = found.phases.get(phase, 0.0) + seconds
        client, server = _memory(cost, setting, load, up + down)
        found.memory_client = max(found.memory_client, client)
        found.memory_server = max(found.memory_server, server)
    found.seconds = sum(found.phases.values())
    return found


def load_of(cost: MethodCost, length: int, elected: int, degree: int) -> Load:
    """What a client of this method sends of so many values."""
    inside = {"none": 0, "elected": elected, "all": length}[cost.inside]
    outside = {"none": 0, "rest": length - elected, "all": length}[cost.outside]
    votes = min(4 * elected, (length + 7) // 8) if cost.votes else 0
    return Load(inside, math.ceil(inside / degree), outside, votes)


def _traffic(machine: Machine, cost: MethodCost, setting: Setting, load: Load) -> tuple[float, float]:
    common = machine.header + load.votes + 4 * load.outside + cost.share * setting.clients
    return common + machine.cipher_up * load.ciphertexts, common + machine.cipher_down * load.ciphertexts


def at_once(machine: Machine, clients: int) -> int:
    """How many clients train at the same time where all share a machine."""
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
    """Of a client: the model, its trained copy, the update and what is made of it, for a vote also the secret order.

    Of the server: its sums. Both hold what travels, with Flower in copies.
    """
    vectors = 8 if cost.inside == "elected" and cost.outside == "none" else 6
    orders = 4 if cost.votes else 0  # the order, its inverse, what travels by it, and what it was drawn from
    held = BASE + (4.0 * vectors + 8.0 * orders) * setting.length
    sums = BASE + 16.0 * load.inside + 8.0 * load.outside
    copies = (1, 1) if setting.bandwidth is None else (2, 3)
    return held + copies[0] * traffic, sums + copies[1] * traffic
