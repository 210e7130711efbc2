"""The client's half of every method: how an update leaves a client and an aggregate is read.

A guard perturbs values (or not), weighs them, rounds them to the grid and gives them to a carrier. A protector is one
guard for the whole update, or one inside and one outside the partition. The server's half is in combine.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.lwe import LweMask
from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.fixed_point import fixed_point_of
from paraaegis.parallel import in_background
from paraaegis.privacy.gaussian import Gaussian, Noise
from paraaegis.privacy.ledger import Exposure, Seen
from paraaegis.protocol.encodings import Encoding
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.sums import expect_kind, expect_length
from paraaegis.types import FixedPoint, Payload, Vector

Ahead: TypeAlias = Noise | LweMask | None  # what of an upload is made before its update is known
LEAST_NOISE = 2.0  # steps: shares of less would not add up to the sum's noise once each is rounded


@dataclass(frozen=True)
class RevealContext:
    """What an aggregate is read with: its round, how many may be in it, the heaviest client's n_i/W, the partition."""

    number: int
    attempt: int
    step: bytes = field(repr=False)  # the clients' key of this round and attempt
    clients: int
    heaviest: float
    partition: Partition | None


@dataclass(frozen=True)
class UploadContext(RevealContext):
    """What an upload is made with, in addition to that: this client's n_i/W, its noise and, for shares, who gets one.

    `ahead`: what its half makes while the client trains. Nothing else may draw from `rng` before it is there.
    """

    weight: float
    rng: np.random.Generator
    name: str
    members: tuple[str, ...]
    ahead: Future[Ahead] | None = None

    def ready(self) -> Ahead:
        """What was made ahead, if anything was."""
        return None if self.ahead is None else self.ahead.result()

    def noise(self) -> Noise:
        """The noise for a whole vector; to be asked for before anything else is drawn."""
        ready = self.ready()
        return ready if isinstance(ready, Noise) else Noise(self.rng)


@dataclass(frozen=True)
class Protected:
    """What leaves, and what stays to be carried into the next round (None: nothing is carried).

    `parts` are the whole numbers that this upload adds to the sum, in the order in which they travel. `shares`, by
    member, are of the secret that masks it.
    """

    payload: Payload
    parts: tuple[FixedPoint, ...]
    kept: Vector | None = None
    shares: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


class Revealed(NamedTuple):
    """A sum as whole numbers: in parameter order, and in parts as they travelled.

    `worth` is what a grid step of it is worth in steps of the update.
    """

    steps: FixedPoint
    parts: tuple[FixedPoint, ...]
    worth: float = 1.0


@dataclass(frozen=True)
class Mechanism:
    """Perturb, weigh, round, carry. With `feedback`, what clipping cut off is kept for the next round.

    Noise is this client's alone or, with a `quorum`, shared: the sum over it carries the noise for the heaviest
    client, though `colluders` take theirs off.
    """

    encoding: Encoding
    gaussian: Gaussian | None = None
    feedback: bool = False
    quorum: int = 0
    colluders: int = 0

    def noise(self, context: UploadContext, length: int) -> Noise | None:
        """What it will add to so many values, drawn now; None where it adds nothing."""
        if self.gaussian is None or self.gaussian.sigmas[context.number - 1] == 0:
            return None
        noise = Noise(context.rng)
        noise.draw(length)
        return noise

    def steps(self, values: Vector, context: UploadContext, noise: Noise) -> FixedPoint:
        """What this guard sends, in whole grid steps on the carrier's own grid."""
        if self.gaussian is None:
            return self.encoding.rounded(fixed_point_of(lambda _, span: values[span], values.size, context.weight))
        share = self._share(context)
        sigma = context.weight * share * self.gaussian.sigmas[context.number - 1]
        if self.quorum and 0 < sigma < LEAST_NOISE * self.encoding.step:
            raise UpdateError(
                f"a share of the noise of σ = {sigma:.3g} would be rounded away in steps of {self.encoding.step:.3g}; "
                "set a larger privacy.inside_clip or protect.profile = 'precise'"
            )
        noised = self.gaussian.perturb(values, context.number, noise, share)
        return self.encoding.rounded(fixed_point_of(noised, values.size, context.weight))

    def _share(self, context: UploadContext) -> float:
        if not self.quorum:
            return 1.0
        if not 0 < context.weight <= context.heaviest:
            raise ProtocolError(
                f"a weight of {context.weight:.4g} is outside (0, {context.heaviest:.4g}], the heaviest"
            )
        return context.heaviest / context.weight / math.sqrt(self.quorum - self.colluders)

    def exposure(self, what: str) -> Exposure:
        """Who sees what of the values that this guard sends."""
        inner: Seen = "clear" if self.gaussian is None else "noised"
        server: Seen = "hidden" if self.encoding.hides else inner
        return Exposure(what, server, inner, self.gaussian, self.quorum, self.colluders)

    def kept(self, values: Vector) -> Vector | None:
        """What clipping takes away from `values`."""
        if self.gaussian is None or not self.feedback:
            return None
        return values - (values * np.float64(self.gaussian.shrink(values))).astype(np.float32)


