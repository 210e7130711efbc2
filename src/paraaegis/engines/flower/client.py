"""The client's Flower app: for each message, one step of the client on its stored state, and one reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from paraaegis.crypto.enrol import KeyRequest
from paraaegis.engines.flower.frames import from_records, to_error, to_records
from paraaegis.engines.flower.log import timed_log
from paraaegis.engines.flower.store import Store
from paraaegis.errors import ConfigError, CryptoError, ForgedError, PrivacyError, ProtocolError, UpdateError
from paraaegis.protocol.client import start, step
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Begin, Ended, Finish, Frames, pack, unpack
from paraaegis.protocol.state import ClientState

__all__ = ["ClientApp", "Node", "answer", "make_client_app"]
_log = logging.getLogger(__name__)


class Node(Protocol):
    """What a node provides: its folder, its introduction, enrolment, and its client in a run."""

    folder: Path

    def card(self) -> dict[str, str | int | bytes | bool]:
        """The fields of an Introduction."""

    def ask(self, lead_public: bytes) -> KeyRequest:
        """Make the request to the lead for the federation's secrets."""

    def seal(self, asking: Mapping[str, KeyRequest]) -> dict[str, bytes]:
        """As lead, seal the federation's secrets to these clients."""

    def open(self, sealed: bytes, lead_public: bytes) -> None:
        """Open and store secrets that the lead sealed."""

    def client(self, run: str) -> AbstractContextManager[ClientContext]:
        """A context with the node's client in the run of this name."""

    @property
    def spent(self) -> int:
        """The size of its ledger in bytes."""

    def finished(self, state: ClientState) -> None:
        """Called at the end of a run, with the final model."""


def make_client_app(open_node: Callable[[Mapping[str, Any]], Node]) -> ClientApp:
    """A ClientApp; `open_node` makes its node from the --node-config, once per message."""
    app = ClientApp()

    @app.query("who")  # type: ignore[untyped-decorator]
    def who(message: Message, context: Context) -> Message:
        return _replied(message, lambda: RecordDict({"who": ConfigRecord(open_node(context.node_config).card())}))

    @app.query("ask")  # type: ignore[untyped-decorator]
    def ask(message: Message, context: Context) -> Message:
        lead = message.content.config_records["lead"]["public"]

        def asked() -> RecordDict:
            return RecordDict({"asked": ConfigRecord(asdict(open_node(context.node_config).ask(lead)))})

        return _replied(message, asked)

    @app.query("seal")  # type: ignore[untyped-decorator]
    def seal(message: Message, context: Context) -> Message:
        def sealed() -> RecordDict:
            requests = {name: KeyRequest(**record) for name, record in message.content.config_records.items()}
            return RecordDict({"sealed": ConfigRecord(open_node(context.node_config).seal(requests))})

        return _replied(message, sealed)

    @app.query("open")  # type: ignore[untyped-decorator]
    def take(message: Message, context: Context) -> Message:
        record = message.content.config_records["sealed"]

        def opened() -> RecordDict:
            open_node(context.node_config).open(record["secrets"], record["lead"])
            return RecordDict({"opened": ConfigRecord({})})

        return _replied(message, opened)

    @app.train("step")  # type: ignore[untyped-decorator]
    def step(message: Message, context: Context) -> Message:
        return _replied(
            message, lambda: to_records(answer(open_node(context.node_config), from_records(message.content)))
        )

    return app


def _replied(message: Message, work: Callable[[], RecordDict]) -> Message:
    """A reply; on an error, with only a message that the server may see, not a stack trace."""
    with timed_log():
        content = _content(work)
    return Message(content, reply_to=message)


def _content(work: Callable[[], RecordDict]) -> RecordDict:
    try:
        return work()
    except UpdateError:  # its message may contain a value of the update
        _log.exception("an update cannot be sent")
        return to_error("its update cannot be sent; see its node's log for the reason")
    except (ProtocolError, ConfigError, CryptoError, PrivacyError) as error:
        return to_error(str(error))
    except Exception:  # other messages may contain data, paths or counts: they stay in the node's log
        _log.exception("a message was not answered")
        return to_error("it failed; see its node's log for the reason")


def answer(node: Node, frames: Frames) -> Frames:
    """Answer one message. The new state is on disk before the reply is sent, so no round is ever answered twice."""
    message = unpack(frames)
    run = message.round_id.run
    if not run.replace("-", "").isalnum():
        raise ProtocolError(f"a run's name may contain only letters, digits and hyphens, got {run!r}")
    with node.client(run) as client, Store(node.folder / "runs" / run) as store:
        if store.forgotten:
            raise ProtocolError(f"run {run} is over and its state is deleted; each round is answered only once")
        state = start(client) if store.empty else store.state(lambda: start(client).weights)
        trains = isinstance(message, Begin) and message.train
        again = trains and message.round_id.number == state.number  # train an interrupted round again
        if trains and (learner := store.learner(again)):
            client.learner.load(learner)
        new, reply = step(client, state, message, lambda kept: store.save(kept, spent=node.spent))
        ended = isinstance(reply, Ended)
        if new is not state:
            store.save(new, client.learner.state() if trains and not ended else None, again, node.spent)
        if ended:
            _log.error("%s, run %s: %s", client.name, run, ForgedError())  # for its operators; the server gets less
        elif isinstance(message, Finish):
            node.finished(new)
            store.finish()
    return pack(reply)
