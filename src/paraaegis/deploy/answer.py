"""One message in, one step of the client on its stored state, one reply out, whatever carries them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from paraaegis.deploy.store import Store
from paraaegis.errors import ForgedError, ProtocolError
from paraaegis.protocol.client import start, step
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Begin, Ended, Finish, Frames, pack, unpack
from paraaegis.protocol.state import ClientState

_log = logging.getLogger(__name__)


class Node(Protocol):
    """What an answer needs of a node."""

    folder: Path

    def client(self, run: str) -> AbstractContextManager[ClientContext]:
        """A context with the node's client in the run of this name."""

    @property
    def spent(self) -> int:
        """The size of its ledger in bytes."""

    def finished(self, state: ClientState) -> None:
        """Called at the end of a run, with the final model."""


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
    of, answered = type(message).__name__, type(reply).__name__
    _log.info("%s, run %s, round %d: %s answered with %s", client.name, run, message.round_id.number, of, answered)
    return pack(reply)
