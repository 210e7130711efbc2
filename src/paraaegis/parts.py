"""The ways to protect values, from which methods.py builds its entries.

Each class provides both sides of the protocol, the client's mechanism and the server's sum, so that they cannot
disagree.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from paraaegis.config import Config
from paraaegis.crypto import lwe, rlwe
from paraaegis.crypto.ckks import profile
from paraaegis.crypto.lwe import hardness
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import ConfigError
from paraaegis.plural import plural
from paraaegis.privacy.budget import Series, constant, noise, shared_noise
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.protocol import encodings
from paraaegis.protocol.mechanisms import EncodedMechanism, LweMechanism, Mechanism
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.sums import CkksSum, FixedPointSum, MatrixSum, OpenedRlweSum, RingSum, RlweSum, Sum


@dataclass(frozen=True)
class Part(ABC):
    """How some values of an update are protected. With a `series` they are clipped and noised."""

    series: Series | None = None
    divides: ClassVar[bool] = True  # whether it can protect a part of an update as well as all of it
    hides: ClassVar[bool] = False  # whether the server cannot read the values

    def kind(self, config: Config) -> str:  # noqa: ARG002
        """The kind of its payloads, under which a round's record counts their bytes."""
        return "grid"

    def per_ciphertext(self, config: Config) -> int:  # noqa: ARG002
        """How many values are packed into one ciphertext or pair of residues; 0 if each is sent in four bytes."""
        return 0

    @property
    def noised(self) -> bool:
        """Whether the values always carry noise."""
        return self.series is not None

    def noise(self, config: Config, parts: int) -> Gaussian | None:
        """The noise of the values, if `parts` parts of an update share the budget."""
        return noise(config, parts, self.series) if self.series and config.privacy.unit != "record" else None

    @abstractmethod
    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:
        """The client's side."""

    @abstractmethod
    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:
        """The server's side: a new sum of this many values."""

    def least_quorum(self, config: Config) -> int:  # noqa: ARG002
        """The smallest quorum at which the values are protected as claimed; it may exceed the number of clients."""
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


class Encrypted(Part):
    """Values under `protect.cipher`. Without a `series` they carry noise only if privacy.inside_clip is set.

    Clients share that noise.
    """

    hides: ClassVar[bool] = True

    def kind(self, config: Config) -> str:
        """See Part."""
        return config.protect.cipher

    def noise(self, config: Config, parts: int) -> Gaussian | None:
        """See Part."""
        return super().noise(config, parts) if self.series else shared_noise(config, parts)

    def per_ciphertext(self, config: Config) -> int:
        """See Part."""
        return CIPHERS[config.protect.cipher].per_ciphertext(config)

    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:
        """See Part."""
        gaussian, encoding = self.noise(config, parts), CIPHERS[config.protect.cipher].encoding(config, pool)
        shared = self.series is None and gaussian is not None
        quorum, colluders = (config.federation.quorum, config.privacy.colluders) if shared else (0, 0)
        return EncodedMechanism(encoding, gaussian, _carries(config, gaussian), quorum, colluders)

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:
        """See Part."""
        return CIPHERS[config.protect.cipher].sum(config, round_id, length, pool)

    def least_quorum(self, config: Config) -> int:
        """See Part."""
        return CIPHERS[config.protect.cipher].least_quorum(config)

    def mask_bits(self, config: Config) -> int | None:
        """See Part."""
        return CIPHERS[config.protect.cipher].mask_bits(config)

    def check(self, config: Config, parts: int, length: int | None) -> None:
        """See Part."""
        CIPHERS[config.protect.cipher].check(config)
        super().check(config, parts, length)


class Cipher(Protocol):
    """What `protect.cipher` names."""

    def encoding(self, config: Config, pool: SecretPool | None) -> encodings.Encoding:
        """The client's side."""

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:
        """The server's side."""

    def per_ciphertext(self, config: Config) -> int:
        """How many values are packed into one ciphertext."""

    def least_quorum(self, config: Config) -> int:
        """See Part."""

    def mask_bits(self, config: Config) -> int | None:
        """See Part."""

    def check(self, config: Config) -> None:
        """Refuse what it cannot encrypt."""


class Ckks:
    """The paper's cipher: a key for every round, which all clients have."""

    def encoding(self, config: Config, pool: SecretPool | None) -> encodings.Encoding:
        """See Cipher."""
        return encodings.Ckks(profile(config.protect.profile), pool)

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:  # noqa: ARG002
        """See Cipher."""
        return CkksSum(profile(config.protect.profile), length, pool)

    def per_ciphertext(self, config: Config) -> int:
        """See Cipher."""
        return profile(config.protect.profile).degree

    def least_quorum(self, config: Config) -> int:  # noqa: ARG002
        """See Cipher."""
        return 0

    def mask_bits(self, config: Config) -> int | None:  # noqa: ARG002
        """See Cipher."""
        return None

    def check(self, config: Config) -> None:
        """See Cipher."""
        _check_clients(config, profile(config.protect.profile).max_clients)


