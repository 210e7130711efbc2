"""How a client protects values of its update: perturb them (or not), multiply by its weight, round to integers, encode.

A mechanism works in two steps, because the rest of an update is put into the secret order in between: `protect`
returns integers, and their `pack` the bytes to send.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from paraaegis.crypto import lwe
from paraaegis.crypto.shamir import share
from paraaegis.crypto.streams import system
from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.fixed_point import STEP, fixed_point_of, unpack_fixed_point
from paraaegis.privacy.gaussian import Gaussian, Noise
from paraaegis.privacy.ledger import Exposure, Seen
from paraaegis.protocol.contexts import Opener, Packed, RevealContext, UploadContext
from paraaegis.protocol.encodings import Encoding
from paraaegis.protocol.sums import expect_kind, public_seed
from paraaegis.types import FixedPoint, Payload, Vector

LEAST_NOISE = 2.0  # steps: smaller shares would not add up to the sum's noise once each is rounded


class Outgoing(NamedTuple):
    """Protected values: the integers that they add to the sum, and how to pack them."""

    steps: FixedPoint
    pack: Callable[[FixedPoint], Packed]


class Randomness(NamedTuple):
    """The randomness for one upload: the noise of its values and, if it was computed ahead, what hides them."""

    noise: Noise
    mask: Any = None


class Mechanism(Protocol):
    """How some values of an update are protected."""

    @property
    def carries(self) -> bool:
        """Whether what clipping cuts off is added to the next update."""

    @property
    def opener(self) -> Opener:
        """Who opens its sum with the clients' sums of shares."""

    def exposure(self, what: str) -> Exposure:
        """Who sees what of the values it protects."""

    def fresh(self, context: UploadContext, length: int) -> Any:
        """The randomness for one upload of this many values."""

    def ahead(self, context: UploadContext, length: int) -> Any:
        """The same, computed in full during training; None if there is nothing to compute."""

    def protect(self, values: Vector, context: UploadContext, randomness: Any) -> Outgoing:
        """Perturb, multiply by the weight and round; `randomness` is from `fresh` or `ahead`."""

    def residual(self, values: Vector) -> Vector | None:
        """What clipping cuts off these values, if it is added to the next update."""

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """The sum as integers."""

    def worth(self, context: RevealContext, length: int) -> float:
        """How many steps of the update one step of that sum stands for."""


@dataclass(frozen=True)
class EncodedMechanism:
    """Clip and add noise if there is a `gaussian`, then encode.

    The noise is this client's alone or, with a `quorum`, shared: a sum over that many clients carries the noise that
    the heaviest client needs, even if `colluders` subtract theirs.
    """

    encoding: Encoding
    gaussian: Gaussian | None = None
    carries: bool = False
    quorum: int = 0
    colluders: int = 0

    @property
    def opener(self) -> Opener:
        """See Mechanism."""
        return self.encoding.opener

    def exposure(self, what: str) -> Exposure:
        """See Mechanism."""
        clients: Seen = "clear" if self.gaussian is None else "noised"
        server = clients if self.encoding.sight == "clear" else self.encoding.sight
        return Exposure(what, server, clients, self.gaussian, self.quorum, self.colluders)

    def fresh(self, context: UploadContext, length: int) -> Randomness:  # noqa: ARG002
        """See Mechanism."""
        return Randomness(Noise(context.rng))

    def ahead(self, context: UploadContext, length: int) -> Randomness | None:
        """See Mechanism."""
        noised = self.gaussian is not None and self.gaussian.sigmas[context.round_id.number - 1] > 0
        mask = self.encoding.ahead(context, length)
        if not noised and mask is None:
            return None
        noise = Noise(context.rng)
        if noised:
            noise.draw(length)
        return Randomness(noise, mask)

    def protect(self, values: Vector, context: UploadContext, randomness: Randomness) -> Outgoing:
        """See Mechanism."""
        steps = self._steps(values, context, randomness.noise)
        return Outgoing(steps, lambda ordered: self.encoding.pack(ordered, context, randomness.mask))

    def _steps(self, values: Vector, context: UploadContext, noise: Noise) -> FixedPoint:
        if self.gaussian is None:
            return self.encoding.rounded(fixed_point_of(lambda _, span: values[span], values.size, context.weight))
        share = self._share(context)
        sigma = context.weight * share * self.gaussian.sigmas[context.round_id.number - 1]
        if self.quorum and 0 < sigma < LEAST_NOISE * self.encoding.step:
            raise UpdateError(
                f"a noise share of σ = {sigma:.3g} would be rounded away in steps of {self.encoding.step:.3g}; set a "
                "larger privacy.inside_clip or protect.profile = 'precise'"
            )
        noised = self.gaussian.perturb(values, context.round_id.number, noise, share)
        return self.encoding.rounded(fixed_point_of(noised, values.size, context.weight))

    def _share(self, context: UploadContext) -> float:
        if not self.quorum:
            return 1.0
        if not 0 < context.weight <= context.heaviest:
            raise ProtocolError(
                f"a client's weight must lie in (0, {context.heaviest:.4g}], up to the heaviest, "
                f"got {context.weight:.4g}"
            )
        return context.heaviest / context.weight / math.sqrt(self.quorum - self.colluders)

    def residual(self, values: Vector) -> Vector | None:
        """See Mechanism."""
        if self.gaussian is None or not self.carries:
            return None
        return values - (values * np.float64(self.gaussian.shrink(values))).astype(np.float32)

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """See Mechanism."""
        return self.encoding.unpack(payload, context)

    def worth(self, context: RevealContext, length: int) -> float:  # noqa: ARG002
        """See Mechanism."""
        return 1.0


