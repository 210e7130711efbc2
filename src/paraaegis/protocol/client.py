"""A client as one step a message, over a state that can be put on disk in between: Idle → Voted → Sent → Idle.

A client trusts its own configuration, not the server: it derives the number of votes and the noise itself and refuses
what contradicts them. An error leaves the caller with the old state. A check that needs a key and fails ends the run
for this client: whether it accepts or refuses must not be a question that a server can ask twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from paraaegis.crypto.mac import warm
from paraaegis.crypto.shuffle import digest
from paraaegis.errors import ForgedError, ProtocolError, UpdateError
from paraaegis.parallel import soon
from paraaegis.privacy.ledger import METRICS, SECONDS, VOTES
from paraaegis.protocol import round as algorithm
from paraaegis.protocol.binding import (
    chained,
    check_names,
    content_of,
    seen_in,
    sign,
    take_counts,
    view,
)
from paraaegis.protocol.client_context import Silo
from paraaegis.protocol.joining import hello, rescued, settled, snapshot
from paraaegis.protocol.lwe_round import seal_shares, sum_shares
from paraaegis.protocol.messages import (
    Aggregate,
    Ballot,
    Begin,
    Elected,
    Ended,
    Finish,
    Message,
    Peek,
    Report,
    Reported,
    RollCall,
    ShareSum,
    Survivors,
    Upload,
    expect,
)
from paraaegis.protocol.single_flight import Stopwatch
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import unpack_positions
from paraaegis.types import Mask, Metrics

Keep = Callable[[ClientState], None]


def start(silo: Silo) -> ClientState:
    """The state before the first round."""
    return ClientState(weights=algorithm.checked(silo.learner.initial(), silo, "initial"))


def step(silo: Silo, state: ClientState, message: Message, keep: Keep = lambda _: None) -> tuple[ClientState, Message]:
    """Answer one message. Once a check has failed, every answer is the same.

    `keep` is given the state as soon as going back would let the server ask the same again: after each sum that was
    checked, and when a ballot is used up. It holds even if the rest of the step fails.
    """
    if state.phase == "ended":
        return state, Ended(where=message.where)
    kept = [state]

    def keeping(new: ClientState) -> None:
        kept[:] = [new]
        keep(new)

    try:
        return _answered(silo, state, message, keeping)
    except ForgedError:
        last = kept[0]
        ended = ClientState(last.weights, "ended", last.number, last.attempt, last.applied)
        return ended, Ended(where=message.where)


def _answered(silo: Silo, state: ClientState, message: Message, keep: Keep) -> tuple[ClientState, Message]:
    match message:
        case RollCall():
            return hello(silo, state, message)
        case Begin():
            return _begin(silo, state, message, keep)
        case Elected():
            return _elected(silo, state, message, keep)
        case Survivors():
            return _survivors(silo, state, message)
        case Peek():
            return state, snapshot(silo, state, message)
        case Finish():
            return _finish(silo, state, message, keep)
    raise ProtocolError(f"a client does not answer {type(message).__name__}")


def _begin(silo: Silo, state: ClientState, message: Begin, keep: Keep) -> tuple[ClientState, Message]:
    number, attempt = message.where.number, message.where.attempt
    where = silo.plan.where(number, attempt)
    expect(message, Begin, where)
    _check_begin(silo, state, message)
    if silo.keyed:
        soon(warm)  # a fresh process has more to do before it needs it
    watch = Stopwatch()  # its dict is the report's: phases that follow are in it when the reply is packed
    state = take_counts(silo, state, message)
    state = replace(rescued(silo, state, message.rescue), once=b"")
    state, report = _catch_up(silo, state, message.aggregates, number - 1, watch, keep)
    if not message.train:
        return state, Reported(where=where, report=report)
    model = digest(state.weights)
    releases = silo.releases(number, attempt, model=model.hex())
    if declined := _exhausted(silo, number, attempt, model) or silo.ledger.refusal(releases):
        return state, Reported(where=where, report=report, declined=declined)
    state = replace(state, held=state.keys.at(number, attempt), model=model.hex())
    step, seen = state.keys.step, view(silo, state, model)
    mark = soon(lambda: silo.fingerprint(step, seen))  # which needs the secret order
    if silo.half.votes:
        soon(lambda: silo.places(step))  # the vote asks for them again, and hears of an error
    turn = algorithm.prepare(silo, state)
    if silo.prepares:
        turn = replace(turn, ahead=soon(partial(silo.half.ahead, turn, silo.plan.length)))
    with watch("train"):
        update = algorithm.train(silo, state, number)
    state = replace(
        state,
        number=number,
        attempt=attempt,
        update=update,
        mark=mark.result(),
        view=seen.hex(),
        nonce="",
        turn=turn,
        kept=None,
        elected=None,
        share=None,
    )
    if not silo.half.votes:
        return _send(silo, state, None, report, watch)
    silo.ledger.record(silo.releases(number, attempt, [VOTES], state.model))
    with watch("vote"):
        votes = algorithm.vote(silo, state.keys, update)
    ballot = Ballot(where=where, votes=votes, fingerprint=state.mark, report=report)
    return replace(state, phase="voted"), ballot


def _exhausted(silo: Silo, number: int, attempt: int, model: bytes) -> str:
    """Why this client does not answer once more for this state of the model, in whatever run; empty if it does."""
    answered = silo.ledger.answers(silo.name, model.hex()) - {(silo.plan.run, number, attempt)}
    if len(answered) < silo.plan.attempts:
        return ""
    return (
        f"{silo.name} has trained {len(answered)} times on this state of the model, and each time the server learnt "
        f"something: privacy.attempts = {silo.plan.attempts} allows no more. Raise it in this silo's configuration, or "
        "begin a run with another seed"
    )


def _elected(silo: Silo, state: ClientState, message: Elected, keep: Keep) -> tuple[ClientState, Message]:
    if state.phase != "voted":
        raise ProtocolError(f"Elected came while {silo.name} is {state.phase}, not voted")
    expect(message, Elected, silo.plan.where(state.number, state.attempt))
    soon(warm)
    elected = unpack_positions(message.positions, silo.plan.k(state.number), silo.plan.length)
    keep(replace(state, phase="elected", turn=None))  # one ballot is answered with one set
    watch = Stopwatch()
    return _send(silo, state, elected, Report(state.applied, seconds=silo.timed(watch)), watch)


def _send(
    silo: Silo, state: ClientState, elected: Mask | None, report: Report, watch: Stopwatch
) -> tuple[ClientState, Upload]:
    number, attempt, update, step = state.number, state.attempt, state.update, state.keys.step
    if update is None:
        raise ProtocolError(f"{silo.name} has no update to send in round {number}")
    silo.ledger.record(silo.releases(number, attempt, model=state.model))
    with watch("protect"):
        partition = None if elected is None else silo.partition(step, elected)
        turn = state.turn or algorithm.prepare(silo, state)
        protected = algorithm.protect(silo, turn, update, partition)
        nonce, tag = sign(silo, state, step, protected.parts, elected)
        shares = seal_shares(silo, state, protected.shares)
    mark = state.mark if elected is None else silo.seal_vote(step, state.mark, elected)
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


def _finish(silo: Silo, state: ClientState, message: Finish, keep: Keep) -> tuple[ClientState, Message]:
    last = message.where.number
    where = silo.plan.where(last)
    expect(message, Finish, where)
    if not 1 <= last <= silo.plan.rounds:
        raise ProtocolError(f"a run ends after one of its rounds 1 to {silo.plan.rounds}, got {last}")
    state = take_counts(silo, state, message)
    state = replace(rescued(silo, state, message.rescue), once=b"")
    state, report = _catch_up(silo, state, message.aggregates, last, Stopwatch(), keep)
    return state, Reported(where=where, report=report)


def _catch_up(
    silo: Silo, state: ClientState, aggregates: tuple[Aggregate, ...], until: int, watch: Stopwatch, keep: Keep
) -> tuple[ClientState, Report]:
    """Lines 19 to 23 for each round that this client has not applied, then its metrics."""
    with watch("reveal"):
        for aggregate in aggregates:
            if aggregate.number == state.applied + 1:
                state = _apply(silo, state, aggregate, keep)
                keep(state)
    if state.applied != until:
        came = [aggregate.number for aggregate in aggregates]
        raise ProtocolError(f"{silo.name} needs the aggregates of rounds {state.applied + 1} to {until}, got {came}")
    with watch("evaluate"):
        metrics = _measured(silo, state) if state.applied else {}
    if metrics:
        silo.note(state.applied, metrics)
    if "metrics" not in silo.tells:
        metrics = {}
    told = ([METRICS] if metrics and silo.holdout else []) + ([SECONDS] if silo.reports_seconds else [])
    silo.ledger.record(silo.releases(state.applied, 0, told))
    return state, Report(state.applied, metrics, silo.timed(watch))


def _measured(silo: Silo, state: ClientState) -> Metrics:
    found = silo.learner.evaluate(algorithm.read_only(state.weights))
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError) as error:
        came = type(found).__name__ if not isinstance(found, dict) else {type(one).__name__ for one in found.values()}
        raise UpdateError(f"evaluate of {silo.name} must return a dict of numbers by name, got {came}") from error


def _pinned(silo: Silo, state: ClientState, aggregate: Aggregate, elected: Mask | None, keep: Keep) -> ClientState:
    """Keep which sum of a round is going to be checked, before it is: whatever fails, no other one is looked at."""
    algorithm.check_sum(silo, aggregate, elected)
    content = content_of(aggregate, elected)
    if state.pinned not in ("", content):
        raise ForgedError
    state = replace(state, pinned=content)
    keep(state)
    return state


def _apply(silo: Silo, state: ClientState, aggregate: Aggregate, keep: Keep) -> ClientState:
    number, attempt, chain = aggregate.number, aggregate.attempt, chained(state, aggregate)
    if aggregate.payload is None:  # the round was aborted
        if aggregate != Aggregate(number, attempt):
            raise ProtocolError(f"round {number} came without a sum, but with clients, nonces, a tag or positions")
        if state.pinned:  # a sum of this round was being checked
            raise ForgedError
        return settled(replace(algorithm.apply(silo, state, None, aggregate), chains=state.chains + chain))
    check_names(silo, state, aggregate)
    elected = None
    if state.phase == "sent" and (state.number, state.attempt) == (number, attempt):
        elected = state.elected
    elif aggregate.elected is not None:
        elected = unpack_positions(aggregate.elected, silo.plan.k(number), silo.plan.length)
    # Clients of one process reveal one aggregate once; each applies it to its own model.
    state = replace(state, view=seen_in(silo, state, number))
    if not silo.resident:
        state = _pinned(silo, state, aggregate, elected, keep)
    key = (silo.plan.run, state.view, chain)
    delta = silo.deltas(key, lambda: algorithm.reveal(silo, state, aggregate, elected))
    return settled(replace(algorithm.apply(silo, state, delta, aggregate), chains=state.chains + chain))


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
    if not (state.number or state.applied) and state.line != silo.root.line and message.rescue is None:
        raise ProtocolError(f"the keys of {silo.name} were rotated since it joined this run: begin a new run")
    if message.train and state.opened == number and not silo.simulated:
        raise ProtocolError(f"{silo.name} gave out shares in round {number}: its update counts as sent")
