"""How a client protects some values of its update: perturb them (or not), weigh, round to whole numbers, encode.

A mechanism works in two steps, because the rest of an update is put into the secret order between them: `protect`
gives whole numbers, their `pack` the bytes that travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto import lwe
from paraaegis.crypto.shamir import share
from paraaegis.crypto.streams import system
from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.fixed_point import STEP, fixed_point_of, pack_fixed_point, unpack_fixed_point
from paraaegis.privacy.gaussian import Gaussian, Noise
from paraaegis.privacy.ledger import Exposure, Seen
from paraaegis.protocol.encodings import Encoding
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.sums import expect_kind, public_seed
from paraaegis.types import FixedPoint, Payload, Vector

LEAST_NOISE = 2.0  # steps: smaller shares would not add up to the sum's noise once each is rounded


@dataclass(frozen=True)
class RevealContext:
    """What an aggregate is read with: its round, how many may be in it, the heaviest client's n_i/W, the partition."""

    round_id: RoundId
    step: bytes = field(repr=False)  # the clients' key of this round and attempt
    clients: int
    heaviest: float
    partition: Partition | None


@dataclass(frozen=True)
class UploadContext(RevealContext):
    """What an upload is made with, in addition to that: this client's n_i/W, its noise and, for shares, who gets one.

    `ahead` is what its half computes while the client trains. Until that is done, nothing else may draw from `rng`.
    """

    weight: float
    rng: np.random.Generator
    name: str
    members: tuple[str, ...]
    ahead: Future[Any] | None = None

    def prepared(self) -> Any:
        """What was computed ahead; None if nothing was."""
        return None if self.ahead is None else self.ahead.result()


class Packed(NamedTuple):
    """Values as they travel. `shares`, by member, are of the secret that masks them."""

    payload: Payload
    shares: Mapping[str, NDArray[np.int64]] = {}


class Outgoing(NamedTuple):
    """Values on their way out: the whole numbers that they add to the sum, and how to pack these."""

    steps: FixedPoint
    pack: Callable[[FixedPoint], Packed]


class Mechanism(Protocol):
    """How some values of an update are protected."""

    @property
    def carries(self) -> bool:
        """Whether what clipping cuts off goes into the next update."""

    def exposure(self, what: str) -> Exposure:
        """Who sees what of the values that it protects."""

    def fresh(self, context: UploadContext, length: int) -> Any:
        """The randomness for one upload of this many values."""

    def ahead(self, context: UploadContext, length: int) -> Any:
        """The same, computed in full while the client trains; None if there is nothing to compute."""

    def protect(self, values: Vector, context: UploadContext, randomness: Any) -> Outgoing:
        """Perturb, weigh and round; `randomness` is from `fresh` or `ahead`."""

    def residual(self, values: Vector) -> Vector | None:
        """What clipping cuts off these values, if it is carried into the next update."""

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """The sum as whole numbers."""

    def worth(self, context: RevealContext, length: int) -> float:
        """What a step of that sum is worth, in steps of the update."""


