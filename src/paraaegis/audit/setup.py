"""The setup of an audit: the real halves of a method, clients of unequal weight with secret noise, and a canary."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.config import Config
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.shuffle import secret_order
from paraaegis.errors import ConfigError
from paraaegis.fixed_point import STEP
from paraaegis.methods import method_of
from paraaegis.privacy.calibrate import epsilon_of, remark_epsilon, remark_sensitivity
from paraaegis.privacy.guarantee import sensitivity
from paraaegis.privacy.ledger import ELECTED
from paraaegis.protocol.contexts import RevealContext, UploadContext
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.protect import Protected
from paraaegis.runs import assemble
from paraaegis.seeds import Purpose
from paraaegis.types import FixedPoint, Mask, Vector

CANARY = 10.0  # norm of each part of the canary, in clips
LIGHT = 1 / 8  # weight of the other clients, relative to the first
HONEST = 2  # clients whose shared noise stays secret


def audited(config: Config, rounds: int, mu: float, length: int) -> Config:
    """The same mechanism with secret noise, few clients and rounds, and a total budget of `mu` per client."""
    privacy, samples = config.privacy, max(1, config.federation.min_samples)
    check_finite(config)
    quorum = privacy.colluders + HONEST
    if privacy.calibration == "tight":
        epsilon = epsilon_of(mu, privacy.delta)
    else:  # the ε that the Remark assigns to noise whose exact client-level μ is `mu`
        change = remark_sensitivity(privacy.clip, samples) / sensitivity(privacy.clip, privacy.unit)
        epsilon = remark_epsilon((mu * change) ** 2, privacy.delta)
    federation = msgspec.structs.replace(
        config.federation, clients=quorum, names=(), quorum=quorum, rounds=rounds, fraction=1.0, min_samples=samples
    )
    privacy = msgspec.structs.replace(privacy, epsilon=epsilon, sigma=0.0, participations=0, floor=0, noise="secret")
    protect = msgspec.structs.replace(config.protect, ratio=0.5, carry=False)
    point = msgspec.structs.replace(config, federation=federation, privacy=privacy, protect=protect)
    method_of(point).check(point, length)
    return point


def check_finite(config: Config) -> None:
    """Refuse a configuration without noise or clipping."""
    privacy = config.privacy
    if math.isinf(privacy.epsilon) or math.isinf(privacy.clip):
        raise ConfigError(
            f"there is no noise to audit: privacy.epsilon and privacy.clip must be finite, got {privacy.epsilon} and "
            f"{privacy.clip}"
        )


class Mechanism:
    """A method wired as in a run of this configuration, for updates of `length` values."""

    def __init__(self, config: Config, length: int) -> None:
        method = method_of(config)
        self.config, self.length, self.names = config, length, config.names
        self.half, self.server = method.client(config), method.server(config)
        self._step = Root.new().begin("audit").step  # one for all rounds: the noise is audited, not the keys
        self.partition = _halves(self._step, length) if self.half.votes else None
        self.weights = _weights(len(self.names))
        self.noised = {part.what: (part, part.noise) for part in self.half.exposures if part.noise}
        signs = np.random.default_rng().choice([-1.0, 1.0], length)
        self.directions = {what: _unit(signs, self.mask_of(what)) for what in self.noised}
        self.canary = self._canary()
        self.start()

    def start(self) -> None:
        """Set up every client's source of noise, as a run does when it starts."""
        self._noise = [assemble.draw(self.config, Purpose.NOISE, index) for index in range(len(self.names))]

    def mask_of(self, what: str) -> Mask:
        """Which values belong to a part of the update."""
        if self.partition is None:
            return np.ones(self.length, dtype=np.bool_)
        return self.partition.elected if what == ELECTED else ~self.partition.elected

    def round_id(self, number: int, attempt: int) -> RoundId:
        """The address of a round's messages."""
        return RoundId("audit", self.config.protect.method, self.length, number, attempt)

    def reveal_context(self, number: int, attempt: int, counted: int = 0) -> RevealContext:
        """The context for revealing the aggregate of this round and attempt, a sum over so many uploads."""
        round_id = self.round_id(number, attempt)
        return RevealContext(round_id, self._step, len(self.names), self.weights[0], self.partition, counted)

    def upload_context(self, index: int, number: int, attempt: int) -> UploadContext:
        """The context for a client's upload in this round and attempt."""
        return UploadContext(
            round_id=self.round_id(number, attempt),
            step=self._step,
            clients=len(self.names),
            heaviest=self.weights[0],
            partition=self.partition,
            weight=self.weights[index],
            rng=self._noise[index](number, attempt),
            name=self.names[index],
            members=self.names,
        )

    def protect(self, update: Vector, index: int, number: int, attempt: int) -> Protected:
        """A client's upload."""
        return self.half.protect(update, self.upload_context(index, number, attempt))

    def steps(self, upload: Protected) -> FixedPoint:
        """What an upload adds to the sum, in parameter order."""
        if self.partition is None:
            return upload.parts[0]
        elected, *rest = upload.parts
        return self.partition.merge(elected, rest[0] if rest else None)

    def worth(self, number: int) -> float:
        """What one step of an upload adds to the weighted sum of updates."""
        return self.half.worth(self.reveal_context(number, 0), self.length) * STEP

    def _canary(self) -> Vector:
        canary = np.zeros(self.length)
        for what, (_, noise) in self.noised.items():
            canary += CANARY * noise.clip * self.directions[what]
        return canary.astype(np.float32)


def _weights(clients: int) -> list[float]:
    """The weights of one heavy client, the first, and of light ones; they add up to 1."""
    raw = [1.0, *[LIGHT] * (clients - 1)]
    return [weight / sum(raw) for weight in raw]


def _halves(step: bytes, length: int) -> Partition:
    """A partition with the first half of the values elected."""
    return Partition.of(np.arange(length) < length // 2, secret_order(step, length))


def _unit(signs: NDArray[np.float64], mask_of: Mask) -> NDArray[np.float64]:
    """A vector of norm 1 over the values of a part."""
    return np.where(mask_of, signs, 0.0) / math.sqrt(np.count_nonzero(mask_of))
