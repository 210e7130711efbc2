"""The protocol by hand: messages that a test writes itself, and carriers that lose or spoil replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from paraaegis.protocol.client import start, step
from paraaegis.protocol.desk import Desk, Exchange, Reply
from paraaegis.protocol.messages import Aggregate, Begin, Elected, Finish, Frames, Message, pack, unpack
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import Line, ServerState
from paraaegis.protocol.voting import Tally, pack_positions
from paraaegis.types import Vector
from toy import configure, learners_of, wired_of

Answer = Callable[[], Frames]
Meddle = Callable[[str, Message, Answer], Frames | str | None]


class Hand:
    """Clients and their states; the test plays the server. Updates: clients × values, or clients × rounds × values."""

    def __init__(self, updates, *settings: str, rounds: int = 3, samples: Sequence[int] | None = None) -> None:
        self.learners = learners_of(updates, samples)
        config = configure(f"federation.clients={len(self.learners)}", f"federation.rounds={rounds}", *settings)
        self.wired = wired_of(config, self.learners)
        self.plan = self.wired.plan
        self.silos = {name: replace(silo, simulated=False) for name, silo in self.wired.silos.items()}
        self.states = {name: start(silo) for name, silo in self.silos.items()}
        self.weights = {name: self.plan.weight(learner.samples) for name, learner in self.learners.items()}

    @property
    def total(self) -> int:
        return sum(self.weights.values())

    def send(self, client: str, message: Message) -> Message:
        """One message over the wire and back; the client's new state is kept."""
        self.states[client], reply = step(self.silos[client], self.states[client], unpack(pack(message)))
        return unpack(pack(reply))

    def begin(self, number: int, *aggregates: Aggregate, attempt: int = 0, **changed) -> Begin:
        where, heaviest = self.plan.where(number, attempt), max(self.weights.values())
        fields = {"where": where, "total": self.total, "heaviest": heaviest, "aggregates": aggregates} | changed
        return Begin(**fields)

    def elect(self, number: int, ballots: Sequence[Message], attempt: int = 0) -> Elected:
        tally = Tally(self.plan.k(number), self.plan.length)
        for ballot in ballots:
            tally.add(ballot.votes)
        return Elected(where=self.plan.where(number, attempt), positions=pack_positions(tally.elect()))

    def finish(self, *aggregates: Aggregate) -> Finish:
        heaviest = max(self.weights.values())
        return Finish(
            where=self.plan.where(self.plan.rounds), total=self.total, heaviest=heaviest, aggregates=aggregates
        )

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
        if self.wired.server.votes:
            elected = self.elect(number, list(replies.values()))
            positions = elected.positions
            replies = {client: self.send(client, elected) for client in clients}
        if not counted:
            return Aggregate(number, 0)
        total = self.wired.server.open(self.plan.length, self.plan.k(number))
        for client in counted:
            total.add(replies[client].payload)
        weight = sum(self.weights[client] for client in counted)
        return Aggregate(number, 0, weight, tuple(counted), positions, total.close())


class Served:
    """A whole run over a carrier that a test may meddle with: clients answer one after the other, in order."""

    def __init__(self, hand: Hand, meddle: Meddle, state: ServerState | None = None) -> None:
        self.hand, self._meddle = hand, meddle
        self.lines: list[Line] = []
        self.desk = Desk(hand.plan, hand.wired.server, state or ServerState())
        self.carried_up = self.carried_down = 0

    def run(self, on_state: Callable[[ServerState], None] = lambda _: None, over: bool = False) -> Served:
        drive(serve(self.desk, over), self._carry, self.lines.append, on_state)
        return self

    def _carry(self, exchange: Exchange) -> Iterator[Reply]:
        for client, frames in exchange.messages.items():
            self.carried_down += sum(len(memoryview(frame)) for frame in frames)
            request = unpack(frames)
            found = self._meddle(client, request, lambda c=client, r=request: pack(self.hand.send(c, r)))
            if isinstance(found, str):
                yield Reply(client, error=found)
            elif found is not None:
                self.carried_up += sum(len(memoryview(frame)) for frame in found)
                yield Reply(client, found)

    def model(self, client: str = "client-0") -> Vector:
        return self.hand.states[client].weights


def honest(_client: str, _request: Message, answer: Answer) -> Frames:
    """The carrier that loses and spoils nothing."""
    return answer()


def served(hand: Hand, meddle: Meddle = honest) -> Served:
    return Served(hand, meddle).run()


def mean(updates, weights=None) -> Vector:
    """The weighted mean of clients' updates; exact for updates and weights that are small powers of two."""
    return np.average(np.asarray(updates, dtype=np.float64), axis=0, weights=weights).astype(np.float32)
