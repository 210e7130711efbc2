"""The client's Flower app: for each message, one step of the client on its stored state, and one reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from paraaegis.crypto.enrol import KeyRequest
from paraaegis.engines.flower.frames import MARK, from_records, stage_of, to_error, to_records
from paraaegis.engines.flower.log import timed_log
from paraaegis.errors import ConfigError, CryptoError, PrivacyError, ProtocolError, UpdateError
from paraaegis.protocol.messages import Frames

__all__ = ["ClientApp", "Node", "answer", "make_client_app", "reply_to"]
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

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        return reply_to(message, lambda: answer(open_node(context.node_config), message.content))

    return app


def reply_to(message: Message, work: Callable[[], RecordDict]) -> Message:
    """A node's reply; on an error, with only a message that the server may see, not a stack trace."""
    with timed_log():
        content = _content(work)
    return Message(content, reply_to=message)


def answer(node: Node, content: RecordDict) -> RecordDict:
    """A node's answer to a message of one of the protocol's stages."""
    records = content.config_records
    match stage_of(content):
        case "who":
            return RecordDict({"who": ConfigRecord(node.card())})
        case "ask":
            return RecordDict({"asked": ConfigRecord(asdict(node.ask(records["lead"]["public"])))})
        case "seal":
            requests = {name: KeyRequest(**record) for name, record in records.items() if name != MARK}
            return RecordDict({"sealed": ConfigRecord(node.seal(requests))})
        case "open":
            node.open(records["sealed"]["secrets"], records["sealed"]["lead"])
            return RecordDict({"opened": ConfigRecord({})})
        case "step":
            return to_records(node.answer(from_records(content)))
        case stage:
            raise ProtocolError(f"this node answers messages of a ParaAegis server only, got stage {stage!r}")


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
