"""A client as one step a message, over a state that can be put on disk in between: Idle → Voted → Sent → Idle.

A client trusts its own configuration, not the server: it derives the number of votes and the noise itself and refuses
what contradicts them. An error leaves the caller with the old state. A check that needs a key and fails ends the run
for this client: whether it accepts or refuses must not be a question that a server can ask twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from paraaegis.cores import soon
from paraaegis.crypto.shuffle import digest, fingerprint, secret_order
from paraaegis.errors import ForgedError, ProtocolError, UpdateError
from paraaegis.privacy.ledger import METRICS, SAMPLES, VOTES
from paraaegis.protocol import round as algorithm
from paraaegis.protocol.binding import chained, check_names, prove_count, sign, take_counts, view
from paraaegis.protocol.lwe_round import seal_shares, sum_shares
from paraaegis.protocol.messages import (
    VERSION,
    Aggregate,
    Ballot,
    Begin,
    Elected,
    Ended,
    Finish,
    Hello,
    Message,
    Peek,
    Report,
    Reported,
    Rescue,
    RollCall,
    ShareSum,
    Snapshot,
    Survivors,
    Upload,
    expect,
)
from paraaegis.protocol.once import Stopwatch
from paraaegis.protocol.silo import Silo
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import unpack_positions
from paraaegis.types import Blob, Mask, Metrics

_TEST_ORDER = 1024  # values of the order whose fingerprint a Hello carries


def start(silo: Silo) -> ClientState:
    """The state before the first round."""
    return ClientState(weights=algorithm.checked(silo.learner.initial(), silo, "initial"))


def step(silo: Silo, state: ClientState, message: Message) -> tuple[ClientState, Message]:
    """Answer one message. Once a check has failed, every answer is the same."""
    if state.phase == "ended":
        return state, Ended(where=message.where)
    try:
        return _answered(silo, state, message)
    except ForgedError:
        return ClientState(weights=state.weights, phase="ended"), Ended(where=message.where)


def _answered(silo: Silo, state: ClientState, message: Message) -> tuple[ClientState, Message]:
    match message:
        case RollCall():
            return state, _hello(silo, state, message)
        case Begin():
            return _begin(silo, state, message)
        case Elected():
            return _elected(silo, state, message)
        case Survivors():
            return _survivors(silo, state, message)
        case Peek():
            return state, _snapshot(silo, state, message)
        case Finish():
            return _finish(silo, state, message)
    raise ProtocolError(f"a client does not answer {type(message).__name__}")


def _hello(silo: Silo, state: ClientState, message: RollCall) -> Hello:
    plan, where = silo.plan, silo.plan.where(0)
    expect(message, RollCall, where)
    samples, least = silo.learner.samples, max(1, plan.min_samples)
    if samples < least:
        few = f"fewer samples than the {least} that this federation's noise assumes" if samples else "no samples"
        raise ProtocolError(f"{silo.name} has {few}")
    if not plan.uniform:
        silo.ledger.record(silo.releases(0, 0, [SAMPLES]))
    test = secret_order(silo.vote_key, VERSION, plan.run, 0, 0, _TEST_ORDER)
    return Hello(
        where=where,
        config=plan.config,
        model=digest(silo.learner.initial()).hex(),
        weight=plan.weight(samples),
        fingerprint=fingerprint(silo.vote_key, plan.run, 0, 0, test, silo.ckks_id),
        proofs=prove_count(silo),
        applied=state.applied,
        holds=state.number if state.phase == "sent" else 0,
    )


def _begin(silo: Silo, state: ClientState, message: Begin) -> tuple[ClientState, Message]:
    number, attempt = message.where.number, message.where.attempt
    where = silo.plan.where(number, attempt)
    expect(message, Begin, where)
    _check_begin(silo, state, message)
    watch = Stopwatch()  # its dict is the report's: phases that follow are in it when the reply is packed
    state = take_counts(silo, state, message)
    state = _rescued(silo, state, message.rescue)
    state, report = _catch_up(silo, state, message.aggregates, number - 1, watch)
    if not message.train:
        return state, Reported(where=where, report=report)
    if declined := silo.ledger.refusal(silo.releases(number, attempt)):
        return state, Reported(where=where, report=report, declined=declined)
    model, seen = state.weights, view(silo, state)
    mark = soon(lambda: silo.fingerprint(number, attempt, model, seen))  # which needs the secret order
    if silo.half.votes:
        soon(lambda: silo.places(number, attempt))  # the vote asks for them again, and hears of an error
    turn = algorithm.prepare(silo, state, number, attempt)
    if silo.prepares:
        turn = replace(turn, ahead=soon(partial(silo.half.ahead, turn, silo.plan.length)))
    with watch("train"):
        update = algorithm.train(silo, state, number)
    state = replace(state, number=number, attempt=attempt, update=update, mark=mark.result(), nonce="", turn=turn)
    if not silo.half.votes:
        return _send(silo, state, None, report, watch)
    silo.ledger.record(silo.releases(number, attempt, [VOTES]))
    with watch("vote"):
        votes = algorithm.vote(silo, update, number, attempt)
    ballot = Ballot(where=where, votes=votes, fingerprint=state.mark, report=report)
    return replace(state, phase="voted"), ballot


def _elected(silo: Silo, state: ClientState, message: Elected) -> tuple[ClientState, Message]:
    if state.phase != "voted":
        raise ProtocolError(f"Elected came while {silo.name} is {state.phase}, not voted")
    expect(message, Elected, silo.plan.where(state.number, state.attempt))
    elected = unpack_positions(message.positions, silo.plan.k(state.number), silo.plan.length)
    watch = Stopwatch()
    return _send(silo, state, elected, Report(state.applied, seconds=watch.seconds), watch)


def _send(
    silo: Silo, state: ClientState, elected: Mask | None, report: Report, watch: Stopwatch
) -> tuple[ClientState, Upload]:
    number, attempt, update = state.number, state.attempt, state.update
    if update is None:
        raise ProtocolError(f"{silo.name} has no update to send in round {number}")
    silo.ledger.record(silo.releases(number, attempt))
    with watch("protect"):
        partition = None if elected is None else silo.partition(number, attempt, elected)
        turn = state.turn or algorithm.prepare(silo, state, number, attempt)
        protected = algorithm.protect(silo, turn, update, partition)
        nonce, tag = sign(silo, state, number, attempt, protected.steps, elected)
        shares = seal_shares(silo, state, protected.shares)
    mark = state.mark if elected is None else silo.seal_vote(state.mark, elected)
    # Where nothing is kept, nothing can return: the update need not be stored.
    update = None if protected.kept is None else update
    upload = Upload(
        where=silo.plan.where(number, attempt),
        payload=protected.payload,
        fingerprint=mark,
        report=report,
        nonce=nonce,
        tag=tag,
        shares=shares,
    )
    state = replace(
        state,
        phase="sent",
        update=update,
        kept=protected.kept,
        elected=elected,
        turn=None,
        nonce=nonce.hex(),
        share=protected.shares.get(silo.name),
    )
    return state, upload


def _survivors(silo: Silo, state: ClientState, message: Survivors) -> tuple[ClientState, Message]:
    if state.phase != "sent" or state.share is None:
        raise ProtocolError(f"Survivors came while {silo.name} is {state.phase}; it is answered once, after an upload")
    where = silo.plan.where(state.number, state.attempt)
    expect(message, Survivors, where)
    row = sum_shares(silo, state, state.share, message)
    return replace(state, phase="shared", share=None, opened=state.number), ShareSum(where=where, row=row)


def _snapshot(silo: Silo, state: ClientState, message: Peek) -> Snapshot:
    where = silo.plan.where(message.where.number, message.where.attempt)
    expect(message, Peek, where)
    if odd := sorted({*message.receivers} - {*silo.plan.clients} | {*message.receivers} & {silo.name}):
        raise ProtocolError(f"models are sealed to other clients of the run only, got {odd[0]!r}")
    model = msgspec.msgpack.encode((state.chain, state.weights.tobytes()))
    sealed = {name: Blob(silo.seal_to(name, model, "model", state.applied)) for name in message.receivers}
    return Snapshot(where=where, applied=state.applied, sealed=sealed)


def _rescued(silo: Silo, state: ClientState, rescue: Rescue | None) -> ClientState:
    """Take a peer's model where this client is too far behind. What it sent last is taken as counted."""
    if rescue is None or rescue.applied <= state.applied:
        return state
    opened = silo.open_from(rescue.sender, bytes(rescue.sealed.view), "model", rescue.applied)
    try:
        chain, model = msgspec.msgpack.decode(opened, type=tuple[str, bytes])
        weights = algorithm.checked(np.frombuffer(model, dtype=np.float32), silo, "snapshot")
    except (msgspec.DecodeError, ValueError, UpdateError) as error:
        raise ForgedError from error
    residual = state.residual
    if silo.half.withholds and state.phase != "idle":
        residual = state.kept if state.phase == "sent" else state.update
    return replace(state, weights=weights, chain=chain, applied=rescue.applied, residual=residual)


