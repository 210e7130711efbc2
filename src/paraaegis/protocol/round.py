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
from paraaegis.fixed_point import from_grid
from paraaegis.protocol.binding import verify, weight_of
from paraaegis.protocol.catch_up import begins, called, rescue
from paraaegis.protocol.client_context import Silo
from paraaegis.protocol.messages import Aggregate, Ballot, Elected, Message, Upload, expect
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.protect import Protected, Sight, Turn
from paraaegis.protocol.round_server import BELIEFS, Desk, Steps, same
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import Tally, cast, pack_positions, select
from paraaegis.types import Blob, Mask, Payload, Vector


def train(silo: Silo, state: ClientState, number: int) -> Vector:
    """Lines 5 and 6: train K epochs; the update u, with what earlier rounds withheld."""
    trained, _ = silo.learner.train(read_only(state.weights), number)
    update: Vector = checked(trained, silo, "train") - state.weights
    if state.residual is not None:
        update += state.residual
    if not np.isfinite(update).all():
        raise UpdateError(
            f"training of {silo.name} in round {number} gave NaN or infinity; lower the learning rate or the noise"
        )
    return update


def vote(silo: Silo, keys: Ratchet, update: Vector) -> Blob:
    """Lines 7 and 8: the k largest values of the update, as positions in the secret order."""
    chosen = select(silo.plan.strategy, update, silo.plan.k(keys.number), silo.votes(keys.number, keys.attempt))
    return cast(chosen, silo.places(keys.step))


def prepare(silo: Silo, state: ClientState) -> Turn:
    """What an upload is made with, as far as it is known before the vote."""
    keys = state.keys
    return Turn(
        number=keys.number,
        attempt=keys.attempt,
        step=keys.step,
        clients=silo.plan.sampled,
        heaviest=state.heaviest,
        partition=None,
        weight=silo.plan.weight(silo.learner.samples) / state.total,
        rng=silo.noise(keys.number, keys.attempt),
        name=silo.name,
        members=silo.plan.members(keys.number),
    )


def protect(silo: Silo, turn: Turn, update: Vector, partition: Partition | None) -> Protected:
    """Lines 13 to 16: divide the update, perturb the outside, encrypt the inside."""
    return silo.half.protect(update, replace(turn, partition=partition))


def serve_round(desk: Desk, number: int) -> Steps:
    """Lines 3 to 18 as the server sees them: votes in, elected out, uploads in, one sum out."""
    plan, half = desk.plan, desk.half
    where, k, line = plan.where(number, desk.state.attempt), plan.k(number), desk.open_line(number)
    tally, total = Tally(k, plan.length), half.open(plan.length, k)
    members = set(plan.members(number))  # line 3
    ballots: dict[str, str] = {}
    uploads: dict[str, Upload] = {}

    def take_ballot(client: str, reply: Message) -> None:
        ballot = expect(reply, Ballot, where)
        same({**ballots, client: ballot.fingerprint}, BELIEFS)
        tally.add(ballot.votes)
        ballots[client] = ballot.fingerprint
        desk.note(client, ballot.report)

    def take_upload(client: str, reply: Message) -> None:
        desk.take_upload(client, expect(reply, Upload, where), total, uploads)  # line 18, one client at a time

    def take_first(client: str, reply: Message) -> None:
        if desk.reported(line, client, reply, client in members):
            return
        if half.votes:
            take_ballot(client, reply)
        else:
            take_upload(client, reply)

    yield from rescue(desk, line, where, called(desk, members))
    answered = yield from desk.ask(line, begins(desk, line, where, members), take_first)  # lines 4 to 9
    yield from desk.conclude(answered, number - 1)
    counted = [client for client in answered if client in members - line.declined.keys()]
    if desk.stop(line, counted):
        return
    elected = None
    if half.votes and len(counted) >= plan.quorum:
        chosen = tally.elect()  # line 10
        elected, line.agreement = pack_positions(chosen), tally.agreement(chosen)
        message = Elected(where=where, positions=elected)  # line 11
        counted = yield from desk.ask(line, dict.fromkeys(counted, message), take_upload)  # lines 12 to 17
    desk.combine(line, total, counted, elected, uploads)


def reveal(silo: Silo, state: ClientState, aggregate: Aggregate, elected: Mask | None) -> Vector:
    """Lines 20 and 21: decrypt, reorganise, check; the mean over the clients in the sum."""
    payload, number, attempt = check_sum(silo, aggregate, elected), aggregate.number, aggregate.attempt
    step = state.keys.at(number, attempt).step
    partition = silo.partition(step, elected) if silo.half.votes and elected is not None else None
    sight = Sight(number, attempt, step, silo.plan.sampled, state.heaviest, partition)
    revealed = silo.half.reveal(payload, sight)
    verify(silo, state, aggregate, revealed.parts, elected)
    return from_grid(revealed.steps, revealed.worth * (state.total / weight_of(silo, state, aggregate)))


def check_sum(silo: Silo, aggregate: Aggregate, elected: Mask | None) -> Payload:
    """The sum that a round should bring, as far as it shows without a key."""
    payload, number = aggregate.payload, aggregate.number
    if payload is None or payload.length != silo.plan.length:
        raise ProtocolError(f"round {number} should carry {silo.plan.length} values, got {payload and payload.length}")
    if silo.half.votes and elected is None:
        raise ProtocolError(f"round {number} came without its elected positions")
    return payload


def apply(silo: Silo, state: ClientState, delta: Vector | None, aggregate: Aggregate) -> ClientState:
    """Line 22, and the fate of what was withheld: it stays withheld, or all of it returns if it was not counted."""
    weights = state.weights
    if delta is not None:
        weights = checked(silo.learner.apply(read_only(weights), read_only(delta)), silo, "apply")
    residual = state.residual
    if state.number == aggregate.number and silo.half.withholds and state.update is not None:
        sent = state.phase == "sent" and state.attempt == aggregate.attempt
        residual = state.kept if sent and silo.name in aggregate.clients else state.update
    keys = state.keys.at(aggregate.number + 1, 0)  # those of this round are not needed any more
    return replace(state, weights=weights, residual=residual, applied=aggregate.number, held=keys, pinned="")


def checked(vector: Vector, silo: Silo, method: str) -> Vector:
    """What a learner's method returned, if it is a model."""
    if vector.shape != (silo.plan.length,) or vector.dtype != np.float32:
        raise UpdateError(
            f"{method} of {silo.name}'s learner must return {silo.plan.length} values of float32, got an array of "
            f"{vector.dtype} and shape {vector.shape}"
        )
    return vector


def read_only(vector: Vector) -> Vector:
    """A view for a learner: what it changed in place would look as if it had learnt nothing."""
    view = vector.view()
    view.flags.writeable = False
    return view
