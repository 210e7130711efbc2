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

from paraaegis.crypto.lwe import Cover
from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.fixed_point import grid_of
from paraaegis.parallel import soon
from paraaegis.privacy.gaussian import Gaussian, Noise
from paraaegis.privacy.ledger import Exposure, Seen
from paraaegis.protocol.encodings import Carrier
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.sums import expect_kind, expect_length
from paraaegis.types import Grid, Payload, Vector

Ahead: TypeAlias = Noise | Cover | None  # what of an upload is made before its update is known
LEAST_NOISE = 2.0  # steps: shares of less would not add up to the sum's noise once each is rounded


@dataclass(frozen=True)
class Sight:
    """What an aggregate is read with: its round, how many may be in it, the heaviest client's n_i/W, the partition."""

    number: int
    attempt: int
    step: bytes = field(repr=False)  # the clients' key of this round and attempt
    clients: int
    heaviest: float
    partition: Partition | None


@dataclass(frozen=True)
class Turn(Sight):
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
    parts: tuple[Grid, ...]
    kept: Vector | None = None
    shares: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


class Revealed(NamedTuple):
    """A sum as whole numbers: in parameter order, and in parts as they travelled.

    `worth` is what a grid step of it is worth in steps of the update.
    """

    steps: Grid
    parts: tuple[Grid, ...]
    worth: float = 1.0


@dataclass(frozen=True)
class Guard:
    """Perturb, weigh, round, carry. With `feedback`, what clipping cut off is kept for the next round.

    Noise is this client's alone or, with a `quorum`, shared: the sum over it carries the noise for the heaviest
    client, though `colluders` take theirs off.
    """

    carrier: Carrier
    gaussian: Gaussian | None = None
    feedback: bool = False
    quorum: int = 0
    colluders: int = 0

    def noise(self, turn: Turn, length: int) -> Noise | None:
        """What it will add to so many values, drawn now; None where it adds nothing."""
        if self.gaussian is None or self.gaussian.sigmas[turn.number - 1] == 0:
            return None
        noise = Noise(turn.rng)
        noise.draw(length)
        return noise

    def steps(self, values: Vector, turn: Turn, noise: Noise) -> Grid:
        """What this guard sends, in whole grid steps on the carrier's own grid."""
        if self.gaussian is None:
            return self.carrier.rounded(grid_of(lambda _, where: values[where], values.size, turn.weight))
        share = self._share(turn)
        sigma = turn.weight * share * self.gaussian.sigmas[turn.number - 1]
        if self.quorum and 0 < sigma < LEAST_NOISE * self.carrier.step:
            raise UpdateError(
                f"a share of the noise of σ = {sigma:.3g} would be rounded away in steps of {self.carrier.step:.3g}; "
                "set a larger privacy.inside_clip or protect.profile = 'precise'"
            )
        noised = self.gaussian.perturb(values, turn.number, noise, share)
        return self.carrier.rounded(grid_of(noised, values.size, turn.weight))

    def _share(self, turn: Turn) -> float:
        if not self.quorum:
            return 1.0
        if not 0 < turn.weight <= turn.heaviest:
            raise ProtocolError(f"a weight of {turn.weight:.4g} is outside (0, {turn.heaviest:.4g}], the heaviest")
        return turn.heaviest / turn.weight / math.sqrt(self.quorum - self.colluders)

    def exposure(self, what: str) -> Exposure:
        """Who sees what of the values that this guard sends."""
        inner: Seen = "clear" if self.gaussian is None else "noised"
        server: Seen = "hidden" if self.carrier.hides else inner
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

    def ahead(self, turn: Turn, length: int) -> Ahead:
        """What of an upload of so many values does not depend on the update, for `Turn.ready`; None: nothing."""

    def protect(self, update: Vector, turn: Turn) -> Protected:
        """What of this update leaves the client."""

    def reveal(self, aggregate: Payload, sight: Sight) -> Revealed:
        """The sum of all clients' weighted updates."""


@dataclass(frozen=True)
class Whole:
    """One guard for the whole update; no vote."""

    guard: Guard
    votes: bool = False

    @property
    def withholds(self) -> bool:
        """See ClientHalf."""
        return self.guard.feedback

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """See ClientHalf."""
        return (self.guard.exposure("update"),)

    def ahead(self, turn: Turn, length: int) -> Noise | None:
        """See ClientHalf."""
        return self.guard.noise(turn, length)

    def protect(self, update: Vector, turn: Turn) -> Protected:
        """See ClientHalf."""
        steps = self.guard.steps(update, turn, turn.noise())
        return Protected(self.guard.carrier.pack(steps, turn.clients, turn.step), (steps,), self.guard.kept(update))

    def reveal(self, aggregate: Payload, sight: Sight) -> Revealed:
        """See ClientHalf."""
        steps = self.guard.carrier.unpack(aggregate, sight.step)
        return Revealed(steps, (steps,))


@dataclass(frozen=True)
class Parallel:
    """The paper's protector: one guard inside the partition, one outside. Without an outside guard it is withheld."""

    inside: Guard
    outside: Guard | None
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

    def ahead(self, turn: Turn, length: int) -> Noise | None:
        """See ClientHalf."""
        return None if self.outside is None else self.outside.noise(turn, length)

    def protect(self, update: Vector, turn: Turn) -> Protected:
        """See ClientHalf. Lines 13 to 16 of Algorithm 1."""
        partition, noise = _partition(turn.partition), turn.noise()
        inside, outside = partition.split(update)
        inside_steps = self.inside.steps(inside, turn, Noise(turn.rng))
        packing = soon(lambda: self.inside.carrier.pack(inside_steps, turn.clients, turn.step))  # meanwhile the outside
        kept: Vector | None = outside
        parts: tuple[Grid, ...] = (inside_steps,)
        rest: tuple[Payload, ...] = ()
        if self.outside is not None:
            travelling = partition.travelling(self.outside.steps(outside, turn, noise))
            parts = (inside_steps, travelling)
            rest = (self.outside.carrier.pack(travelling, turn.clients, turn.step),)
            kept = self.outside.kept(outside)
        if (cut := self.inside.kept(inside)) is not None:
            kept = np.zeros_like(update) if kept is None else kept
            kept[partition.inside] = cut
        return Protected(Payload("parallel", update.size, parts=(packing.result(), *rest)), parts, kept)

    def reveal(self, aggregate: Payload, sight: Sight) -> Revealed:
        """See ClientHalf. Lines 20 and 21 of Algorithm 1."""
        partition = _partition(sight.partition)
        expect_kind(aggregate, "parallel", 1 if self.outside is None else 2)
        for part, count in zip(aggregate.parts, partition.counts, strict=False):
            expect_length(part, count)
        inside = self.inside.carrier.unpack(aggregate.parts[0], sight.step)
        outside = None if self.outside is None else self.outside.carrier.unpack(aggregate.parts[1], sight.step)
        return Revealed(partition.merge(inside, outside), (inside,) if outside is None else (inside, outside))


def _partition(partition: Partition | None) -> Partition:
    if partition is None:
        raise ProtocolError("a method that votes needs the elected partition, got none")
    return partition
