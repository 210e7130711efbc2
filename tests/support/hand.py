"""The protocol by hand: messages that a test writes itself, and transports that lose or spoil replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from paraaegis.crypto.mac import add_tags
from paraaegis.protocol.binding import prove_count
from paraaegis.protocol.client import start, step
from paraaegis.protocol.messages import (
    Aggregate,
    Begin,
    Elected,
    Ended,
    Finish,
    Frames,
    Hello,
    Message,
    Receiver,
    Rescue,
    RollCall,
    Snapshot,
    SnapshotRequest,
    Survivors,
    Upload,
    pack,
    unpack,
)
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import Exchange, Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.single_flight import SingleFlight
from paraaegis.protocol.state import ClientState, ServerState
from paraaegis.protocol.voting import Tally, pack_positions
from paraaegis.types import Blob, Vector
from toy import configure, federation_of, learners_of

Answer = Callable[[], Frames]
Meddle = Callable[[str, Message, Answer], Frames | Reply | str | None]


class Hand:
    """Clients and their states; the test plays the server. Updates: clients × values, or clients × rounds × values."""

    def __init__(self, updates, *settings: str, rounds: int = 3, samples: Sequence[int] | None = None) -> None:
        self.learners = learners_of(updates, samples)
        config = configure(f"federation.clients={len(self.learners)}", f"federation.rounds={rounds}", *settings)
        self.federation = federation_of(config, self.learners)
        self.parameters = self.federation.parameters
        self.silos = {
            name: replace(silo, simulated=False, cache=SingleFlight(), deltas=SingleFlight())
            for name, silo in self.federation.clients.items()
        }
        self.hellos: dict[str, Hello] = {}
        self.states = {name: self.joined(name) for name in self.silos}
        self.weights = {name: self.parameters.weight(learner.samples) for name, learner in self.learners.items()}
        self._proofs = {name: prove_count(silo) for name, silo in self.silos.items()}

    def joined(self, client: str) -> ClientState:
        """A client that has answered the first roll call and nothing else."""
        state, self.hellos[client] = step(
            self.silos[client], start(self.silos[client]), RollCall(round_id=self.parameters.round_id(0))
        )
        return state

    def receiver(self, name: str, sender: str) -> Receiver:
        """How a client says who it is, for a peer that is to seal its model to it."""
        if name in self.silos:
            self.hellos[name] = self.send(name, RollCall(round_id=self.parameters.round_id(0)))
        hello = self.hellos[name]
        return Receiver(hello.once.public, hello.applied, hello.once.proofs.get(sender, b""))

    def peek(self, sender: str, number: int, *receivers: str) -> Snapshot:
        """A client's model, sealed to others."""
        given = {name: self.receiver(name, sender) for name in receivers}
        return self.send(sender, SnapshotRequest(round_id=self.parameters.round_id(number), receivers=given))

    def rescue(self, applied: int, sender: str, sealed: Blob, receiver: str) -> Rescue:
        """What a server passes on of it."""
        return Rescue(applied, sender, self.hellos[receiver].once.public, sealed)

    def counts(self, client: str) -> dict:
        """What a client must be told of the others' weights."""
        if self.parameters.uniform:
            return {}
        return {"counts": self.weights, "proofs": {name: p[client] for name, p in self._proofs.items() if client in p}}

    def send(self, client: str, message: Message) -> Message:
        """One message over the wire and back; the client's new state is kept. Counts are added where they are due."""
        if isinstance(message, Begin | Finish) and not (message.counts or self.states[client].counts.size):
            message = msgspec.structs.replace(message, **self.counts(client))

        def keep(state: ClientState) -> None:
            self.states[client] = state

        self.states[client], reply = step(self.silos[client], self.states[client], unpack(pack(message)), keep)
        return unpack(pack(reply))

    def begin(self, number: int, *aggregates: Aggregate, attempt: int = 0, **changed) -> Begin:
        return Begin(**{"round_id": self.parameters.round_id(number, attempt), "aggregates": aggregates} | changed)

    def elect(self, number: int, ballots: Sequence[Message], attempt: int = 0) -> Elected:
        tally = Tally(self.parameters.k(number), self.parameters.length)
        for ballot in ballots:
            tally.add(ballot.votes)
        return Elected(round_id=self.parameters.round_id(number, attempt), positions=pack_positions(tally.elect()))

    def finish(self, *aggregates: Aggregate) -> Finish:
        return Finish(round_id=self.parameters.round_id(self.parameters.rounds), aggregates=aggregates)

    def sum(
        self,
        number: int,
        uploads: Mapping[str, Upload],
        positions: Blob | None = None,
        rows: Mapping[int, Blob] | None = None,
    ) -> Aggregate:
        """What an honest server makes of these uploads and, if their sum is opened by shares, of these rows."""
        total = self.federation.server.new_sum(self.parameters.round_id(number), self.parameters.k(number))
        for upload in uploads.values():
            total.add(upload.payload)
        if rows:
            total.open(rows, len(rows), len(uploads))
        nonces, tags = [one.nonce for one in uploads.values()], [one.tag for one in uploads.values()]
        attempt = next(iter(uploads.values())).round_id.attempt
        return Aggregate(number, attempt, tuple(uploads), positions, total.close(), tuple(nonces), add_tags(tags))

    def round(
        self,
        number: int,
        *aggregates: Aggregate,
        clients: Sequence[str] | None = None,
        counted: Sequence[str] | None = None,
    ) -> Aggregate:
        """A round of `clients` of which `counted` enter the sum; with none of them it is void."""
        clients = list(self.silos) if clients is None else clients
        counted = clients if counted is None else counted
        replies = {client: self.send(client, self.begin(number, *aggregates)) for client in clients}
        positions = None
        if self.federation.server.votes:
            elected = self.elect(number, list(replies.values()))
            positions = elected.positions
            replies = {client: self.send(client, elected) for client in clients}
        if not counted:
            return Aggregate(number, 0)
        uploads = {client: replies[client] for client in counted}
        return self.sum(number, uploads, positions, self.rows(number, uploads))

    def survivors(self, number: int, uploads: Mapping[str, Upload], client: str, attempt: int = 0) -> Survivors:
        """The request to a client for its sum of these uploads' shares."""
        shares = {name: upload.shares[client] for name, upload in uploads.items() if name != client}
        return Survivors(round_id=self.parameters.round_id(number, attempt), clients=tuple(uploads), shares=shares)

    def rows(
        self, number: int, uploads: Mapping[str, Upload], asked: Sequence[str] | None = None, attempt: int = 0
    ) -> dict[int, Blob]:
        """The sums of shares that clients give out for these uploads, by holder; none if uploads have no shares."""
        members = self.parameters.members(number)
        if not any(upload.shares for upload in uploads.values()):
            return {}
        replies = {
            name: self.send(name, self.survivors(number, uploads, name, attempt))
            for name in (uploads if asked is None else asked)
        }
        return {members.index(name): reply.row for name, reply in replies.items()}