def _finish(silo: Silo, state: ClientState, message: Finish) -> tuple[ClientState, Message]:
    last = message.where.number
    where = silo.plan.where(last)
    expect(message, Finish, where)
    state = take_counts(silo, state, message)
    state = _rescued(silo, state, message.rescue)
    state, report = _catch_up(silo, state, message.aggregates, last, Stopwatch())
    return state, Reported(where=where, report=report)


def _catch_up(
    silo: Silo, state: ClientState, aggregates: tuple[Aggregate, ...], until: int, watch: Stopwatch
) -> tuple[ClientState, Report]:
    """Lines 19 to 23 for each round that this client has not applied, then its metrics."""
    with watch("reveal"):
        for aggregate in aggregates:
            if aggregate.number == state.applied + 1:
                state = _apply(silo, state, aggregate)
    if state.applied != until:
        came = [aggregate.number for aggregate in aggregates]
        raise ProtocolError(f"{silo.name} needs the aggregates of rounds {state.applied + 1} to {until}, got {came}")
    with watch("evaluate"):
        metrics = _measured(silo, state) if state.applied else {}
    if metrics and silo.holdout:
        silo.ledger.record(silo.releases(state.applied, 0, [METRICS]))
    state = replace(state, phase="idle", update=None, kept=None, elected=None, turn=None, share=None)
    return state, Report(state.applied, metrics, watch.seconds)


