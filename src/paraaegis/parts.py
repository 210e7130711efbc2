"""The ways to protect values, from which methods.py builds its entries.

Each class provides both sides of the protocol, the client's mechanism and the server's sum, so that they cannot
disagree.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from paraaegis.config import Config
from paraaegis.crypto import lwe
from paraaegis.crypto.ckks import profile
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import ConfigError
from paraaegis.plural import plural
from paraaegis.privacy.budget import Series, constant, noise, shared_noise
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.protocol import encodings
from paraaegis.protocol.mechanisms import EncodedMechanism, LweMechanism, Mechanism
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.sums import CkksSum, FixedPointSum, LweSum, Sum


@dataclass(frozen=True)
class Part(ABC):
    """How some values of an update are protected. With a `series` they are clipped and noised."""

    series: Series | None = None
    divides: ClassVar[bool] = True  # whether it can protect a part of an update as well as all of it
    cipher: ClassVar[str] = ""  # what hides the values from the server

    @property
    def kind(self) -> str:
        """The kind of its payloads, under which a round's record counts their bytes."""
        return self.cipher or "grid"

    def per_ciphertext(self, config: Config) -> int:  # noqa: ARG002
        """How many values are packed into one ciphertext; 0 if each is sent by itself, in four bytes."""
        return 0

    @property
    def noised(self) -> bool:
        """Whether the values always carry noise."""
        return self.series is not None

    def noise(self, config: Config, parts: int) -> Gaussian | None:
        """The noise of the values, if `parts` parts of an update share the budget."""
        return None if self.series is None else noise(config, parts, self.series)

    @abstractmethod
    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:
        """The client's side."""

    @abstractmethod
    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:
        """The server's side: a new sum of this many values."""

    def least_quorum(self, config: Config) -> int:  # noqa: ARG002
        """The smallest quorum at which the values are protected as claimed; it may exceed the number of clients."""
        return 0

    def least_honest(self, config: Config) -> int:  # noqa: ARG002
        """How many clients of a sum must be honest."""
        return 0

    def mask_bits(self, config: Config) -> int | None:  # noqa: ARG002
        """Hardness of the masks in bits, with the fewest honest clients in a sum; None without masks."""
        return None

    def check(self, config: Config, parts: int, length: int | None) -> None:  # noqa: ARG002
        """Refuse a configuration with which this is impossible; `length` is None while the model is not known."""
        self.noise(config, parts)


class Plain(Part):
    """Values in the clear: as they are, or clipped and noised."""

    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:  # noqa: ARG002
        """See Part."""
        gaussian = self.noise(config, parts)
        return EncodedMechanism(encodings.Plain(), gaussian, _carries(config, gaussian))

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:  # noqa: ARG002
        """See Part."""
        return FixedPointSum(length)


class Ckks(Part):
    """Values under CKKS. Without a `series` they carry noise only if privacy.inside_clip is set; clients share it."""

    cipher: ClassVar[str] = "ckks"

    def noise(self, config: Config, parts: int) -> Gaussian | None:
        """See Part."""
        return noise(config, parts, self.series) if self.series else shared_noise(config, parts)

    def per_ciphertext(self, config: Config) -> int:
        """See Part."""
        return profile(config.protect.profile).degree

    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:
        """See Part."""
        gaussian, encoding = self.noise(config, parts), encodings.Ckks(profile(config.protect.profile), pool)
        shared = self.series is None and gaussian is not None
        quorum, colluders = (config.federation.quorum, config.privacy.colluders) if shared else (0, 0)
        return EncodedMechanism(encoding, gaussian, _carries(config, gaussian), quorum, colluders)

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:  # noqa: ARG002
        """See Part."""
        return CkksSum(profile(config.protect.profile), length, pool)

    def check(self, config: Config, parts: int, length: int | None) -> None:
        """See Part."""
        ckks = profile(config.protect.profile)
        if config.sampled > ckks.max_clients:
            raise ConfigError(
                f"profile {ckks.name!r} sums at most {ckks.max_clients} clients, got {config.sampled} per round; "
                "lower federation.clients or federation.fraction, or choose a method that does not encrypt"
            )
        super().check(config, parts, length)


@dataclass(frozen=True)
class Lwe(Part):
    """Values masked by learning with errors. The errors are the noise, and the security of the masks rests on it."""

    series: Series | None = constant
    cipher: ClassVar[str] = "lwe"
    divides: ClassVar[bool] = False

    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:  # noqa: ARG002
        """See Part."""
        gaussian, privacy = noise(config, parts), config.privacy
        return LweMechanism(config.protect.lwe, gaussian, config.federation.quorum, privacy.colluders)

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:  # noqa: ARG002
        """See Part."""
        return LweSum(config.protect.lwe, round_id, length)

    def least_quorum(self, config: Config) -> int:
        """See Part: enough honest clients in every sum, and no two groups that could open two different sums."""
        return _least_quorum(config, lwe.FORMS[config.protect.lwe])

    def least_honest(self, config: Config) -> int:
        """See Part."""
        return lwe.FORMS[config.protect.lwe].least_honest

    def mask_bits(self, config: Config) -> int | None:
        """See Part."""
        return lwe.hardness(lwe.FORMS[config.protect.lwe], config.federation.quorum - config.privacy.colluders)

    def check(self, config: Config, parts: int, length: int | None) -> None:
        """See Part: refuse a run without noise, with too little noise to hide values, or with too small a quorum."""
        if math.isinf(config.privacy.epsilon):
            raise ConfigError(
                f"the security of {config.protect.method} rests on noise, so privacy.epsilon must be finite, got inf"
            )
        quorum, colluders = config.federation.quorum, config.privacy.colluders
        if quorum < (least := self.least_quorum(config)):
            raise ConfigError(_too_few(config, least))
        gaussian = noise(config, parts)
        for sigma in (min(gaussian.sigmas), max(gaussian.sigmas)):  # weights scale clip and σ alike
            lwe.lwe_parameters(gaussian.clip, sigma, length or 1, config.sampled, quorum, colluders)


def _carries(config: Config, gaussian: Gaussian | None) -> bool:
    """Whether what clipping cuts off is added to the next update."""
    return config.protect.carry and gaussian is not None


def _least_quorum(config: Config, form: lwe.Form) -> int:
    colluders = config.privacy.colluders
    return max((config.sampled + colluders) // 2 + 1, colluders + form.least_honest)


def _too_few(config: Config, least: int) -> str:
    """Why masks need a larger quorum or more clients, and what to do about it."""
    form, colluders, sampled = lwe.FORMS[config.protect.lwe], config.privacy.colluders, config.sampled
    fewer = _least_quorum(config, lwe.FORMS["matrix"])
    remedies = [f"federation.quorum = {least}"] if least <= sampled else [f"federation.clients = {least} or more"]
    if form.name == "ring" and fewer <= sampled:
        remedies.append(f"protect.lwe = 'matrix' (slower) with federation.quorum = {fewer}")
    if colluders > 1:
        remedies.append("a lower privacy.colluders")
    return (
        f"{config.protect.method} in {form.name} form with {plural(sampled, 'client')} per round, {colluders} of "
        f"whom may help the server, needs a quorum of {least} or more, got {config.federation.quorum}. Every sum needs "
        f"{form.least_honest} honest clients, otherwise the sum of their secrets reveals too much about a single one, "
        f"and two groups of clients must not be able to open two different sums. Set {', or '.join(remedies)}"
    )