@dataclass(frozen=True)
class LweMechanism:
    """The masks of lwe-secagg (Stevens et al. 2022): h_i = x_i + A·s_i + e_i. The summed errors are the noise.

    Shares of s_i go to the members of the round; the server reconstructs only Σs_i and is left with Σx_i + Σe_i.
    """

    form: lwe.Form
    gaussian: Gaussian
    quorum: int
    colluders: int
    carries: bool = False
    opener: Opener = "server"

    def exposure(self, what: str) -> Exposure:
        """See Mechanism. The server unmasks only the noised sum, and passes it on to the clients."""
        return Exposure(what, "summed", "noised", self.gaussian, self.quorum, self.colluders)

    def fresh(self, context: UploadContext, length: int) -> lwe.LweMask:
        """See Mechanism: the mask of a fresh secret, with the error."""
        error_std = self.numbers(context, length).error_std
        return lwe.new_mask(self.form, public_seed(context.round_id), system(), error_std, context.rng, length)

    def ahead(self, context: UploadContext, length: int) -> lwe.LweMask:
        """See Mechanism."""
        return self.fresh(context, length)

    def protect(self, values: Vector, context: UploadContext, randomness: lwe.LweMask) -> Outgoing:
        """See Mechanism: clip, multiply by weight and scale, round, add the error; then mask, and share the secret."""
        if not 0 < context.weight <= context.heaviest or context.name not in context.members:
            raise ProtocolError(
                f"{context.name} with weight {context.weight:.4g} is not among the members {context.members} "
                f"of weight up to {context.heaviest:.4g}"
            )
        scale = self.gaussian.shrink(values) * context.weight * self.numbers(context, values.size).scale
        masked, noised = lwe.apply_mask(values, scale, randomness)

        def pack(_: FixedPoint) -> Packed:  # without a vote, values are sent in parameter order
            rows = share(randomness.secret, len(context.members), self.quorum, system(), self.form.field)
            shares = dict(zip(context.members, rows, strict=True))
            return Packed(Payload("lwe", values.size, self.form.pack(masked)), shares)

        return Outgoing(noised, pack)

    def residual(self, values: Vector) -> None:
        """See Mechanism: nothing is carried over."""

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:  # noqa: ARG002
        """See Mechanism: the noised sum."""
        expect_kind(payload, "lwe")
        return unpack_fixed_point(payload.chunks, payload.length)

    def worth(self, context: RevealContext, length: int) -> float:
        """See Mechanism."""
        return 1 / (self.numbers(context, length).scale * STEP)

    def numbers(self, context: RevealContext, length: int) -> lwe.LweParameters:
        """Scale and error for sensitivity θ·max n_i/W; all clients derive the same."""
        clip, sigma = (
            self.gaussian.clip * context.heaviest,
            self.gaussian.sigmas[context.round_id.number - 1] * context.heaviest,
        )
        return lwe.lwe_parameters(self.form, clip, sigma, length, context.clients, self.quorum, self.colluders)
