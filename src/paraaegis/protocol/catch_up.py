"""Bringing clients up to date: the roll call, the aggregates that a client missed, or a peer's model instead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from paraaegis.errors import DriftError, ProtocolError
from paraaegis.plural import plural
from paraaegis.protocol.messages import (
    Aggregate,
    Begin,
    Hello,
    Message,
    Receiver,
    Rescue,
    RollCall,
    RoundId,
    Snapshot,
    SnapshotRequest,
    expect,
)
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import RoundServer, Steps, same


def roll_call(server: RoundServer) -> RollCall:
    """The message that asks who is present, with a proof of the run's keys."""
    return RollCall(round_id=server.parameters.round_id(0), root=server.state.root, joined=server.state.agreed[1])


def welcome(server: RoundServer, hellos: Mapping[str, Hello]) -> None:
    """Record each client's hello; refuses clients that differ from the others."""
    agreed = server.state.agreed
    same({client: hello.config for client, hello in hellos.items()}, "configurations", server.parameters.config)
    same({client: hello.model for client, hello in hellos.items()}, "first models", agreed[0])
    joined = {client: hello.joined for client, hello in hellos.items() if not _is_past(server, hello)}
    same(joined, "keys, rosters or secret orders", agreed[1])
    for client, hello in hellos.items():
        _enter(server, client, hello)


def _enter(server: RoundServer, client: str, hello: Hello) -> None:
    parameters, state = server.parameters, server.state
    if hello.weight < (least := max(1, 0 if parameters.uniform else parameters.min_samples)):
        raise ProtocolError(f"{client} has {plural(hello.weight, 'sample')}, needs at least {least}")
    if (enrolled := state.weights.get(client, hello.weight)) != hello.weight:
        raise ProtocolError(
            f"{client} returned with a different sample count: it had {enrolled} and has {hello.weight} now"
        )
    if hello.proofs and set(hello.proofs) != {*parameters.clients} - {client}:
        raise ProtocolError(
            f"{client} should prove its sample count to every other client, got proofs for {list(hello.proofs)}"
        )
    if hello.applied > state.number:
        raise ProtocolError(
            f"{client} has applied round {hello.applied}, but the server's state ends at round {state.number}: "
            "the server's state is out of date"
        )
    if _is_past(server, hello):
        server.keyless.add(client)
    else:
        server.keyless.discard(client)
        state.agreed, state.root = (hello.model, hello.joined), hello.root
    server.one_time_keys[client] = hello.once
    state.weights[client], state.proofs[client] = hello.weight, hello.proofs
    state.seen[client], server.known_positions[client] = hello.applied, (state.number, hello.holds)
    server.needs_roll_call.discard(client)


def _is_past(server: RoundServer, hello: Hello) -> bool:
    """Whether a client's keys are later than this run's."""
    return bool(server.state.agreed[1]) and hello.root > server.state.root


def missed(server: RoundServer, client: str) -> tuple[Aggregate, ...]:
    """The aggregates that this client still needs, each without its elected positions if the client knows them."""
    said_in, holds = server.known_positions.get(client, (0, 0))
    seen = max(server.state.seen[client], server.rescues[client].applied if client in server.rescues else 0)

    def knows_positions(past: Aggregate) -> bool:
        return client in past.clients and (past.number > said_in or past.number == holds)

    return tuple(
        msgspec.structs.replace(past, elected=None) if knows_positions(past) else past
        for past in server.state.history
        if past.number > seen
    )


