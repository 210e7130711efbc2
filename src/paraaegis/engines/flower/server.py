"""The server side of Flower: which clients are connected, and exchanges that end when all have answered or time out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from paraaegis.engines.flower.frames import TYPE, error_in, from_error, from_records, marked, to_records
from paraaegis.engines.flower.log import timed_log
from paraaegis.engines.spool import spooled
from paraaegis.engines.transport import States
from paraaegis.errors import ProtocolError
from paraaegis.protocol.round_server import Exchange, Reply

__all__ = ["FlowerTransport", "Introduction", "OpenTransport", "ServerApp", "make_server_app"]

POLL, SLOWEST = 0.2, 2.0  # seconds between polls for replies, at first and after a while: each poll costs a request

AGAIN = 10.0  # seconds until a node that was skipped is asked again
INTRODUCTION = 30.0  # seconds to wait for a new node to introduce itself
OpenTransport = Callable[[float, int, Callable[[str], None]], "FlowerTransport"]  # (deadline, quorum, log function)


class Introduction(msgspec.Struct, frozen=True):
    """How a node introduces itself. Nothing in it is secret."""

    name: str
    length: int
    public: bytes
    key_id: str
    leads: bool


def make_server_app(run: Callable[[OpenTransport, Mapping[str, Any]], None]) -> ServerApp:
    """A ServerApp; `run` gets a function that connects to the nodes, and the --run-config."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        with timed_log():
            run(lambda deadline, quorum, say: FlowerTransport(grid, deadline, quorum, say), context.run_config)

    return app


