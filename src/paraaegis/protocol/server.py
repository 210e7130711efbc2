"""A whole run as the server sees it: a generator that asks, takes replies one at a time, and does no I/O.

It yields an Exchange to be carried out, a Line when a round's metrics are in, and its state when it is worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paraaegis.errors import ProtocolError
from paraaegis.protocol.catch_up import counts, missed, proofs, ready, rescue, roll_call, welcome
from paraaegis.protocol.lwe_round import serve_lwe_round
from paraaegis.protocol.messages import Finish, Hello, Message, Reported, RollCall, expect
from paraaegis.protocol.round import serve_round
from paraaegis.protocol.round_server import Desk, Exchange, Item, Reply, Steps
from paraaegis.protocol.state import Line, ServerState


def serve(desk: Desk, over: bool = False) -> Steps:
    """All rounds, or what is left of them; `over`: only the last model, for clients that were away at the end."""
    plan, state = desk.plan, desk.state
    if over:
        late = state.late
        yield from _roll_call(desk, late, 1)
        yield from _finish(desk, late, 1)
        return
    yield from _roll_call(desk, plan.clients, plan.quorum if state.weights else len(plan.clients))
    state.stopped = ""
    for number in range(state.number + 1, plan.rounds + 1):
        yield from serve_lwe_round(desk, number) if desk.half.shares else serve_round(desk, number)
        if state.stopped:
            break
        yield state
    yield from _finish(desk, plan.clients, plan.quorum)


def _roll_call(desk: Desk, clients: Sequence[str], enough: int) -> Steps:
    """Everyone must have the same configuration, first model and keys."""
    where, state = desk.plan.where(0), desk.state
    clients = [client for client in clients if client not in state.ended]
    hellos: dict[str, Hello] = {}
    line = Line(round=0, ratio=0, elected=0)

    def take(client: str, reply: Message) -> None:
        hellos[client] = expect(reply, Hello, where)

    yield from desk.ask(line, dict.fromkeys(clients, roll_call(desk)), take)
    for _ in range(0 if state.weights else len(hellos)):  # at first they agree on which run of their keys it is
        first = max(hellos.values(), key=lambda hello: hello.root)
        behind = [client for client, hello in hellos.items() if hello.root < first.root]
        if not behind:
            break
        for client in behind:
            del hellos[client]
        further = RollCall(where=where, root=first.root, joined=first.joined)
        yield from desk.ask(line, dict.fromkeys(behind, further), take)
    if len(hellos) < min(enough, len(clients)):
        missing = "; ".join(f"{client}: {why}" for client, why in line.dropped.items())
        raise ProtocolError(f"not everyone joined: {missing}")
    welcome(desk, {client: hellos[client] for client in clients if client in hellos})


def _finish(desk: Desk, clients: Sequence[str], enough: int) -> Steps:
    """Hand out the last aggregates, take the last metrics."""
    last = desk.state.number
    if last == 0:  # nobody took part in anything
        yield desk.state
        return
    where, clients = desk.plan.where(last), [client for client in clients if client not in desk.state.ended]

    def take(client: str, reply: Message) -> None:
        desk.note(client, expect(reply, Reported, where).report)

    line = desk.state.pending or Line(round=last, ratio=0, elected=0)
    yield from rescue(desk, line, where, clients)
    finishes: dict[str, Message] = {
        client: Finish(
            where=where,
            aggregates=missed(desk, client),
            counts=counts(desk, client),
            proofs=proofs(desk, client),
            rescue=desk.rescues.get(client),
        )
        for client in ready(desk, line, clients)
    }
    answered = yield from desk.ask(line, finishes, take)
    if len(answered) < min(enough, len(clients)):
        missing = "; ".join(f"{client}: {why}" for client, why in line.dropped.items())
        raise ProtocolError(f"the end of the run reached {len(answered)} clients, {enough} are needed: {missing}")
    yield from desk.conclude(answered, last)
    yield desk.state


def drive(
    steps: Steps,
    carry: Callable[[Exchange], Iterator[Reply]],
    on_line: Callable[[Line], None],
    on_state: Callable[[ServerState], None],
) -> None:
    """Run a server's steps to their end over any carrier of messages."""
    try:
        item = next(steps)
        while True:
            if isinstance(item, Exchange):
                item = _carried(steps, carry(item))
                continue
            if isinstance(item, Line):
                on_line(item)
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
