"""A whole run on the server: a generator that asks, takes replies one at a time, and does no I/O.

It yields an Exchange to be carried out, a RoundRecord when a round's metrics are in, and its state when it should be
saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paraaegis.errors import ProtocolError
from paraaegis.plural import plural
from paraaegis.protocol.catch_up import counts, missed, proofs, ready, rescue, roll_call, welcome
from paraaegis.protocol.messages import Finish, Hello, Message, ReportOnly, RollCall, expect
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round import serve_round
from paraaegis.protocol.round_server import Exchange, Item, Reply, RoundServer, Steps
from paraaegis.protocol.state import ServerState


def serve(server: RoundServer, over: bool = False) -> Steps:
    """All rounds, or the remaining ones; `over`: only the last model, for clients that were absent at the end."""
    parameters, state = server.parameters, server.state
    if over:
        late = state.late
        yield from _roll_call(server, late, 1)
        yield from _finish(server, late, 1)
        return
    yield from _roll_call(server, parameters.clients, parameters.quorum if state.weights else len(parameters.clients))
    while state.number < parameters.rounds and not state.stopped:
        yield from serve_round(server, state.number + 1)
        if not state.stopped:
            yield state
    yield from _finish(server, parameters.clients, parameters.quorum)


def _roll_call(server: RoundServer, clients: Sequence[str], enough: int) -> Steps:
    """Ask who is present; all clients must have the same configuration, first model and keys."""
    round_id, state = server.parameters.round_id(0), server.state
    clients = [client for client in clients if client not in state.ended]
    hellos: dict[str, Hello] = {}
    record = RoundRecord(round=0, ratio=0, elected=0)

    def take(client: str, reply: Message) -> None:
        hellos[client] = expect(reply, Hello, round_id)

    yield from server.ask(record, dict.fromkeys(clients, roll_call(server)), take)
    for _ in range(0 if state.weights else len(hellos)):  # a new run: clients agree on a root
        first = max(hellos.values(), key=lambda hello: hello.root)
        behind = [client for client, hello in hellos.items() if hello.root < first.root]
        if not behind:
            break
        for client in behind:
            del hellos[client]
        further = RollCall(round_id=round_id, root=first.root, joined=first.joined)
        yield from server.ask(record, dict.fromkeys(behind, further), take)
    if len(hellos) < min(enough, len(clients)):
        missing = "; ".join(f"{client}: {why}" for client, why in record.dropped.items())
        raise ProtocolError(f"not everyone joined: {missing}")
    welcome(server, {client: hellos[client] for client in clients if client in hellos})


def _finish(server: RoundServer, clients: Sequence[str], enough: int) -> Steps:
    """Hand out the last aggregates and take the last metrics."""
    last = server.state.number
    if last == 0:  # no round took place
        yield server.state
        return
    round_id, clients = (
        server.parameters.round_id(last),
        [client for client in clients if client not in server.state.ended],
    )

    def take(client: str, reply: Message) -> None:
        server.note(client, expect(reply, ReportOnly, round_id).report)

    record = server.state.pending or RoundRecord(round=last, ratio=0, elected=0)
    yield from rescue(server, record, round_id, clients)
    finishes: dict[str, Message] = {
        client: Finish(
            round_id=round_id,
            aggregates=missed(server, client),
            counts=counts(server, client),
            proofs=proofs(server, client),
            rescue=server.rescues.get(client),
        )
        for client in ready(server, record, clients)
    }
    answered = yield from server.ask(record, finishes, take)
    if len(answered) < min(enough, len(clients)):
        missing = "; ".join(f"{client}: {why}" for client, why in record.dropped.items())
        raise ProtocolError(
            f"the last aggregates reached {plural(len(answered), 'client')}, expected {enough} or more: {missing}"
        )
    yield from server.conclude(answered, last)
    yield server.state


def drive(
    steps: Steps,
    carry: Callable[[Exchange], Iterator[Reply]],
    on_record: Callable[[RoundRecord], None],
    on_state: Callable[[ServerState], None],
) -> None:
    """Run a server's steps to the end; `carry` sends an exchange's messages and yields the replies."""
    try:
        item = next(steps)
        while True:
            if isinstance(item, Exchange):
                item = _carried(steps, carry(item))
                continue
            if isinstance(item, RoundRecord):
                on_record(item)
            elif isinstance(item, ServerState):
                on_state(item)
            item = next(steps)
    except StopIteration:
        return


def _carried(steps: Steps, replies: Iterator[Reply]) -> Item:
    for reply in replies:
        item = steps.send(reply)
        if item is not None:
            return item
    return steps.send(None)