class Served:
    """A whole run over a transport that a test may meddle with: clients answer one after the other, in order."""

    def __init__(self, hand: Hand, meddle: Meddle, state: ServerState | None = None) -> None:
        self.hand, self._meddle = hand, meddle
        self.lines: list[RoundRecord] = []
        self.round_server = RoundServer(hand.parameters, hand.federation.server, state or ServerState())
        self.carried_up = self.carried_down = 0

    def run(self, on_state: Callable[[ServerState], None] = lambda _: None, over: bool = False) -> Served:
        drive(serve(self.round_server, over), self._carry, self.lines.append, on_state)
        return self

    def _carry(self, exchange: Exchange) -> Iterator[Reply]:
        for client, frames in exchange.messages.items():
            request = unpack(frames)
            found = self._meddle(client, request, lambda c=client, r=request: pack(self.hand.send(c, r)))
            if isinstance(found, Reply):
                yield found
                continue
            self.carried_down += sum(len(memoryview(frame)) for frame in frames)
            if isinstance(found, str):
                yield Reply(client, error=found)
            elif found is not None:
                self.carried_up += sum(len(memoryview(frame)) for frame in found)
                yield Reply(client, found)

    def model(self, client: str = "client-0") -> Vector:
        return self.hand.states[client].weights


def honest(_client: str, _request: Message, answer: Answer) -> Frames:
    """The transport that loses and spoils nothing."""
    return answer()


def served(hand: Hand, meddle: Meddle = honest) -> Served:
    return Served(hand, meddle).run()


def mean(updates, weights=None) -> Vector:
    """The weighted mean of clients' updates; exact for updates and weights that are small powers of two."""
    return np.average(np.asarray(updates, dtype=np.float64), axis=0, weights=weights).astype(np.float32)


rng = np.random.default_rng(1)
NOISY = ("privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=tight", "privacy.noise=secret")


def federation(method, clients=3, length=60, *settings, rounds=2, samples=None):
    updates = rng.normal(0, 0.05, (clients, rounds, length)).astype(np.float32)
    noisy = NOISY if method in ("dp-fedavg", "serial", "paraaegis-static", "lwe-secagg") else ()
    playing = Hand(updates, f"protect.method={method}", *noisy, *settings, rounds=rounds, samples=samples)
    return playing, updates


def uploads(playing, number, *aggregates, clients=None, attempt=0):
    """Every client's upload, and the elected positions that go with them."""
    clients = list(playing.silos) if clients is None else clients
    begin = playing.begin(number, *aggregates, attempt=attempt)
    replies = {name: playing.send(name, begin) for name in clients}
    if not playing.federation.server.votes:
        return replies, None
    elected = playing.elect(number, list(replies.values()), attempt)
    return {name: playing.send(name, elected) for name in clients}, elected.positions


def ended(playing, message, name="client-0"):
    """The client refuses, by one fixed answer, and has changed nothing but that it is over."""
    before = playing.states[name].weights.copy()
    reply = playing.send(name, message)
    assert isinstance(reply, Ended)
    assert playing.states[name].phase == "ended"
    np.testing.assert_array_equal(playing.states[name].weights, before)
    return True