def rescue(server: RoundServer, record: RoundRecord, round_id: RoundId, clients: Collection[str]) -> Steps:
    """If the kept aggregates no longer go back far enough for a client, ask the most advanced peer for its model.

    The server does not wait for a silent client: it says what it lacks when it is back, and gets it in the next round.
    """
    server.rescues, server.one_time_keys = {}, {}
    asked = server.needs_roll_call | set(_late(server, clients))  # a one-time key is valid until the next message
    yield from _recall(server, record, [client for client in clients if client in asked - server.silent])
    late = [client for client in _late(server, clients) if client in server.one_time_keys]
    if not late:
        return

    def take(peer: str, reply: Message) -> None:
        snapshot = expect(reply, Snapshot, round_id)
        server.rescues = {
            client: Rescue(snapshot.applied, peer, server.one_time_keys[client].public, sealed)
            for client, sealed in snapshot.sealed.items()
            if client in late
        }
        server.keyless.difference_update(server.rescues)

    peers = set(server.parameters.clients) - set(late) - server.silent
    for peer in sorted(peers, key=lambda name: (-server.state.seen[name], server.parameters.clients.index(name))):
        receivers = {
            client: Receiver(once.public, server.state.seen[client], once.proofs.get(peer, b""))
            for client, once in server.one_time_keys.items()
            if client in late
        }
        yield from _ask_aside(server, record, {peer: SnapshotRequest(round_id=round_id, receivers=receivers)}, take)
        if server.rescues:
            return


def _late(server: RoundServer, clients: Collection[str]) -> list[str]:
    """Clients for which the kept aggregates do not go back far enough, or that have no keys for this run."""
    oldest = min((past.number for past in server.state.history), default=1)
    return [client for client in clients if server.state.seen[client] + 1 < oldest or client in server.keyless]


def _recall(server: RoundServer, record: RoundRecord, clients: Collection[str]) -> Steps:
    """Ask these clients again what they have: one that lost its disk is further behind than it was."""
    round_id = server.parameters.round_id(0)

    def take(client: str, reply: Message) -> None:
        try:
            welcome(server, {client: expect(reply, Hello, round_id)})
        except DriftError as error:  # one that differs does not stop the others
            raise ProtocolError(str(error)) from error

    if clients:
        yield from _ask_aside(server, record, dict.fromkeys(clients, roll_call(server)), take)


def _ask_aside(
    server: RoundServer, record: RoundRecord, messages: Mapping[str, Message], take: Callable[[str, Message], None]
) -> Steps:
    """An exchange before the round's own, which drops nobody: a client that does not answer it may still train."""
    before = dict(record.dropped)
    yield from server.ask(record, messages, take)
    record.dropped = before


def called(server: RoundServer, members: Collection[str]) -> list[str]:
    """Who is called in a round: members, who train, and evaluators, who only report."""
    wanted = {*members, *server.parameters.evaluators} - {*server.state.ended}
    return [client for client in server.parameters.clients if client in wanted]


def ready(server: RoundServer, record: RoundRecord, clients: Collection[str]) -> list[str]:
    """Those of these clients that have this run's keys or get them now; the record lists the others as dropped."""
    lacking = server.keyless - server.rescues.keys()
    record.dropped.update({client: "has no keys for this run yet" for client in clients if client in lacking})
    return [client for client in clients if client not in lacking]


def begins(server: RoundServer, record: RoundRecord, round_id: RoundId, members: Collection[str]) -> dict[str, Message]:
    """The first message of a round to each client."""
    return {
        client: Begin(
            round_id=round_id,
            aggregates=missed(server, client),
            train=client in members,
            counts=counts(server, client),
            proofs=proofs(server, client),
            rescue=server.rescues.get(client),
        )
        for client in ready(server, record, called(server, members))
    }


def counts(server: RoundServer, client: str) -> dict[str, int]:
    """Every client's weight, for a client that has not applied a round yet; later it knows them."""
    if server.parameters.uniform or server.state.seen[client]:
        return {}
    return {name: server.state.weights[name] for name in server.parameters.clients}


def proofs(server: RoundServer, client: str) -> dict[str, bytes]:
    """The other clients' proofs of these weights, made for this client."""
    made = server.state.proofs if counts(server, client) else {}
    return {name: proof[client] for name, proof in made.items() if client in proof}