class FlowerTransport:
    """Carries exchanges to nodes, which it addresses by their clients' names."""

    remote = True
    weights = None

    def __init__(self, grid: Grid, deadline: float, quorum: int, say: Callable[[str], None] = lambda _: None) -> None:
        self._grid, self._deadline, self._quorum, self._say = grid, deadline, quorum, say
        self._names: dict[int, str] = {}  # clients by node, for nodes that have introduced themselves
        self._cards: dict[str, Introduction] = {}
        self._asked: dict[str, int] = {}  # nodes by message, for nodes that have not introduced themselves yet
        self._refused: dict[int, tuple[str, float]] = {}  # by node: why, and when it is asked again

    def meet(self, clients: Sequence[str], patience: float, enough: int) -> list[str]:
        """Wait up to `patience` seconds for all clients; return those connected, which must be at least `enough`."""
        until, awaited = time.monotonic() + patience, list[str]()
        while missing := sorted(set(clients) - set(present := self._present())):
            if awaited != (awaited := missing):
                self._say(f"waiting for {', '.join(missing)}")
            if time.monotonic() > until:
                if len(clients) - len(missing) >= enough:
                    self._say(f"continuing without {', '.join(missing)}, which may join later")
                    break
                raise ProtocolError(
                    f"{', '.join(missing)} did not connect within {patience:.0f} s; connected: "
                    f"{', '.join(sorted(self._names.values())) or 'none'}. "
                    + (self._refusals() or "Check that the missing nodes are running and registered")
                )
            time.sleep(1.0)
        return [client for client in clients if client in present]

    def _refusals(self) -> str:
        return "; ".join(f"node {node} was skipped: {why}" for node, (why, _) in self._refused.items())

    def length(self, clients: Sequence[str]) -> int:
        """The length of these clients' models, which must all be the same."""
        lengths = {client: self._cards[client].length for client in clients}
        if len(set(lengths.values())) != 1:
            raise ProtocolError(f"clients have models of different lengths: {lengths}")
        return lengths[clients[0]]

    def enrol(self, clients: Sequence[str]) -> None:
        """Relay the lead's sealed secrets and roster if any client has none or outdated ones.

        Then every client gets them, since a new roster entry is new to all of them.
        """
        lead = next((client for client in clients if self._cards[client].leads), None)
        if lead is None:
            return
        if len({self._cards[client].key_id for client in clients}) == 1:
            return
        others, lead_public = [client for client in clients if client != lead], self._cards[lead].public
        self._say(f"{lead} seals the federation's secrets to {', '.join(others)}")
        question = RecordDict({"lead": ConfigRecord({"public": lead_public})})
        answers = self._ask(dict.fromkeys(others, question), "ask")
        requests = {client: content.config_records["asked"] for client, content in answers.items()}
        sealed = self._ask({lead: RecordDict(requests)}, "seal")[lead]
        packets = {
            client: RecordDict({"sealed": ConfigRecord({"secrets": secrets, "lead": lead_public})})
            for client, secrets in sealed.config_records["sealed"].items()
        }
        self._ask(packets, "open")

    def _ask(self, contents: Mapping[str, RecordDict], stage: str) -> dict[str, RecordDict]:
        """Carry out an exchange that every client must answer."""
        present = self._present()
        if gone := sorted(set(contents) - set(present)):
            raise ProtocolError(
                f"{', '.join(gone)} disconnected before enrolment; start the run again when they are back"
            )
        messages = ((client, self._message(present[client], stage, content)) for client, content in contents.items())
        answers: dict[str, RecordDict] = {}
        for client, content, error in self._exchange(messages, time.monotonic() + self._deadline):
            if content is None:
                raise ProtocolError(f"{client}: {error}")
            if text := error_in(content):
                raise ProtocolError(f"{client}: {text}")
            answers[client] = content
        if missing := sorted(set(contents) - set(answers)):
            raise ProtocolError(f"{', '.join(missing)} did not answer within {self._deadline:.0f} s")
        return answers

    def _message(self, node: int, stage: str, content: RecordDict) -> Message:
        return Message(marked(stage, content), node, TYPE, ttl=self._deadline)

    def checkpoint(self) -> States:
        """See Transport: nodes keep the states of their clients."""
        return {}

    def carry(self, exchange: Exchange) -> Iterator[Reply]:
        """Yield replies as they arrive; for a client that is disconnected or fails, a reply with the reason.

        If too few clients are connected, for example during a network outage, it waits for them until the deadline.
        """
        until, enough = time.monotonic() + self._deadline, min(self._quorum, len(exchange.messages))
        while len(set(present := self._present()) & set(exchange.messages)) < enough and time.monotonic() < until:
            time.sleep(1.0)
        for client in exchange.messages:
            if client not in present:
                yield Reply(client, error="its node is not connected", lost=True, sent=False)
        yield from self._replies(
            (client, self._message(present[client], "step", to_records(frames)))
            for client, frames in exchange.messages.items()
            if client in present
        )

    def _replies(self, messages: Iterable[tuple[str, Message]]) -> Iterator[Reply]:
        # A new deadline: the time spent waiting for nodes to connect does not count.
        until = time.monotonic() + self._deadline
        for client, content, error in self._exchange(messages, until):
            if content is None:
                yield Reply(client, error=error, lost=True)
                continue
            try:
                yield Reply(client, spooled(from_records(content)))
            except ProtocolError as refused:
                yield Reply(client, error=str(refused))

    def _exchange(
        self, messages: Iterable[tuple[str, Message]], until: float
    ) -> Iterator[tuple[str, RecordDict | None, str]]:
        """Push the messages, then poll; yield each answer as content or as an error text."""
        # One at a time: every message holds a copy of its frames, which may not all fit into memory.
        waiting = {identity: client for client, message in messages for identity in self._grid.push_messages([message])}
        pause = POLL
        while waiting and time.monotonic() < until:
            for identity in list(waiting):  # one at a time: several uploads at once may not fit into memory
                reply = next(iter(self._grid.pull_messages([identity])), None)
                if reply is None:
                    continue
                client = waiting.pop(identity)
                if reply.has_error():
                    yield client, None, f"{reply.error.reason or 'failed'} (code {reply.error.code})"
                else:
                    yield client, reply.content, ""
            if waiting:
                time.sleep(pause)
                pause = min(1.3 * pause, SLOWEST)

    def _present(self) -> dict[str, int]:
        """Connected nodes by client name. New nodes are asked to introduce themselves, with a short wait.

        A node that answers later, for example because it loads much data, counts as connected from then on.
        """
        connected = set(self._grid.get_node_ids())
        early = {node for node, (_, again) in self._refused.items() if time.monotonic() < again}
        new = sorted(connected - set(self._names) - set(self._asked.values()) - early)
        questions = [self._message(node, "who", RecordDict()) for node in new]
        if questions:
            self._asked |= dict(zip(self._grid.push_messages(questions), new, strict=True))
        until = time.monotonic() + min(INTRODUCTION, self._deadline)
        while self._introduced() & set(new) and time.monotonic() < until:
            time.sleep(POLL)
        return {self._names[node]: node for node in sorted(connected) if node in self._names}

    def _introduced(self) -> set[int]:
        """Process the introductions received so far; return the nodes that have not answered yet."""
        for identity, node in list(self._asked.items()):
            reply = next(iter(self._grid.pull_messages([identity])), None)
            if reply is None:
                continue
            del self._asked[identity]
            try:
                if reply.has_error():
                    raise ProtocolError(f"{reply.error.reason or 'failed'} (code {reply.error.code})")
                from_error(reply.content)
                if "who" not in reply.content.config_records:
                    raise ProtocolError("its answer is not from a ParaAegis client; does its ClientApp lack protect()?")
                self._enter(node, msgspec.convert(dict(reply.content.config_records["who"]), Introduction))
                self._refused.pop(node, None)
            except (ProtocolError, msgspec.ValidationError) as refused:
                if str(refused) != self._refused.get(node, ("", 0.0))[0]:
                    self._say(f"skipping node {node}, until it answers otherwise: {refused}")
                self._refused[node] = str(refused), time.monotonic() + AGAIN
        return set(self._asked.values())

    def _enter(self, node: int, card: Introduction) -> None:
        for other in [node for node, name in self._names.items() if name == card.name]:
            if other in set(self._grid.get_node_ids()):
                raise ProtocolError(f"{card.name} is already connected, as node {other}")
            del self._names[other]
        self._names[node], self._cards[card.name] = card.name, card
