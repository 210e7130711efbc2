"""A client as one step a message, over a state that can be put on disk in between: Idle → Voted → Sent → Idle.

A client trusts its own configuration, not the server: it derives the number of votes and the noise itself and refuses
what contradicts them. An error leaves the caller with the old state.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from paraaegis.cores import soon
from paraaegis.crypto.shuffle import digest, fingerprint, secret_order
from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.privacy.ledger import METRICS, SAMPLES, VOTES
from paraaegis.protocol import round as algorithm
from paraaegis.protocol.lwe_round import LweHalf
from paraaegis.protocol.messages import (
    VERSION,
    Aggregate,
    Ballot,
    Begin,
    Elected,
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
    """Answer one message."""
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
        public=silo.identity[1],
        applied=state.applied,
        holds=state.number if state.phase == "sent" else 0,
    )


def _begin(silo: Silo, state: ClientState, message: Begin) -> tuple[ClientState, Message]:
    number, attempt = message.where.number, message.where.attempt
    where = silo.plan.where(number, attempt)
    expect(message, Begin, where)
    _check_begin(silo, state, message)
    watch = Stopwatch()  # its dict is the report's: phases that follow are in it when the reply is packed
    state = _weighed(silo, state, message)
    state = _rescued(silo, state, message.rescue)
    state, report = _catch_up(silo, state, message.aggregates, number - 1, watch)
    if not message.train:
        return state, Reported(where=where, report=report)
    if declined := silo.ledger.refusal(silo.releases(number, attempt)):
        return state, Reported(where=where, report=report, declined=declined)
    model, weighed = state.weights, (state.total, state.heaviest)
    mark = soon(lambda: silo.fingerprint(number, attempt, model, weighed))  # which needs the secret order
    if silo.half.votes:
        soon(lambda: silo.places(number, attempt))  # the vote asks for them again, and hears of an error
    turn = algorithm.prepare(silo, state, number, attempt, message.publics)
    if silo.prepares:
        turn = replace(turn, ahead=soon(partial(silo.half.ahead, turn, silo.plan.length)))
    with watch("train"):
        update = algorithm.train(silo, state, number)
    state = replace(state, number=number, attempt=attempt, update=update, mark=mark.result(), turn=turn)
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
        turn = state.turn or algorithm.prepare(silo, state, number, attempt, {})
        protected = algorithm.protect(silo, turn, update, partition)
    mark = state.mark if elected is None else silo.seal_vote(state.mark, elected)
    # Where nothing is kept, nothing can return: the update need not be stored.
    update = None if protected.kept is None else update
    state = replace(state, phase="sent", update=update, kept=protected.kept, elected=elected, turn=None)
    where = silo.plan.where(number, attempt)
    upload = Upload(
        where=where, payload=protected.payload, fingerprint=mark, report=report, shares=dict(protected.shares)
    )
    return state, upload


def _survivors(silo: Silo, state: ClientState, message: Survivors) -> tuple[ClientState, Message]:
    if state.phase != "sent" or not isinstance(silo.half, LweHalf):
        raise ProtocolError(f"Survivors came while {silo.name} is {state.phase}; it is answered once, after an upload")
    where = silo.plan.where(state.number, state.attempt)
    expect(message, Survivors, where)
    row = silo.half.answer(message, silo.name, silo.identity[0], silo.plan.members(state.number))
    return replace(state, phase="shared"), ShareSum(where=where, row=row)


def _snapshot(silo: Silo, state: ClientState, message: Peek) -> Snapshot:
    where = silo.plan.where(message.where.number, message.where.attempt)
    expect(message, Peek, where)
    if odd := sorted(set(message.receivers) - set(silo.plan.clients)):
        raise ProtocolError(f"models are sealed to enrolled clients only, got {odd[0]!r}")
    sealed = {
        name: Blob(silo.seal_model(state.weights, state.applied, name, public))
        for name, public in message.receivers.items()
    }
    return Snapshot(where=where, applied=state.applied, sealed=sealed)


def _rescued(silo: Silo, state: ClientState, rescue: Rescue | None) -> ClientState:
    """Take a peer's model where this client is too far behind. What it sent last is taken as counted."""
    if rescue is None or rescue.applied <= state.applied:
        return state
    weights = silo.open_model(bytes(rescue.sealed.view), rescue.applied)
    residual = state.residual
    if silo.half.withholds and state.phase != "idle":
        residual = state.kept if state.phase == "sent" else state.update
    return replace(state, weights=weights, applied=rescue.applied, residual=residual)