class ClientHalf(Protocol):
    """One client's side of a method."""

    @property
    def votes(self) -> bool:
        """Whether clients vote on a partition first."""

    @property
    def withholds(self) -> bool:
        """Whether something of an update is kept for the next round."""

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Who sees what of each part of an update."""

    def ahead(self, context: UploadContext, length: int) -> Ahead:
        """What of an upload of so many values does not depend on the update, for `ready`; None: nothing."""

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """What of this update leaves the client."""

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """The sum of all clients' weighted updates."""


@dataclass(frozen=True)
class Unsplit:
    """One guard for the whole update; no vote."""

    mechanism: Mechanism
    votes: bool = False

    @property
    def withholds(self) -> bool:
        """See ClientHalf."""
        return self.mechanism.feedback

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """See ClientHalf."""
        return (self.mechanism.exposure("update"),)

    def ahead(self, context: UploadContext, length: int) -> Noise | None:
        """See ClientHalf."""
        return self.mechanism.noise(context, length)

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """See ClientHalf."""
        steps = self.mechanism.steps(update, context, context.noise())
        return Protected(
            self.mechanism.encoding.pack(steps, context.clients, context.step), (steps,), self.mechanism.kept(update)
        )

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """See ClientHalf."""
        steps = self.mechanism.encoding.unpack(aggregate, context.step)
        return Revealed(steps, (steps,))


@dataclass(frozen=True)
class Parallel:
    """The paper's protector: one guard inside the partition, one outside. Without an outside guard it is withheld."""

    inside: Mechanism
    outside: Mechanism | None
    votes: bool = True

    @property
    def withholds(self) -> bool:
        """See ClientHalf."""
        return self.outside is None or self.outside.feedback or self.inside.feedback

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """See ClientHalf."""
        inside = self.inside.exposure("inside")
        return (inside,) if self.outside is None else (inside, self.outside.exposure("outside"))

    def ahead(self, context: UploadContext, length: int) -> Noise | None:
        """See ClientHalf."""
        return None if self.outside is None else self.outside.noise(context, length)

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """See ClientHalf. Lines 13 to 16 of Algorithm 1."""
        partition, noise = _partition(context.partition), context.noise()
        inside, outside = partition.split(update)
        inside_steps = self.inside.steps(inside, context, Noise(context.rng))
        packing = in_background(
            lambda: self.inside.encoding.pack(inside_steps, context.clients, context.step)
        )  # meanwhile the outside
        kept: Vector | None = outside
        parts: tuple[FixedPoint, ...] = (inside_steps,)
        rest: tuple[Payload, ...] = ()
        if self.outside is not None:
            travelling = partition.travelling(self.outside.steps(outside, context, noise))
            parts = (inside_steps, travelling)
            rest = (self.outside.encoding.pack(travelling, context.clients, context.step),)
            kept = self.outside.kept(outside)
        if (cut := self.inside.kept(inside)) is not None:
            kept = np.zeros_like(update) if kept is None else kept
            kept[partition.inside] = cut
        return Protected(Payload("parallel", update.size, parts=(packing.result(), *rest)), parts, kept)

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """See ClientHalf. Lines 20 and 21 of Algorithm 1."""
        partition = _partition(context.partition)
        expect_kind(aggregate, "parallel", 1 if self.outside is None else 2)
        for part, count in zip(aggregate.parts, partition.counts, strict=False):
            expect_length(part, count)
        inside = self.inside.encoding.unpack(aggregate.parts[0], context.step)
        outside = None if self.outside is None else self.outside.encoding.unpack(aggregate.parts[1], context.step)
        return Revealed(partition.merge(inside, outside), (inside,) if outside is None else (inside, outside))


def _partition(partition: Partition | None) -> Partition:
    if partition is None:
        raise ProtocolError("a method that votes needs the elected partition, got none")
    return partition
