"""What each client has to be told: who it is to the others, which rounds it lacks, and how it gets them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from paraaegis.errors import DriftError, ProtocolError
from paraaegis.protocol.messages import (
    Aggregate,
    Begin,
    Hello,
    Message,
    Peek,
    Receiver,
    Rescue,
    RollCall,
    Snapshot,
    Where,
    expect,
)
from paraaegis.protocol.round_server import Desk, Steps, same
from paraaegis.protocol.state import Line


def roll_call(desk: Desk) -> RollCall:
    """Ask who is present, with a proof of the run's keys."""
    return RollCall(where=desk.plan.where(0), root=desk.state.root, joined=desk.state.agreed[1])


def welcome(desk: Desk, hellos: Mapping[str, Hello]) -> None:
    """Record each client's hello; refuses clients that differ from the others."""
    agreed = desk.state.agreed
    same({client: hello.config for client, hello in hellos.items()}, "configurations", desk.plan.config)
    same({client: hello.model for client, hello in hellos.items()}, "first models", agreed[0])
    joined = {client: hello.joined for client, hello in hellos.items() if not _is_past(desk, hello)}
    same(joined, "keys, rosters or secret orders", agreed[1])
    for client, hello in hellos.items():
        _enter(desk, client, hello)


def _enter(desk: Desk, client: str, hello: Hello) -> None:
    plan, state = desk.plan, desk.state
    if hello.weight < (least := max(1, 0 if plan.uniform else plan.min_samples)):
        raise ProtocolError(f"{client} has {hello.weight} samples, at least {least} are needed")
    if (known := state.weights.get(client, hello.weight)) != hello.weight:
        raise ProtocolError(f"{client} came back with other sample counts: {known} became {hello.weight}")
    if hello.proofs and set(hello.proofs) != {*plan.clients} - {client}:
        raise ProtocolError(f"{client} should prove its sample count to every other client, got {list(hello.proofs)}")
    if hello.applied > state.number:
        raise ProtocolError(
            f"{client} is past round {hello.applied}, the server's state is of round {state.number}: it is old"
        )
    if _is_past(desk, hello):
        desk.keyless.add(client)
    else:
        desk.keyless.discard(client)
        state.agreed, state.root = (hello.model, hello.joined), hello.root
    desk.onces[client] = hello.once
    state.weights[client], state.proofs[client] = hello.weight, hello.proofs
    state.seen[client], desk.told[client] = hello.applied, (state.number, hello.holds)
    desk.doubtful.discard(client)


def _is_past(desk: Desk, hello: Hello) -> bool:
    """Whether a client's keys are later ones than this run's."""
    return bool(desk.state.agreed[1]) and hello.root > desk.state.root


def missed(desk: Desk, client: str) -> tuple[Aggregate, ...]:
    """The aggregates that this client has not seen and no peer's model holds, without what it knows of them."""
    told, holds = desk.told.get(client, (0, 0))
    seen = max(desk.state.seen[client], desk.rescues[client].applied if client in desk.rescues else 0)

    def known(past: Aggregate) -> bool:
        return client in past.clients and (past.number > told or past.number == holds)

    return tuple(
        msgspec.structs.replace(past, elected=None) if known(past) else past
        for past in desk.state.history
        if past.number > seen
    )


def rescue(desk: Desk, line: Line, where: Where, clients: Collection[str]) -> Steps:
    """Where the kept aggregates no longer reach a client, ask the one that is furthest for its model.

    A silent client is not waited upon: it says what it lacks when it is back, and gets it in the next round.
    """
    desk.rescues, desk.onces = {}, {}
    asked = desk.doubtful | set(_late(desk, clients))  # a one-time key is good until the next message
    yield from _recall(desk, line, [client for client in clients if client in asked - desk.silent])
    late = [client for client in _late(desk, clients) if client in desk.onces]
    if not late:
        return

    def take(peer: str, reply: Message) -> None:
        snapshot = expect(reply, Snapshot, where)
        desk.rescues = {
            client: Rescue(snapshot.applied, peer, desk.onces[client].public, sealed)
            for client, sealed in snapshot.sealed.items()
            if client in late
        }
        desk.keyless.difference_update(desk.rescues)

    peers = set(desk.plan.clients) - set(late) - desk.silent
    for peer in sorted(peers, key=lambda name: (-desk.state.seen[name], desk.plan.clients.index(name))):
        receivers = {
            client: Receiver(once.public, desk.state.seen[client], once.proofs.get(peer, b""))
            for client, once in desk.onces.items()
            if client in late
        }
        yield from _ask_aside(desk, line, {peer: Peek(where=where, receivers=receivers)}, take)
        if desk.rescues:
            return


def _late(desk: Desk, clients: Collection[str]) -> list[str]:
    """Clients that the kept aggregates do not reach, or that have no keys of this run."""
    oldest = min((past.number for past in desk.state.history), default=1)
    return [client for client in clients if desk.state.seen[client] + 1 < oldest or client in desk.keyless]


def _recall(desk: Desk, line: Line, clients: Collection[str]) -> Steps:
    """Ask again what these have: one that lost its disk is further behind than it was."""
    where = desk.plan.where(0)

    def take(client: str, reply: Message) -> None:
        try:
            welcome(desk, {client: expect(reply, Hello, where)})
        except DriftError as error:  # one of them alone does not stop the others
            raise ProtocolError(str(error)) from error

    if clients:
        yield from _ask_aside(desk, line, dict.fromkeys(clients, roll_call(desk)), take)


def _ask_aside(desk: Desk, line: Line, messages: Mapping[str, Message], take: Callable[[str, Message], None]) -> Steps:
    """An exchange before the round's own, which drops nobody: who does not answer this may still train."""
    before = dict(line.dropped)
    yield from desk.ask(line, messages, take)
    line.dropped = before


def called(desk: Desk, members: set[str]) -> list[str]:
    """Who hears of a round: members, who train in it, and evaluators, who only report."""
    told = (members | {*desk.plan.evaluators}) - {*desk.state.ended}
    return [client for client in desk.plan.clients if client in told]


def ready(desk: Desk, line: Line, clients: Collection[str]) -> list[str]:
    """Those of these clients that have this run's keys, or are given them now; the others are named in the line."""
    lacking = desk.keyless - desk.rescues.keys()
    line.dropped.update({client: "has no keys of this run yet" for client in clients if client in lacking})
    return [client for client in clients if client not in lacking]


def begins(desk: Desk, line: Line, where: Where, members: set[str]) -> dict[str, Message]:
    """The round's first messages."""
    return {
        client: Begin(
            where=where,
            aggregates=missed(desk, client),
            train=client in members,
            counts=counts(desk, client),
            proofs=proofs(desk, client),
            rescue=desk.rescues.get(client),
        )
        for client in ready(desk, line, called(desk, members))
    }


def counts(desk: Desk, client: str) -> dict[str, int]:
    """Every client's weight, for one that has not applied a round yet: from then on it knows them."""
    if desk.plan.uniform or desk.state.seen[client]:
        return {}
    return {name: desk.state.weights[name] for name in desk.plan.clients}


def proofs(desk: Desk, client: str) -> dict[str, bytes]:
    """What the others prove these weights by, to this client."""
    made = desk.state.proofs if counts(desk, client) else {}
    return {name: proof[client] for name, proof in made.items() if client in proof}
