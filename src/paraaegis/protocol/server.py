"""A whole run as the server sees it: a generator that asks, takes replies one at a time, and does no I/O.

It yields an Exchange to be carried out, a Line when a round's metrics are in, and its state when it is worth keeping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paraaegis.errors import ProtocolError
from paraaegis.protocol.desk import Desk, Exchange, Item, Reply, Steps, same
from paraaegis.protocol.lwe_round import serve_lwe_round
from paraaegis.protocol.messages import Finish, Hello, Message, Reported, RollCall, expect
from paraaegis.protocol.round import serve_round
from paraaegis.protocol.state import Line, ServerState


def serve(desk: Desk, over: bool = False) -> Steps:
    """All rounds, or what is left of them; `over`: only the last model, for clients that were away at the end."""
    yield from _roll_call(desk)
    if not over:
        yield from _rounds(desk)
    yield from _finish(desk)


def _rounds(desk: Desk) -> Steps:
    desk.state.stopped = ""
    for number in range(desk.state.number + 1, desk.plan.rounds + 1):
        yield from serve_lwe_round(desk, number) if desk.half.shares else serve_round(desk, number)
        if desk.state.stopped:
            return
        yield desk.state


def _roll_call(desk: Desk) -> Steps:
    """Everyone must have the same configuration, first model and secret order; a resumed run needs a quorum only."""
    plan, state, where = desk.plan, desk.state, desk.plan.where(0)
    hellos: dict[str, Hello] = {}
    line = Line(round=0, ratio=0, elected=0)

    def take(client: str, reply: Message) -> None:
        hellos[client] = expect(reply, Hello, where)

    yield from desk.ask(line, dict.fromkeys(plan.clients, RollCall(where=where)), take)
    if line.dropped and (not state.weights or len(hellos) < plan.quorum):
        missing = "; ".join(f"{client}: {why}" for client, why in line.dropped.items())
        raise ProtocolError(f"not everyone joined: {missing}")
    same({client: hello.config for client, hello in hellos.items()}, "configurations", plan.config)
    same({client: hello.model for client, hello in hellos.items()}, "first models")
    same({client: hello.fingerprint for client, hello in hellos.items()}, "secret orders or CKKS keys")
    weights = {**state.weights, **{client: hello.weight for client, hello in hellos.items()}}
    least = 1 if plan.uniform else plan.min_samples
    if few := [client for client, weight in weights.items() if weight < max(1, least)]:
        raise ProtocolError(f"{few[0]} has {weights[few[0]]} samples, at least {max(1, least)} are needed")
    if ahead := [client for client, hello in hellos.items() if hello.applied > state.number]:
        found = hellos[ahead[0]].applied
        raise ProtocolError(
            f"{ahead[0]} is past round {found}, the server's state is of round {state.number}: it is old"
        )
    if state.weights not in ({}, weights):
        raise ProtocolError(f"clients came back with other sample counts: {state.weights} became {weights}")
    state.weights = {client: weights[client] for client in plan.clients}
    state.publics.update({client: hello.public for client, hello in hellos.items()})
    state.seen.update({client: hello.applied for client, hello in hellos.items()})


def _finish(desk: Desk) -> Steps:
    """Hand out the last aggregates, take the last metrics."""
    plan, last = desk.plan, desk.state.number
    where = plan.where(last)

    def take(client: str, reply: Message) -> None:
        desk.note(client, expect(reply, Reported, where).report)

    line = desk.state.pending or Line(round=last, ratio=0, elected=0)
    yield from desk.rescue(line, where, plan.clients)
    finishes: dict[str, Message] = {
        client: Finish(
            where=where,
            total=sum(desk.weights),
            heaviest=max(desk.weights),
            aggregates=desk.missed(client),
            rescue=desk.rescues.get(client),
        )
        for client in plan.clients
    }
    answered = yield from desk.ask(line, finishes, take)
    if len(answered) < plan.quorum:
        missing = "; ".join(f"{client}: {why}" for client, why in line.dropped.items())
        raise ProtocolError(f"the end of the run reached {len(answered)} clients, {plan.quorum} are needed: {missing}")
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