class Rlwe:
    """One-time secrets: no key opens a single upload, and the clients' shares open only sums over a quorum."""

    def encoding(self, config: Config, pool: SecretPool | None) -> encodings.Encoding:  # noqa: ARG002
        """See Cipher."""
        profile, quorum = rlwe.PROFILES[config.protect.profile], config.federation.quorum
        return encodings.Rlwe(profile, quorum, config.protect.reveal)

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:  # noqa: ARG002
        """See Cipher."""
        profile = rlwe.PROFILES[config.protect.profile]
        return (
            OpenedRlweSum(profile, length, round_id) if config.protect.reveal == "server" else RlweSum(profile, length)
        )

    def per_ciphertext(self, config: Config) -> int:
        """See Cipher: one coefficient."""
        return rlwe.PROFILES[config.protect.profile].lanes

    def least_quorum(self, config: Config) -> int:
        """See Cipher."""
        return _least_quorum(config)

    def mask_bits(self, config: Config) -> int | None:
        """See Cipher."""
        return hardness(rlwe.SECURITY, config.federation.quorum - config.privacy.colluders)

    def check(self, config: Config) -> None:
        """See Cipher: too many clients, or too small a quorum."""
        _check_clients(config, rlwe.PROFILES[config.protect.profile].max_clients)
        _check_quorum(config, "protect.cipher = 'rlwe'")


LEAST_HONEST = 2  # clients of a sum: the secrets and errors of one alone are what the sum reveals
CIPHERS: dict[str, Cipher] = {"ckks": Ckks(), "rlwe": Rlwe()}


def _check_clients(config: Config, most: int) -> None:
    if config.sampled > most:
        raise ConfigError(
            f"profile {config.protect.profile!r} sums at most {most} clients, got {config.sampled} per round; "
            "lower federation.clients or federation.fraction, or choose a method that does not encrypt"
        )


@dataclass(frozen=True)
class Lwe(Part):
    """Values masked by learning with errors. The errors are the noise, and the security of the masks rests on it."""

    series: Series | None = constant
    hides: ClassVar[bool] = True
    divides: ClassVar[bool] = False

    def kind(self, config: Config) -> str:  # noqa: ARG002
        """See Part."""
        return "lwe"

    def per_ciphertext(self, config: Config) -> int:
        """See Part: in ring form, two values travel as one pair of residues."""
        return 2 if config.protect.lwe == "ring" else 0

    def mechanism(self, config: Config, parts: int, pool: SecretPool | None) -> Mechanism:  # noqa: ARG002
        """See Part."""
        gaussian, privacy = noise(config, parts), config.privacy
        return LweMechanism(lwe.FORMS[config.protect.lwe], gaussian, config.federation.quorum, privacy.colluders)

    def sum(self, config: Config, round_id: RoundId, length: int, pool: Pool | None) -> Sum:  # noqa: ARG002
        """See Part."""
        return (RingSum if config.protect.lwe == "ring" else MatrixSum)(length, round_id)

    def least_quorum(self, config: Config) -> int:
        """See Part: enough honest clients in every sum, and no two groups that could open two different sums."""
        return _least_quorum(config)

    def mask_bits(self, config: Config) -> int | None:
        """See Part."""
        return hardness(lwe.FORMS[config.protect.lwe].bits, config.federation.quorum - config.privacy.colluders)

    def check(self, config: Config, parts: int, length: int | None) -> None:
        """See Part: refuse a run without noise, with too little noise to hide values, or with too small a quorum."""
        if config.privacy.unit == "record":
            raise ConfigError(
                f'{config.protect.method} masks clipped updates by their noise, but with privacy.unit = "record" '
                'updates carry none; use method ckks-fedavg with protect.cipher = "rlwe"'
            )
        if math.isinf(config.privacy.epsilon):
            raise ConfigError(
                f"the security of {config.protect.method} rests on noise, so privacy.epsilon must be finite, got inf"
            )
        quorum, colluders = config.federation.quorum, config.privacy.colluders
        form = lwe.FORMS[config.protect.lwe]
        _check_quorum(config, config.protect.method)
        gaussian = noise(config, parts)
        for sigma in (min(gaussian.sigmas), max(gaussian.sigmas)):  # weights scale clip and σ alike
            lwe.lwe_parameters(form, gaussian.clip, sigma, length or 1, config.sampled, quorum, colluders)


def _carries(config: Config, gaussian: Gaussian | None) -> bool:
    """Whether what clipping cuts off is added to the next update."""
    return config.protect.carry and gaussian is not None


def _least_quorum(config: Config) -> int:
    """The smallest quorum with enough honest clients, of which no two can open two different sums."""
    colluders = config.privacy.colluders
    return max((config.sampled + colluders) // 2 + 1, colluders + LEAST_HONEST)


def _check_quorum(config: Config, what: str) -> None:
    """Refuse a quorum that is too small for masks opened by shares, and say what to do about it."""
    sampled, colluders, least = config.sampled, config.privacy.colluders, _least_quorum(config)
    if config.federation.quorum >= least:
        return
    first = f"federation.quorum = {least}"
    if least > sampled:
        drawn = "federation.clients" if sampled == config.federation.clients else "federation.fraction"
        first = f"{drawn} so that a round has {least} clients or more"
    last = ["a lower privacy.colluders"] if colluders > 1 else []
    raise ConfigError(
        f"{what} with {plural(sampled, 'client')} per round, {colluders} of whom may help the server, needs a quorum "
        f"of {least} or more, got {config.federation.quorum}. Every sum needs {LEAST_HONEST} honest clients, since the "
        "summed secrets of fewer reveal too much of a single one, and two groups of clients must not be able to open "
        f"two different sums. Set {', or '.join([first, *last])}"
    )
