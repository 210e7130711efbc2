"""One round: the paper's Algorithm 1.

The client's three stages work on its state alone, the server's generator on messages alone. What surrounds them
(checks, catching up, bookkeeping) is in client.py and server.py. Line numbers are the algorithm's. Applying the
aggregate, which the paper puts at a round's end, opens the next one here, so that a round needs two exchanges.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paraaegis.crypto.ratchet import Ratchet
from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.fixed_point import from_fixed_point
from paraaegis.protocol.binding import verify, weight_of
from paraaegis.protocol.catch_up import begins, called, rescue
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Aggregate, Ballot, Elected, Message, Upload, expect
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.protect import Protected, RevealContext, UploadContext
from paraaegis.protocol.round_server import BELIEFS, RoundServer, Steps, same
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import Tally, cast, pack_positions, select
from paraaegis.types import Blob, Mask, Payload, Vector


def train(client: ClientContext, state: ClientState, number: int) -> Vector:
    """Lines 5 and 6: train K epochs; the update u, with what earlier rounds withheld."""
    trained, _ = client.learner.train(read_only(state.weights), number)
    update: Vector = checked(trained, client, "train") - state.weights
    if state.residual is not None:
        update += state.residual
    if not np.isfinite(update).all():
        raise UpdateError(
            f"training of {client.name} in round {number} gave NaN or infinity; lower the learning rate or the noise"
        )
    return update


def vote(client: ClientContext, keys: Ratchet, update: Vector) -> Blob:
    """Lines 7 and 8: the k largest values of the update, as positions in the secret order."""
    chosen = select(
        client.parameters.strategy, update, client.parameters.k(keys.number), client.votes(keys.number, keys.attempt)
    )
    return cast(chosen, client.places(keys.step))


def prepare(client: ClientContext, state: ClientState) -> UploadContext:
    """What an upload is made with, as far as it is known before the vote."""
    keys = state.keys
    return UploadContext(
        number=keys.number,
        attempt=keys.attempt,
        step=keys.step,
        clients=client.parameters.sampled,
        heaviest=state.heaviest,
        partition=None,
        weight=client.parameters.weight(client.learner.samples) / state.total,
        rng=client.noise(keys.number, keys.attempt),
        name=client.name,
        members=client.parameters.members(keys.number),
    )


def protect(client: ClientContext, context: UploadContext, update: Vector, partition: Partition | None) -> Protected:
    """Lines 13 to 16: divide the update, perturb the outside, encrypt the inside."""
    return client.half.protect(update, replace(context, partition=partition))


def serve_round(server: RoundServer, number: int) -> Steps:
    """Lines 3 to 18 as the server sees them: votes in, elected out, uploads in, one sum out."""
    parameters, half = server.parameters, server.half
    round_id, k, record = (
        parameters.round_id(number, server.state.attempt),
        parameters.k(number),
        server.open_record(number),
    )
    tally, total = Tally(k, parameters.length), half.open(parameters.length, k)
    members = set(parameters.members(number))  # line 3
    ballots: dict[str, str] = {}
    uploads: dict[str, Upload] = {}

    def take_ballot(client: str, reply: Message) -> None:
        ballot = expect(reply, Ballot, round_id)
        same({**ballots, client: ballot.fingerprint}, BELIEFS)
        tally.add(ballot.votes)
        ballots[client] = ballot.fingerprint
        server.note(client, ballot.report)

    def take_upload(client: str, reply: Message) -> None:
        server.take_upload(client, expect(reply, Upload, round_id), total, uploads)  # line 18, one client at a time

    def take_first(client: str, reply: Message) -> None:
        if server.reported(record, client, reply, client in members):
            return
        if half.votes:
            take_ballot(client, reply)
        else:
            take_upload(client, reply)

    yield from rescue(server, record, round_id, called(server, members))
    answered = yield from server.ask(record, begins(server, record, round_id, members), take_first)  # lines 4 to 9
    yield from server.conclude(answered, number - 1)
    counted = [client for client in answered if client in members - record.declined.keys()]
    if server.stop(record, counted):
        return
    elected = None
    if half.votes and len(counted) >= parameters.quorum:
        chosen = tally.elect()  # line 10
        elected, record.agreement = pack_positions(chosen), tally.agreement(chosen)
        message = Elected(round_id=round_id, positions=elected)  # line 11
        counted = yield from server.ask(record, dict.fromkeys(counted, message), take_upload)  # lines 12 to 17
    server.combine(record, total, counted, elected, uploads)


def reveal(client: ClientContext, state: ClientState, aggregate: Aggregate, elected: Mask | None) -> Vector:
    """Lines 20 and 21: decrypt, reorganise, check; the mean over the clients in the sum."""
    payload, number, attempt = check_sum(client, aggregate, elected), aggregate.number, aggregate.attempt
    step = state.keys.at(number, attempt).step
    partition = client.partition(step, elected) if client.half.votes and elected is not None else None
    context = RevealContext(number, attempt, step, client.parameters.sampled, state.heaviest, partition)
    revealed = client.half.reveal(payload, context)
    verify(client, state, aggregate, revealed.parts, elected)
    return from_fixed_point(revealed.steps, revealed.worth * (state.total / weight_of(client, state, aggregate)))


def check_sum(client: ClientContext, aggregate: Aggregate, elected: Mask | None) -> Payload:
    """The sum that a round should bring, as far as it shows without a key."""
    payload, number = aggregate.payload, aggregate.number
    if payload is None or payload.length != client.parameters.length:
        raise ProtocolError(
            f"round {number} should carry {client.parameters.length} values, got {payload and payload.length}"
        )
    if client.half.votes and elected is None:
        raise ProtocolError(f"round {number} came without its elected positions")
    return payload


def apply(client: ClientContext, state: ClientState, delta: Vector | None, aggregate: Aggregate) -> ClientState:
    """Line 22, and the fate of what was withheld: it stays withheld, or all of it returns if it was not counted."""
    weights = state.weights
    if delta is not None:
        weights = checked(client.learner.apply(read_only(weights), read_only(delta)), client, "apply")
    residual = state.residual
    if state.number == aggregate.number and client.half.withholds and state.update is not None:
        sent = state.phase == "sent" and state.attempt == aggregate.attempt
        residual = state.kept if sent and client.name in aggregate.clients else state.update
    keys = state.keys.at(aggregate.number + 1, 0)  # those of this round are not needed any more
    return replace(state, weights=weights, residual=residual, applied=aggregate.number, held=keys, pinned="")


def checked(vector: Vector, client: ClientContext, method: str) -> Vector:
    """What a learner's method returned, if it is a model."""
    if vector.shape != (client.parameters.length,) or vector.dtype != np.float32:
        raise UpdateError(
            f"{method} of {client.name}'s learner must return {client.parameters.length} values of float32, got an "
            f"array of {vector.dtype} and shape {vector.shape}"
        )
    return vector


def read_only(vector: Vector) -> Vector:
    """A view for a learner: what it changed in place would look as if it had learnt nothing."""
    view = vector.view()
    view.flags.writeable = False
    return view
