"""The client's Flower app: for each message, one step of the client on its stored state, and one reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from paraaegis.crypto.enrol import KeyRequest
from paraaegis.engines.flower.frames import from_records, to_error, to_records
from paraaegis.engines.flower.log import timed_log
from paraaegis.errors import ConfigError, CryptoError, PrivacyError, ProtocolError, UpdateError
from paraaegis.protocol.messages import Frames

__all__ = ["ClientApp", "Node", "make_client_app"]
_log = logging.getLogger(__name__)


class Node(Protocol):
    """What a node provides: its introduction, enrolment, and its client's answers."""

    def card(self) -> dict[str, str | int | bytes | bool]:
        """The fields of an Introduction."""

    def ask(self, lead_public: bytes) -> KeyRequest:
        """Make the request to the lead for the federation's secrets."""

    def seal(self, asking: Mapping[str, KeyRequest]) -> dict[str, bytes]:
        """As lead, seal the federation's secrets to these clients."""

    def open(self, sealed: bytes, lead_public: bytes) -> None:
        """Open and store secrets that the lead sealed."""

    def answer(self, frames: Frames) -> Frames:
        """Answer one message of a run."""


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
            message, lambda: to_records(open_node(context.node_config).answer(from_records(message.content)))
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
        _log.warning("a message was refused: %s", error)
        return to_error(str(error))
    except Exception:  # other messages may contain data, paths or counts: they stay in the node's log
        _log.exception("a message was not answered")
        return to_error("it failed; see its node's log for the reason")
