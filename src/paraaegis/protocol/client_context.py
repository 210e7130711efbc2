"""What a client brings to a run, and what it derives from its secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.ratchet import Ratchet, Root
from paraaegis.crypto.sealed_box import agree, new_pair, seal, unseal
from paraaegis.crypto.shuffle import digest, fingerprint, secret_order
from paraaegis.errors import CryptoError, ForgedError
from paraaegis.privacy.ledger import Exposure, Ledger, Release, releases_of
from paraaegis.privacy.record_budget import training_release
from paraaegis.protocol.learner import CheckedLearner
from paraaegis.protocol.messages import VERSION
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.partition import Partition, places_of
from paraaegis.protocol.protect import ClientHalf
from paraaegis.protocol.single_flight import SingleFlight, Stopwatch
from paraaegis.types import Mask, Metrics, Order, Places

Draw = Callable[[int, int], np.random.Generator]  # for a round and attempt


@dataclass(frozen=True)
class ClientContext:
    """One client: its learner, its half of the method, its secrets.

    `noise` and `votes` give the generator for a round and attempt. Clients in one process share `cache` and `deltas`.
    """

    name: str
    parameters: RunParameters
    half: ClientHalf
    learner: CheckedLearner
    root: Root
    noise: Draw
    votes: Draw
    erase_root: Callable[[Root], None] = lambda _: None  # erases a root whose run has begun; a simulation keeps it
    cache: SingleFlight = field(default_factory=SingleFlight)
    deltas: SingleFlight = field(default_factory=SingleFlight)  # for as many rounds as a client may have to catch up on
    ledger: Ledger = field(default_factory=Ledger)
    resident: bool = False  # whether its states stay in memory between messages
    told: str = ""  # digest of what this message tells its learner in addition to the protocol's; see binding.view
    simulated: bool = True  # whether its noise can be replayed
    holdout: bool = False  # whether it evaluates on its own hold-out data
    report_fields: frozenset[str] = frozenset({"metrics", "seconds"})  # what its reports include
    # For this client's own records: of `train` or `evaluate`, in a round.
    log_metrics: Callable[[str, int, Metrics], None] = lambda _method, _number, _metrics: None
    identity: tuple[bytes, bytes] = field(default_factory=new_pair, repr=False)  # private and public
    roster: Mapping[str, bytes] = field(default_factory=dict)  # every client's public identity key

    def timed(self, watch: Stopwatch) -> dict[str, float]:
        """Its seconds for a report; later phases are added until that is sent. Empty if it does not report them."""
        return watch.seconds if "seconds" in self.report_fields else {}

    @property
    def reports_seconds(self) -> bool:
        """Whether its seconds count as a release: in one process and in a simulation they are hidden from nobody."""
        return "seconds" in self.report_fields and not self.resident and not self.simulated

    @property
    def keyed(self) -> bool:
        """Whether the method's clients share keys, with which they check what the server passes on."""
        return any(part.server != "clear" for part in self.half.exposures)

    def releases(
        self, number: int, attempt: int, parts: Iterable[Exposure] | None = None, model: str = ""
    ) -> list[Release]:
        """What this client releases in this round: these parts, or those of its update, trained on this model."""
        parts = self.half.exposures if parts is None else parts
        return releases_of(parts, self.name, number, attempt, self.simulated, self.parameters.run, model)

    def training(self, number: int, attempt: int, model: str) -> list[Release]:
        """What its training in this round is charged as; nothing unless it trains with DP-SGD."""
        privacy = self.learner.record_privacy
        if privacy is None:
            return []
        return [training_release(privacy, self.name, number, attempt, self.simulated, self.parameters.run, model)]

    def first_keys(self, root: Root) -> Ratchet:
        """The keys of this run, derived from a root. In a simulation they depend on nothing but the seed."""
        return root.begin("simulation" if self.simulated else self.parameters.run)

    def order(self, step: bytes) -> Order:
        """The secret order derived from the key of a round and attempt."""
        return self.cache((step, "order"), lambda: secret_order(step, self.parameters.length))

    @property
    def prepares(self) -> bool:
        """Whether to precompute, during training, the part of an upload that does not depend on the update.

        This pays off where training leaves cores idle, as on a GPU; not with more clients in one process than cores,
        whose noise would all be held at 8 bytes per value, nor where the process may end before the vote is counted.
        """
        return self.parameters.sampled <= (os.cpu_count() or 1) if self.resident else not self.half.votes

    def places(self, step: bytes) -> Places:
        """The position of each parameter in that order."""
        return self.cache((step, "places"), lambda: places_of(self.order(step)))

    def partition(self, step: bytes, elected: Mask) -> Partition:
        """The partition given by the elected positions of a round."""
        return self.cache(
            (step, "partition", digest(np.packbits(elected))), lambda: Partition.of(elected, self.order(step))
        )

    def seal_to(
        self, receiver: str, content: bytes, *purpose: str | int | bytes, group: bytes = b"", once: bytes = b""
    ) -> bytes:
        """Bytes that only this fellow client can open, for this purpose, and that prove they are from this client.

        `group`: a secret that all clients have, needed to open them; `once`: the receiver's one-time public key.
        """
        context = self._box(self.name, receiver, purpose)
        return seal(self.identity[0], self.roster[receiver], content, context, group=group, once=once)

    def open_from(
        self, sender: str, sealed: bytes, *purpose: str | int | bytes, group: bytes = b"", once: bytes = b""
    ) -> bytes:
        """The content that a fellow client sealed to this one; `once`: the private key of the one-time pair."""
        if sender not in self.roster:
            raise ForgedError
        context = self._box(sender, self.name, purpose)
        try:
            return unseal(self.identity[0], self.roster[sender], sealed, context, group=group, once=once)
        except CryptoError as error:
            raise ForgedError from error

    def _box(self, sender: str, receiver: str, purpose: tuple[str | int | bytes, ...]) -> bytes:
        return msgspec.msgpack.encode([self.parameters.run, sender, receiver, *purpose])

    def prove_to(self, peer: str, purpose: str, owner: str, content: bytes) -> bytes:
        """A MAC of what `owner` says, under a key that only this client and one peer can compute."""
        key = derive(
            agree(self.identity[0], self.roster[peer]), purpose, VERSION, self.parameters.run, self.parameters.config
        )
        return tag(key, owner.encode(), content)

    def tag_outcome(self, step: bytes, fingerprint: str, elected: Mask) -> str:
        """A ballot's fingerprint combined with the outcome of the vote: equal at all clients that got the same one."""
        return tag(derive(step, "vote"), bytes.fromhex(fingerprint), digest(np.packbits(elected))).hex()

    def fingerprint(self, step: bytes, view: bytes) -> str:
        """A fingerprint of the view and, if there is a vote, of the secret order: equal at clients that agree."""
        return fingerprint(step, self.order(step) if self.half.votes else None, view)
