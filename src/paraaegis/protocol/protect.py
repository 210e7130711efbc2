"""The client's half of every method: how an update is protected before it is sent, and how an aggregate is read.

A half is one mechanism for the whole update, or one for the elected values and one for the rest. The server's half is
in sums.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from paraaegis.crypto.shamir import Shares
from paraaegis.errors import ProtocolError
from paraaegis.parallel import in_background
from paraaegis.privacy.ledger import ELECTED, OPEN_VOTES, REST, VOTES, WHOLE, Exposure
from paraaegis.protocol.contexts import Opener, RevealContext, UploadContext
from paraaegis.protocol.mechanisms import Mechanism
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.sums import expect_kind, expect_length
from paraaegis.types import FixedPoint, Payload, Vector


@dataclass(frozen=True)
class Protected:
    """What is sent, and the residual to add to the next update (None if the method carries nothing over).

    `parts` are the integers that this upload adds to the sum, in the order in which they are sent. `shares`, by member,
    are shares of the secret that masks it.
    """

    payload: Payload
    parts: tuple[FixedPoint, ...]
    residual: Vector | None = None
    shares: Mapping[str, Shares] = field(default_factory=dict)


class Revealed(NamedTuple):
    """A sum as integers: in parameter order, and in parts as they were sent.

    `worth` is how many steps of the update one step of it stands for.
    """

    steps: FixedPoint
    parts: tuple[FixedPoint, ...]
    worth: float = 1.0


class ClientHalf(Protocol):
    """One client's side of a method."""

    @property
    def votes(self) -> bool:
        """Whether clients vote on a partition first."""

    @property
    def carries(self) -> bool:
        """Whether a residual of an update is added to the next one."""

    @property
    def opener(self) -> Opener:
        """Who opens its sums with the clients' sums of shares."""

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """Who sees what of each part of an update."""

    @property
    def ballot(self) -> Exposure:
        """Who sees what of its votes, if it votes."""

    def ahead(self, context: UploadContext, length: int) -> Any:
        """The part of an upload that can be computed before the update is known; None if there is none."""

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """The update, protected, as it is sent."""

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """The sum of all clients' weighted updates."""

    def worth(self, context: RevealContext, length: int) -> float:
        """How many steps of the update one step of a sum stands for."""


@dataclass(frozen=True)
class Unsplit:
    """One mechanism for the whole update; no vote."""

    mechanism: Mechanism
    votes: bool = False

    @property
    def carries(self) -> bool:
        """See ClientHalf."""
        return self.mechanism.carries

    @property
    def opener(self) -> Opener:
        """See ClientHalf."""
        return self.mechanism.opener

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """See ClientHalf."""
        return (self.mechanism.exposure(WHOLE),)

    @property
    def ballot(self) -> Exposure:
        """See ClientHalf."""
        return VOTES

    def ahead(self, context: UploadContext, length: int) -> Any:
        """See ClientHalf."""
        return self.mechanism.ahead(context, length)

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """See ClientHalf."""
        randomness = context.prepared() or self.mechanism.fresh(context, update.size)
        steps, pack = self.mechanism.protect(update, context, randomness)
        payload, shares = pack(steps)
        return Protected(payload, (steps,), self.mechanism.residual(update), shares)

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """See ClientHalf."""
        steps = self.mechanism.unpack(aggregate, context)
        return Revealed(steps, (steps,), self.worth(context, aggregate.length))

    def worth(self, context: RevealContext, length: int) -> float:
        """See ClientHalf."""
        return self.mechanism.worth(context, length)


@dataclass(frozen=True)
class Parallel:
    """The paper's protection: one mechanism for the elected values and one for the rest; without it, that is withheld.

    For both, a step of the sum must stand for one step of the update.
    """

    elected: Mechanism
    rest: Mechanism | None
    votes: bool = True

    @property
    def carries(self) -> bool:
        """See ClientHalf."""
        return self.rest is None or self.rest.carries or self.elected.carries

    @property
    def opener(self) -> Opener:
        """See ClientHalf. What is not elected is sent in the clear."""
        return self.elected.opener

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """See ClientHalf."""
        elected = self.elected.exposure(ELECTED)
        return (elected,) if self.rest is None else (elected, self.rest.exposure(REST))

    @property
    def ballot(self) -> Exposure:
        """See ClientHalf. A server that opens the sum needs to know which parameters it is of."""
        return OPEN_VOTES if self.opener == "server" else VOTES

    def ahead(self, context: UploadContext, length: int) -> Any:
        """See ClientHalf: the noise of the rest."""
        return None if self.rest is None else self.rest.ahead(context, length)

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """See ClientHalf. Lines 13 to 16 of Algorithm 1."""
        partition = _partition(context.partition)
        # The client's first stream is for the rest, its second for the elected values.
        rest_noise = context.prepared() or (self.rest or self.elected).fresh(context, update.size)
        elected_noise = self.elected.fresh(context, update.size)
        elected, rest = partition.split(update)
        elected_steps, pack = self.elected.protect(elected, context, elected_noise)
        packing = in_background(lambda: pack(elected_steps))  # while the rest is protected
        residual: Vector | None = rest
        parts: tuple[FixedPoint, ...] = (elected_steps,)
        payloads: tuple[Payload, ...] = ()
        if self.rest is not None:
            rest_steps, pack_rest = self.rest.protect(rest, context, rest_noise)
            ordered_rest = partition.rest_of(rest_steps)
            parts = (elected_steps, ordered_rest)
            payloads = (pack_rest(ordered_rest).payload,)
            residual = self.rest.residual(rest)
        if (cut := self.elected.residual(elected)) is not None:
            residual = np.zeros_like(update) if residual is None else residual
            residual[partition.elected] = cut
        packed = packing.result()
        payload = Payload("parallel", update.size, parts=(packed.payload, *payloads))
        return Protected(payload, parts, residual, packed.shares)

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """See ClientHalf. Lines 20 and 21 of Algorithm 1."""
        partition = _partition(context.partition)
        expect_kind(aggregate, "parallel", 1 if self.rest is None else 2)
        for part, count in zip(aggregate.parts, partition.counts, strict=False):
            expect_length(part, count)
        elected = self.elected.unpack(aggregate.parts[0], context)
        rest = None if self.rest is None else self.rest.unpack(aggregate.parts[1], context)
        return Revealed(partition.merge(elected, rest), (elected,) if rest is None else (elected, rest))

    def worth(self, context: RevealContext, length: int) -> float:  # noqa: ARG002
        """See ClientHalf."""
        return 1.0


def _partition(partition: Partition | None) -> Partition:
    if partition is None:
        raise ProtocolError("a method that votes needs the elected partition, got none")
    return partition
