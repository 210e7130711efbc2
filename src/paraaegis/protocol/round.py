"""One round: the paper's Algorithm 1, first on a client, then on the server.

The client's stages work only on its state, the server's generator only on messages. What surrounds them (checks,
catching up, bookkeeping) is in client.py and server.py. Line numbers are the algorithm's. The paper applies the
aggregate at the end of a round; here that is the first step of the next round, so that a round needs two exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from paraaegis.crypto.ratchet import Ratchet
from paraaegis.errors import ForgedError, ProtocolError, UpdateError
from paraaegis.fixed_point import from_fixed_point
from paraaegis.parallel import in_background
from paraaegis.protocol.binding import (
    chain_after,
    check_members,
    digest_of_sum,
    sign,
    verify,
    view,
    view_in_round,
    weight_of,
)
from paraaegis.protocol.catch_up import begins, called, rescue
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.contexts import RevealContext, UploadContext
from paraaegis.protocol.messages import Aggregate, Ballot, Elected, Message, Report, Upload, expect
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.protect import Protected
from paraaegis.protocol.round_server import FINGERPRINTED, RoundServer, Steps, same
from paraaegis.protocol.shares import check_addressed, interrupted, open_sum, seal_shares
from paraaegis.protocol.single_flight import Stopwatch
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import Tally, cast, pack_positions, select, unpack_positions
from paraaegis.types import Blob, Mask, Payload, Vector

Keep = Callable[[ClientState], None]


def train_and_vote(
    client: ClientContext, state: ClientState, number: int, attempt: int, model: bytes, report: Report, watch: Stopwatch
) -> tuple[ClientState, Ballot | Upload]:
    """Lines 4 to 8 on a client: train, then vote. Methods without a vote send their update at once."""
    state = replace(state, held=state.keys.at(number, attempt), model=model.hex())
    step, own_view = state.keys.step, view(client, state, model)
    fingerprint = in_background(lambda: client.fingerprint(step, own_view))  # it needs the secret order
    if client.half.votes:
        in_background(lambda: client.places(step))  # the vote asks for them again, and raises any error
    context = prepare(client, state)
    if client.prepares:
        ahead = in_background(partial(client.half.ahead, context, client.parameters.length))
        context = replace(context, ahead=ahead)
    client.ledger.record(client.training(number, attempt, state.model))
    with watch("train"):
        update = train(client, state, number)
    state = replace(
        state,
        number=number,
        attempt=attempt,
        update=update,
        fingerprint=fingerprint.result(),
        view=own_view.hex(),
        nonce="",
        upload_context=context,
        next_residual=None,
        elected=None,
        share=None,
    )
    if not client.half.votes:
        return protect_and_send(client, state, None, report, watch)
    client.ledger.record(client.releases(number, attempt, [client.half.ballot], state.model))
    with watch("vote"):
        votes = vote(client, state.keys, update)
    round_id = client.parameters.round_id(number, attempt)
    ballot = Ballot(round_id=round_id, votes=votes, fingerprint=state.fingerprint, report=report)
    return replace(state, phase="voted"), ballot


def protect_and_send(
    client: ClientContext, state: ClientState, elected: Mask | None, report: Report, watch: Stopwatch
) -> tuple[ClientState, Upload]:
    """Lines 12 to 17 on a client: split the update at the elected positions, protect both parts, send them."""
    number, attempt, update, step = state.number, state.attempt, state.update, state.keys.step
    if update is None:
        raise ProtocolError(f"{client.name} has no update to send in round {number}")
    client.ledger.record(client.releases(number, attempt, model=state.model))
    with watch("protect"):
        partition = None if elected is None else client.partition(step, elected)
        protected = protect(client, state.upload_context or prepare(client, state), update, partition)
        nonce, tag = sign(client, state, step, protected.parts, elected)
        shares = seal_shares(client, state, protected.shares)
    fingerprint = state.fingerprint if elected is None else client.tag_outcome(step, state.fingerprint, elected)
    upload = Upload(
        round_id=client.parameters.round_id(number, attempt),
        payload=protected.payload,
        fingerprint=fingerprint,
        report=report,
        nonce=nonce,
        tag=tag,
        shares=shares,
    )
    state = replace(
        state,
        phase="sent",
        update=None if protected.residual is None else update,  # becomes the residual if the upload is not counted
        next_residual=protected.residual,
        elected=elected,
        upload_context=None,
        nonce=nonce.hex(),
        share=protected.shares.get(client.name),
    )
    return state, upload


def apply_outcome(client: ClientContext, state: ClientState, aggregate: Aggregate, keep: Keep) -> ClientState:
    """Lines 19 to 23 on a client, for one round: check, reveal and apply its sum, or record that the round is void."""
    number, attempt, chain = aggregate.number, aggregate.attempt, chain_after(state, aggregate)
    if aggregate.payload is None:
        if aggregate != Aggregate(number, attempt):
            raise ProtocolError(f"round {number} has no sum, but it has clients, nonces, a tag or positions")
        if state.pinned:  # a sum of this round was being checked
            raise ForgedError
        return replace(apply(client, state, None, aggregate), chains=state.chains + chain)
    check_members(client, state, aggregate)
    elected = None
    if state.uploaded and (state.number, state.attempt) == (number, attempt):
        elected = state.elected
    elif aggregate.elected is not None:
        elected = unpack_positions(aggregate.elected, client.parameters.k(number), client.parameters.length)
    state = replace(state, view=view_in_round(client, state, number))
    if not client.resident:
        state = pin(client, state, aggregate, elected, keep)
    # The clients of one process reveal an aggregate once; each applies it to its own model.
    key = (client.parameters.run, state.view, chain)
    delta = client.deltas(key, lambda: reveal(client, state, aggregate, elected))
    return replace(apply(client, state, delta, aggregate), chains=state.chains + chain)


def train(client: ClientContext, state: ClientState, number: int) -> Vector:
    """Lines 5 and 6: train K epochs. Returns the update u, including what earlier rounds withheld."""
    trained, metrics = client.learner.train(state.weights, number)
    if metrics:
        client.log_metrics("train", number, metrics)
    update: Vector = trained - state.weights
    if state.residual is not None:
        update += state.residual
    if not np.isfinite(update).all():
        raise UpdateError(
            f"training of {client.name} in round {number} gave NaN or infinity; lower the learning rate or the noise"
        )
    return update


def vote(client: ClientContext, keys: Ratchet, update: Vector) -> Blob:
    """Lines 7 and 8: the k largest values of the update, as positions in the secret order."""
    parameters, rng = client.parameters, client.votes(keys.number, keys.attempt)
    return cast(select(parameters.strategy, update, parameters.k(keys.number), rng), client.places(keys.step))


def prepare(client: ClientContext, state: ClientState) -> UploadContext:
    """What is needed to make an upload, as far as it is known before the vote."""
    keys = state.keys
    return UploadContext(
        round_id=client.parameters.round_id(keys.number, keys.attempt),
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
    """Lines 13 to 16: split the update, encrypt the elected values, clip and perturb the rest."""
    return client.half.protect(update, replace(context, partition=partition))


def reveal(client: ClientContext, state: ClientState, aggregate: Aggregate, elected: Mask | None) -> Vector:
    """Lines 20 and 21: decrypt, reorganise, check; the mean over the clients in the sum."""
    payload, number, attempt = check_sum(client, aggregate, elected), aggregate.number, aggregate.attempt
    round_id, step = client.parameters.round_id(number, attempt), state.keys.at(number, attempt).step
    partition = client.partition(step, elected) if client.half.votes and elected is not None else None
    counted = len(aggregate.clients)
    context = RevealContext(round_id, step, client.parameters.sampled, state.heaviest, partition, counted)
    revealed = client.half.reveal(payload, context)
    verify(client, state, aggregate, revealed.parts, elected)
    return from_fixed_point(revealed.steps, revealed.worth * (state.total / weight_of(client, state, aggregate)))


def check_sum(client: ClientContext, aggregate: Aggregate, elected: Mask | None) -> Payload:
    """The sum of a round, if its form is right as far as that can be checked without a key."""
    payload, number = aggregate.payload, aggregate.number
    if payload is None or payload.length != client.parameters.length:
        raise ProtocolError(
            f"round {number} should carry {client.parameters.length} values, got {payload and payload.length}"
        )
    if client.half.votes and elected is None:
        raise ProtocolError(f"round {number} has no elected positions; a sum of this method needs them")
    return payload


def pin(
    client: ClientContext, state: ClientState, aggregate: Aggregate, elected: Mask | None, keep: Keep
) -> ClientState:
    """Record which sum of a round is about to be checked. Even if that fails, no other sum is accepted."""
    check_sum(client, aggregate, elected)
    content = digest_of_sum(aggregate, elected)
    if state.pinned not in ("", content):
        raise ForgedError
    state = replace(state, pinned=content)
    keep(state)
    return state


def apply(client: ClientContext, state: ClientState, delta: Vector | None, aggregate: Aggregate) -> ClientState:
    """Line 22, and the new residual: what the upload left out or, if it was not counted, the whole update."""
    weights = state.weights
    if delta is not None:
        weights = client.learner.apply(weights, delta)
    residual = state.residual
    if state.number == aggregate.number and client.half.carries and state.update is not None:
        sent = state.uploaded and state.attempt == aggregate.attempt
        residual = state.next_residual if sent and client.name in aggregate.clients else state.update
    keys = state.keys.at(aggregate.number + 1, 0)  # this round's keys are no longer needed
    return replace(state, weights=weights, residual=residual, applied=aggregate.number, held=keys, pinned="")


def serve_round(server: RoundServer, number: int) -> Steps:
    """Lines 3 to 18 on the server: votes in, elected positions out, uploads in, one sum out."""
    parameters, half, record = server.parameters, server.half, server.open_record(number)
    round_id, k = parameters.round_id(number, server.state.attempt), parameters.k(number)
    tally, total = Tally(k, parameters.length), half.new_sum(round_id, k)
    members = parameters.members(number)  # line 3
    ballots: dict[str, str] = {}
    uploads: dict[str, Upload] = {}
    if total.row_bytes and interrupted(server, number):
        record.dropped["(shares)"] = "the run was interrupted after shares were requested; no client sends them twice"
        server.combine(record, total, [], None, {})
        return

    def take_ballot(client: str, reply: Message) -> None:
        ballot = expect(reply, Ballot, round_id)
        same({**ballots, client: ballot.fingerprint}, FINGERPRINTED)
        tally.add(ballot.votes)
        ballots[client] = ballot.fingerprint
        server.note(client, ballot.report)

    def take_upload(client: str, reply: Message) -> None:
        upload = expect(reply, Upload, round_id)
        check_addressed(upload, total, client, members)
        server.take_upload(client, upload, total, uploads)  # line 18, one client at a time

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
    counted = [client for client in answered if client in members and client not in record.declined]
    if server.stop(record, counted):
        return
    elected = None
    if half.votes and len(counted) >= parameters.quorum:
        positions = tally.elect()  # line 10
        elected, record.agreement = pack_positions(positions), tally.agreement(positions)
        message = Elected(round_id=round_id, positions=elected)  # line 11
        counted = yield from server.ask(record, dict.fromkeys(counted, message), take_upload)  # lines 12 to 17
    if total.row_bytes and len(counted) >= parameters.quorum:
        counted = yield from open_sum(server, record, round_id, total, counted, uploads)
    server.combine(record, total, counted, elected, uploads)