@dataclass(frozen=True)
class EncodedMechanism:
    """Clip and add noise where there is a `gaussian`; then an encoding.

    Noise is this client's alone or, with a `quorum`, shared: the sum over it carries the noise for the heaviest
    client, even if `colluders` subtract theirs.
    """

    encoding: Encoding
    gaussian: Gaussian | None = None
    carries: bool = False
    quorum: int = 0
    colluders: int = 0

    def exposure(self, what: str) -> Exposure:
        """See Mechanism."""
        clients: Seen = "clear" if self.gaussian is None else "noised"
        server: Seen = "hidden" if self.encoding.hides else clients
        return Exposure(what, server, clients, self.gaussian, self.quorum, self.colluders)

    def fresh(self, context: UploadContext, length: int) -> Noise:  # noqa: ARG002
        """See Mechanism."""
        return Noise(context.rng)

    def ahead(self, context: UploadContext, length: int) -> Noise | None:
        """See Mechanism."""
        if self.gaussian is None or self.gaussian.sigmas[context.round_id.number - 1] == 0:
            return None
        noise = Noise(context.rng)
        noise.draw(length)
        return noise

    def protect(self, values: Vector, context: UploadContext, randomness: Noise) -> Outgoing:
        """See Mechanism."""
        steps = self._steps(values, context, randomness)
        return Outgoing(steps, lambda ordered: Packed(self.encoding.pack(ordered, context.clients, context.step)))

    def _steps(self, values: Vector, context: UploadContext, noise: Noise) -> FixedPoint:
        if self.gaussian is None:
            return self.encoding.rounded(fixed_point_of(lambda _, span: values[span], values.size, context.weight))
        share = self._share(context)
        sigma = context.weight * share * self.gaussian.sigmas[context.round_id.number - 1]
        if self.quorum and 0 < sigma < LEAST_NOISE * self.encoding.step:
            raise UpdateError(
                f"a share of the noise of σ = {sigma:.3g} would be rounded away in steps of {self.encoding.step:.3g}; "
                "set a larger privacy.inside_clip or protect.profile = 'precise'"
            )
        noised = self.gaussian.perturb(values, context.round_id.number, noise, share)
        return self.encoding.rounded(fixed_point_of(noised, values.size, context.weight))

    def _share(self, context: UploadContext) -> float:
        if not self.quorum:
            return 1.0
        if not 0 < context.weight <= context.heaviest:
            raise ProtocolError(
                f"a weight of {context.weight:.4g} is outside (0, {context.heaviest:.4g}], the heaviest"
            )
        return context.heaviest / context.weight / math.sqrt(self.quorum - self.colluders)

    def residual(self, values: Vector) -> Vector | None:
        """See Mechanism."""
        if self.gaussian is None or not self.carries:
            return None
        return values - (values * np.float64(self.gaussian.shrink(values))).astype(np.float32)

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """See Mechanism."""
        return self.encoding.unpack(payload, context.step)

    def worth(self, context: RevealContext, length: int) -> float:  # noqa: ARG002
        """See Mechanism."""
        return 1.0


@dataclass(frozen=True)
class LweMechanism:
    """Masks of lwe-secagg (Stevens et al. 2022): h_i = x_i + A·s_i + e_i, whose summed errors are the noise.

    Shares of s_i go to the members of the round; the server rebuilds Σs_i alone and is left with Σx_i + Σe_i.
    """

    form: str
    gaussian: Gaussian
    quorum: int
    colluders: int
    carries: bool = False

    def exposure(self, what: str) -> Exposure:
        """See Mechanism. The server unmasks the noised sum and nothing else; clients get it from there."""
        return Exposure(what, "summed", "noised", self.gaussian, self.quorum, self.colluders)

    def fresh(self, context: UploadContext, length: int) -> lwe.LweMask:
        """See Mechanism: the mask of a fresh secret, with the error."""
        error_std = self.numbers(context, length).error_std
        return lwe.new_mask(
            lwe.FORMS[self.form], public_seed(context.round_id), system(), error_std, context.rng, length
        )

    def ahead(self, context: UploadContext, length: int) -> lwe.LweMask:
        """See Mechanism."""
        return self.fresh(context, length)

    def protect(self, values: Vector, context: UploadContext, randomness: lwe.LweMask) -> Outgoing:
        """See Mechanism: clip, weigh, scale, round and add the error; then mask, and share the mask's secret."""
        if not 0 < context.weight <= context.heaviest or context.name not in context.members:
            raise ProtocolError(
                f"{context.name} with weight {context.weight:.4g} is not among the members {context.members} "
                f"of weight up to {context.heaviest:.4g}"
            )
        scale = self.gaussian.shrink(values) * context.weight * self.numbers(context, values.size).scale
        masked, noised = lwe.apply_mask(values, scale, randomness)

        def pack(_: FixedPoint) -> Packed:  # values without a vote travel in the order that they are in
            rows = share(randomness.secret, len(context.members), self.quorum, system())
            shares = dict(zip(context.members, rows, strict=True))
            return Packed(Payload("lwe", values.size, pack_fixed_point(masked)), shares)

        return Outgoing(noised, pack)

    def residual(self, values: Vector) -> None:
        """See Mechanism: nothing is carried."""

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:  # noqa: ARG002
        """See Mechanism: the noised sum."""
        expect_kind(payload, "lwe")
        return unpack_fixed_point(payload.chunks, payload.length)

    def worth(self, context: RevealContext, length: int) -> float:
        """See Mechanism."""
        return 1 / (self.numbers(context, length).scale * STEP)

    def numbers(self, context: RevealContext, length: int) -> lwe.LweParameters:
        """Scale and error for sensitivity θ·max n_i/W; both sides of the round derive the same."""
        clip, sigma = (
            self.gaussian.clip * context.heaviest,
            self.gaussian.sigmas[context.round_id.number - 1] * context.heaviest,
        )
        return lwe.lwe_parameters(clip, sigma, length, context.clients, self.quorum, self.colluders)
