"""The server's side of Flower: who is there, and exchanges that end when all have answered or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from paraaegis.engines.flower.frames import error_in, from_error, from_records, to_records
from paraaegis.engines.flower.log import timed_log
from paraaegis.engines.spool import spooled
from paraaegis.errors import ProtocolError
from paraaegis.protocol.round_server import Exchange, Reply

__all__ = ["Connect", "FlowerTransport", "Introduction", "ServerApp", "make_server_app"]

POLL, SLOWEST = 0.2, 2.0  # seconds between two looks for replies, at first and after a while: each look costs a request

INTRODUCTION = 30.0  # seconds that all wait for a newcomer to say who it is
Connect = Callable[[float, int, Callable[[str], None]], "FlowerTransport"]  # of a deadline, a quorum, someone to tell


class Introduction(msgspec.Struct, frozen=True):
    """How a node introduces itself. Nothing of it is secret."""

    name: str
    length: int
    public: bytes
    key_id: str
    leads: bool


def make_server_app(run: Callable[[Connect, Mapping[str, Any]], None]) -> ServerApp:
    """A ServerApp; `run` is given a way to the nodes and the --run-config."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        with timed_log():
            run(lambda deadline, quorum, say: FlowerTransport(grid, deadline, quorum, say), context.run_config)

    return app


class FlowerTransport:
    """Carries exchanges to nodes by the names of their clients."""

    def __init__(self, grid: Grid, deadline: float, quorum: int, say: Callable[[str], None] = lambda _: None) -> None:
        self._grid, self._deadline, self._quorum, self._say = grid, deadline, quorum, say
        self._names: dict[int, str] = {}  # of nodes that said who they are
        self._cards: dict[str, Introduction] = {}
        self._asked: dict[str, int] = {}  # by message: nodes that have not said yet who they are

    def meet(self, clients: Sequence[str], patience: float, enough: int) -> list[str]:
        """Wait until all clients are there, or for as long as patience lasts if `enough` of them are; those who are."""
        until = time.monotonic() + patience
        while missing := sorted(set(clients) - set(present := self._present())):
            if time.monotonic() > until:
                if len(clients) - len(missing) >= enough:
                    self._say(f"going on without {', '.join(missing)}, which may come later")
                    break
                raise ProtocolError(
                    f"{', '.join(missing)} did not come within {patience:.0f} s; there are "
                    f"{', '.join(sorted(self._names.values())) or 'none'}: are their nodes running and registered?"
                )
            time.sleep(1.0)
        return [client for client in clients if client in present]

    def length(self, clients: Sequence[str]) -> int:
        """The length of these clients' models, which must be one."""
        lengths = {client: self._cards[client].length for client in clients}
        if len(set(lengths.values())) != 1:
            raise ProtocolError(f"clients have models of different lengths: {lengths}")
        return lengths[clients[0]]

    def enrol(self, clients: Sequence[str]) -> None:
        """Relay the lead's secrets and roster, sealed, where a client has none or old ones.

        Then all get them: a client that is new to the roster is new to everyone.
        """
        lead = next((client for client in clients if self._cards[client].leads), None)
        if lead is None:
            return
        if len({self._cards[client].key_id for client in clients}) == 1:
            return
        others, leading = [client for client in clients if client != lead], self._cards[lead].public
        self._say(f"{lead} seals the federation's secrets to {', '.join(others)}")
        question = RecordDict({"lead": ConfigRecord({"public": leading})})
        asked = self._ask(dict.fromkeys(others, question), "query.ask")
        asking = {client: content.config_records["asked"] for client, content in asked.items()}
        sealed = self._ask({lead: RecordDict(asking)}, "query.seal")[lead]
        parcels = {
            client: RecordDict({"sealed": ConfigRecord({"secrets": secrets, "lead": leading})})
            for client, secrets in sealed.config_records["sealed"].items()
        }
        self._ask(parcels, "query.open")

    def _ask(self, contents: Mapping[str, RecordDict], kind: str) -> dict[str, RecordDict]:
        """An exchange that everyone must answer."""
        present = self._present()
        if gone := sorted(set(contents) - set(present)):
            raise ProtocolError(f"{', '.join(gone)} left before enrolment; start the run again when they are back")
        messages = (
            (client, Message(content, present[client], kind, ttl=self._deadline))
            for client, content in contents.items()
        )
        found: dict[str, RecordDict] = {}
        for client, content, error in self._exchange(messages, time.monotonic() + self._deadline):
            if content is None:
                raise ProtocolError(f"{client}: {error}")
            if text := error_in(content):
                raise ProtocolError(f"{client}: {text}")
            found[client] = content
        if missing := sorted(set(contents) - set(found)):
            raise ProtocolError(f"{', '.join(missing)} did not answer in time")
        return found

    def carry(self, exchange: Exchange) -> Iterator[Reply]:
        """Replies as they come; a client that is not there, or fails, is answered for with the reason.

        Where too few are connected, as when a network is down, it waits for them until the deadline.
        """
        until, enough = time.monotonic() + self._deadline, min(self._quorum, len(exchange.messages))
        while len(set(present := self._present()) & set(exchange.messages)) < enough and time.monotonic() < until:
            time.sleep(1.0)
        for client in exchange.messages:
            if client not in present:
                yield Reply(client, error="its node is not connected", lost=True, sent=False)
        yield from self._replies(
            (client, Message(to_records(frames), present[client], "train.step", ttl=self._deadline))
            for client, frames in exchange.messages.items()
            if client in present
        )

    def _replies(self, messages: Iterable[tuple[str, Message]]) -> Iterator[Reply]:
        # Anew: waiting for nodes to connect took none of their time to answer.
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
        """Push, then poll; each answer as content, or as an error in words."""
        # One at a time: every message holds a copy of its frames, which need not all fit into memory.
        waiting = {identity: client for client, message in messages for identity in self._grid.push_messages([message])}
        pause = POLL
        while waiting and time.monotonic() < until:
            for identity in list(waiting):  # one at a time: several uploads at once need not fit into memory
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
        """Connected nodes by the names of their clients. Newcomers are asked, and waited for a little.

        Who has much data to read answers later, and is there from then on.
        """
        connected = set(self._grid.get_node_ids())
        new = sorted(connected - set(self._names) - set(self._asked.values()))
        asked = [Message(RecordDict(), node, "query.who", ttl=self._deadline) for node in new]
        if asked:
            self._asked |= dict(zip(self._grid.push_messages(asked), new, strict=True))
        until = time.monotonic() + min(INTRODUCTION, self._deadline)
        while self._introduced() & set(new) and time.monotonic() < until:
            time.sleep(POLL)
        return {self._names[node]: node for node in sorted(connected) if node in self._names}

    def _introduced(self) -> set[int]:
        """Take the answers that are there; the nodes that have not answered."""
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
                    raise ProtocolError("it does not say who it is")
                self._enter(node, msgspec.convert(dict(reply.content.config_records["who"]), Introduction))
            except (ProtocolError, msgspec.ValidationError) as refused:
                self._say(f"node {node} is left out: {refused}")
        return set(self._asked.values())

    def _enter(self, node: int, card: Introduction) -> None:
        for other in [known for known, called in self._names.items() if called == card.name]:
            if other in set(self._grid.get_node_ids()):
                raise ProtocolError(f"{card.name} is there already, as node {other}")
            del self._names[other]
        self._names[node], self._cards[card.name] = card.name, card