def _finish(silo: Silo, state: ClientState, message: Finish) -> tuple[ClientState, Message]:
    last = message.where.number
    where = silo.plan.where(last)
    expect(message, Finish, where)
    state = _weighed(silo, state, message)
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
    state = replace(state, phase="idle", update=None, kept=None, elected=None, turn=None)
    return state, Report(state.applied, metrics, watch.seconds)


def _measured(silo: Silo, state: ClientState) -> Metrics:
    found = silo.learner.evaluate(algorithm.read_only(state.weights))
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        came = type(found).__name__ if not isinstance(found, dict) else {type(one).__name__ for one in found.values()}
        raise UpdateError(f"evaluate of {silo.name} must return a dict of numbers by name, got {came}") from error


def _apply(silo: Silo, state: ClientState, aggregate: Aggregate) -> ClientState:
    number, attempt = aggregate.number, aggregate.attempt
    if aggregate.payload is None:  # the round was aborted
        return algorithm.apply(silo, state, None, aggregate)
    if len(set(aggregate.clients)) < silo.plan.quorum or not set(aggregate.clients) <= set(silo.plan.members(number)):
        raise ProtocolError(
            f"round {number} should be a sum over {silo.plan.quorum} or more of {silo.plan.members(number)}, "
            f"got {aggregate.clients}"
        )
    elected = None
    if state.phase == "sent" and (state.number, state.attempt) == (number, attempt):
        elected = state.elected
    elif aggregate.elected is not None:
        elected = unpack_positions(aggregate.elected, silo.plan.k(number), silo.plan.length)
    # Clients of one process reveal one aggregate once; each applies it to its own model.
    delta = silo.deltas((silo.plan.run, number, attempt), lambda: algorithm.reveal(silo, state, aggregate, elected))
    return algorithm.apply(silo, state, delta, aggregate)


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
    members = silo.plan.members(number)
    if message.train and silo.name not in members:
        raise ProtocolError(f"{silo.name} is not drawn for round {number} and does not train in it")
    if message.publics and tuple(message.publics) != members:
        raise ProtocolError(f"round {number} has the members {members}, got keys of {tuple(message.publics)}")


def _weighed(silo: Silo, state: ClientState, message: Begin | Finish) -> ClientState:
    """Its own, the total and the heaviest weight are fixed for a run; they scale values and shared noise."""
    own, total, heaviest = silo.plan.weight(silo.learner.samples), message.total, message.heaviest
    if state.weight not in (0, own):
        raise ProtocolError(
            f"{silo.name} began this run with {state.weight} samples and has {own} now: begin a new run"
        )
    if total < own or state.total not in (0, total):
        raise ProtocolError(f"the total weight must be {state.total or f'at least {own}'}, got {total}")
    if not own <= heaviest <= total or state.heaviest not in (0, heaviest):
        raise ProtocolError(f"the heaviest weight must be {state.heaviest or f'{own} to {total}'}, got {heaviest}")
    if silo.plan.uniform and (total, heaviest) != (len(silo.plan.clients), 1):
        raise ProtocolError(f"{len(silo.plan.clients)} clients of weight 1 were expected, got {total} and {heaviest}")
    return replace(state, weight=own, total=total, heaviest=heaviest)