def _measured(silo: Silo, state: ClientState) -> Metrics:
    found = silo.learner.evaluate(algorithm.read_only(state.weights))
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        came = type(found).__name__ if not isinstance(found, dict) else {type(one).__name__ for one in found.values()}
        raise UpdateError(f"evaluate of {silo.name} must return a dict of numbers by name, got {came}") from error


def _apply(silo: Silo, state: ClientState, aggregate: Aggregate) -> ClientState:
    number, attempt, chain = aggregate.number, aggregate.attempt, chained(state, aggregate)
    if aggregate.payload is None:  # the round was aborted
        return replace(algorithm.apply(silo, state, None, aggregate), chain=chain)
    check_names(silo, state, aggregate)
    elected = None
    if state.phase == "sent" and (state.number, state.attempt) == (number, attempt):
        elected = state.elected
    elif aggregate.elected is not None:
        elected = unpack_positions(aggregate.elected, silo.plan.k(number), silo.plan.length)
    # Clients of one process reveal one aggregate once; each applies it to its own model.
    told = (silo.plan.run, view(silo, state), chain)
    delta = silo.deltas(told, lambda: algorithm.reveal(silo, state, aggregate, elected))
    return replace(algorithm.apply(silo, state, delta, aggregate), chain=chain)


def _check_begin(silo: Silo, state: ClientState, message: Begin) -> None:
    number, attempt = message.where.number, message.where.attempt
    if not 1 <= number <= silo.plan.rounds:
        raise ProtocolError(f"rounds go from 1 to {silo.plan.rounds}, got {number}")
    came, answered = (number, attempt), (state.number, state.attempt)
    if came < answered or (came == answered and not silo.simulated):  # a simulation that was interrupted is replayed
        raise ProtocolError(
            f"{silo.name} answered round {state.number}, attempt {state.attempt} already; it answers each once and "
            f"in order, got round {number}, attempt {attempt}"
        )
    if message.train and silo.name not in silo.plan.members(number):
        raise ProtocolError(f"{silo.name} is not drawn for round {number} and does not train in it")
    if message.train and state.opened == number and not silo.simulated:
        raise ProtocolError(f"{silo.name} gave out shares in round {number}: its update counts as sent")
