"""What a client brings to a run, and what it derives from its secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from paraaegis.crypto.keys import derive, tag
from paraaegis.crypto.sealing import agree, new_pair, seal, unseal
from paraaegis.crypto.shuffle import digest, fingerprint, secret_order
from paraaegis.errors import CryptoError, ForgedError
from paraaegis.privacy.ledger import Exposure, Ledger, Release, releases_of
from paraaegis.protocol.messages import VERSION
from paraaegis.protocol.once import Once
from paraaegis.protocol.partition import Partition, places_of
from paraaegis.protocol.plan import Plan
from paraaegis.protocol.protect import ClientHalf
from paraaegis.types import Learner, Mask, Order, Places, Vector

Draw = Callable[[int, int], np.random.Generator]  # of a round and attempt


@dataclass(frozen=True)
class Silo:
    """One client: its learner, its half of the method, its secrets.

    `noise` and `votes` give the generator of a round. Silos of one process share `once` and `deltas`.
    """

    name: str
    plan: Plan
    half: ClientHalf
    learner: Learner
    vote_key: bytes = field(repr=False)
    noise: Draw
    votes: Draw
    ckks_id: bytes = b""
    once: Once = field(default_factory=Once)
    deltas: Once = field(default_factory=Once)  # of as many rounds as a client may have to catch up
    ledger: Ledger = field(default_factory=Ledger)
    resident: bool = False  # whether its states stay in memory between messages
    simulated: bool = True  # whether its noise can be replayed
    holdout: bool = False  # whether it evaluates on data of its own
    identity: tuple[bytes, bytes] = field(default_factory=new_pair, repr=False)  # private and public
    roster: Mapping[str, bytes] = field(default_factory=dict)  # every client's public identity key

    @property
    def keyed(self) -> bool:
        """Whether the method's clients share keys, by which they check what the server passes on."""
        return any(part.server != "clear" for part in self.half.exposures)

    def shared_with(self, peer: str) -> bytes:
        """The long-term secret of this client and a fellow client."""
        return agree(self.identity[0], self.roster[peer])

    def releases(self, number: int, attempt: int, parts: Iterable[Exposure] | None = None) -> list[Release]:
        """What this client lets go in this round: these parts, or those of its update."""
        parts = self.half.exposures if parts is None else parts
        return releases_of(parts, self.name, number, attempt, self.simulated, self.plan.run)

    def order(self, number: int, attempt: int) -> Order:
        """The secret order of a round."""
        run, length = self.plan.run, self.plan.length
        return self.once(
            (run, "order", number, attempt),
            lambda: secret_order(self.vote_key, VERSION, run, number, attempt, length),
        )

    @property
    def prepares(self) -> bool:
        """Whether to make ahead, while the client trains, what of its upload does not depend on the update.

        It pays where training leaves cores idle, as on a GPU. Not for more clients in one process than it has cores,
        all of whose noise would be held at 8 bytes a value, nor where it would be lost before the vote is counted.
        """
        return self.plan.sampled <= (os.cpu_count() or 1) if self.resident else not self.half.votes

    def places(self, number: int, attempt: int) -> Places:
        """Where that order puts each parameter."""
        return self.once(
            (self.plan.run, "places", number, attempt),
            lambda: places_of(self.order(number, attempt)),
        )

    def partition(self, number: int, attempt: int, elected: Mask) -> Partition:
        """What the elected positions of a round mean."""
        return self.once(
            (self.plan.run, "partition", number, attempt, digest(np.packbits(elected))),
            lambda: Partition.of(elected, self.order(number, attempt)),
        )

    def seal_to(self, receiver: str, content: bytes, *purpose: str | int | bytes) -> bytes:
        """Bytes that only this fellow client can open, for this purpose, knowing that they are from this one."""
        context = self._box(self.name, receiver, purpose)
        return seal(self.identity[0], self.roster[receiver], content, context, group=self._group)

    def open_from(self, sender: str, sealed: bytes, *purpose: str | int | bytes) -> bytes:
        """What this fellow client sealed to this one."""
        if sender not in self.roster:
            raise ForgedError
        context = self._box(sender, self.name, purpose)
        try:
            return unseal(self.identity[0], self.roster[sender], sealed, context, group=self._group)
        except CryptoError as error:
            raise ForgedError from error

    @property
    def _group(self) -> bytes:
        return derive(self.vote_key, "seal", self.plan.run)

    def _box(self, sender: str, receiver: str, purpose: tuple[str | int | bytes, ...]) -> bytes:
        return msgspec.msgpack.encode([self.plan.run, sender, receiver, *purpose])

    def seal_vote(self, mark: str, elected: Mask) -> str:
        """A ballot's fingerprint with the outcome of the vote: equal at every client that was told the same."""
        return tag(self.vote_key, bytes.fromhex(mark), digest(np.packbits(elected))).hex()

    def fingerprint(self, number: int, attempt: int, model: Vector, view: bytes) -> str:
        """Equal at every client whose model, view and, where there is a vote, order are equal."""
        order = self.order(number, attempt) if self.half.votes else None
        return fingerprint(self.vote_key, self.plan.run, number, attempt, order, digest(model) + view)
