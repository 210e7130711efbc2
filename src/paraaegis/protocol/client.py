"""A client: one step per message, on a state that can be stored in between: Idle → Voted → Sent → Idle.

A client trusts its own configuration, not the server: it derives the number of votes and the noise itself and refuses
messages that contradict them. After an error the caller still has the old state. If a check that needs a key fails,
the run is over for this client: a server must not be able to probe twice what a client accepts.
"""

from __future__ import annotations

from dataclasses import replace

from paraaegis.crypto import mac, rlwe
from paraaegis.crypto.shuffle import digest
from paraaegis.errors import ForgedError, ProtocolError
from paraaegis.parallel import in_background
from paraaegis.privacy.ledger import METRICS, SECONDS
from paraaegis.protocol import round as algorithm
from paraaegis.protocol.binding import take_counts
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.joining import apply_rescue, clear_finished_round, hello, snapshot
from paraaegis.protocol.messages import (
    Aggregate,
    Begin,
    Elected,
    Ended,
    Finish,
    Message,
    Report,
    ReportOnly,
    RollCall,
    ShareSum,
    SnapshotRequest,
    Survivors,
    expect,
)
from paraaegis.protocol.round import Keep
from paraaegis.protocol.shares import sum_shares
from paraaegis.protocol.single_flight import Stopwatch
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import pack_positions, unpack_positions


def start(client: ClientContext) -> ClientState:
    """The state before the first round."""
    return ClientState(weights=client.learner.initial())


def step(
    client: ClientContext, state: ClientState, message: Message, keep: Keep = lambda _: None
) -> tuple[ClientState, Message]:
    """Answer one message. Once a check has failed, every answer is the same.

    `keep` receives each state that must not be undone, since the server could then repeat a question: before and after
    a sum is checked, and when a ballot is used up. That state is valid even if the rest of the step fails.
    """
    if state.phase == "ended":
        return state, Ended(round_id=message.round_id)
    kept = [state]

    def keeping(new: ClientState) -> None:
        kept[:] = [new]
        keep(new)

    try:
        return _answered(client, state, message, keeping)
    except ForgedError:
        last = kept[0]
        ended = ClientState(last.weights, "ended", last.number, last.attempt, last.applied)
        return ended, Ended(round_id=message.round_id)


def _answered(client: ClientContext, state: ClientState, message: Message, keep: Keep) -> tuple[ClientState, Message]:
    match message:
        case RollCall():
            return hello(client, state, message)
        case Begin():
            return _begin(client, state, message, keep)
        case Elected():
            return _elected(client, state, message, keep)
        case Survivors():
            return _survivors(client, state, message)
        case SnapshotRequest():
            return state, snapshot(client, state, message)
        case Finish():
            return _finish(client, state, message, keep)
    raise ProtocolError(f"a client does not answer {type(message).__name__}")


def _begin(client: ClientContext, state: ClientState, message: Begin, keep: Keep) -> tuple[ClientState, Message]:
    number, attempt = message.round_id.number, message.round_id.attempt
    round_id = client.parameters.round_id(number, attempt)
    expect(message, Begin, round_id)
    _check_begin(client, state, message)
    if client.keyed:
        _warm(client)
    watch = Stopwatch()  # the report shares its dict, so later phases are in it when the reply is packed
    state = take_counts(client, state, message)
    state = replace(apply_rescue(client, state, message.rescue), once=b"")
    state, report = _catch_up(client, state, message.aggregates, number - 1, watch, keep)
    state = replace(state, told=client.told)
    if not message.train:
        return state, ReportOnly(round_id=round_id, report=report)
    model = digest(state.weights)
    releases = client.training(number, attempt, model.hex()) + client.releases(number, attempt, model=model.hex())
    if declined := _exhausted(client, number, attempt, model) or client.ledger.refusal(releases):
        return state, ReportOnly(round_id=round_id, report=report, declined=declined)
    return algorithm.train_and_vote(client, state, number, attempt, model, report, watch)


def _warm(client: ClientContext) -> None:
    """Load compiled loops while a new process has other work to do."""
    in_background(mac.warm)
    if client.half.opener != "nobody":
        in_background(rlwe.warm)


def _exhausted(client: ClientContext, number: int, attempt: int, model: bytes) -> str:
    """Why this client does not answer again for this state of the model, in any run; empty if it does."""
    answered = client.ledger.answers(client.name, model.hex()) - {(client.parameters.run, number, attempt)}
    if len(answered) < client.parameters.attempts:
        return ""
    return (
        f"{client.name} has trained {len(answered)} times on this state of the model, and the server may have learned "
        f"something each time; privacy.attempts = {client.parameters.attempts} allows no more. Raise it in this "
        "client's configuration, or start a run with another seed"
    )


def _elected(client: ClientContext, state: ClientState, message: Elected, keep: Keep) -> tuple[ClientState, Message]:
    if state.phase != "voted":
        raise ProtocolError(f"{client.name} received Elected in phase {state.phase!r}; expected phase 'voted'")
    expect(message, Elected, client.parameters.round_id(state.number, state.attempt))
    _warm(client)
    elected = unpack_positions(message.positions, client.parameters.k(state.number), client.parameters.length)
    keep(replace(state, phase="elected", upload_context=None))  # a ballot has one outcome
    watch = Stopwatch()
    report = Report(state.applied, seconds=client.timed(watch))
    return algorithm.protect_and_send(client, state, elected, report, watch)


def _survivors(client: ClientContext, state: ClientState, message: Survivors) -> tuple[ClientState, Message]:
    if state.phase != "sent" or state.share is None:
        raise ProtocolError(
            f"{client.name} received Survivors in phase {state.phase!r}; expected phase 'sent', with shares to release"
        )
    round_id = client.parameters.round_id(state.number, state.attempt)
    expect(message, Survivors, round_id)
    row, parameters = sum_shares(client, state, state.share, message), None
    if client.half.opener == "server" and state.elected is not None:
        parameters = pack_positions(client.partition(state.keys.step, state.elected).elected)
    reply = ShareSum(round_id=round_id, row=row, parameters=parameters)
    return replace(state, phase="shared", share=None, opened=state.number), reply


def _finish(client: ClientContext, state: ClientState, message: Finish, keep: Keep) -> tuple[ClientState, Message]:
    last = message.round_id.number
    round_id = client.parameters.round_id(last)
    expect(message, Finish, round_id)
    if not 1 <= last <= client.parameters.rounds:
        raise ProtocolError(f"a run ends after one of its rounds 1 to {client.parameters.rounds}, got {last}")
    state = take_counts(client, state, message)
    state = replace(apply_rescue(client, state, message.rescue), once=b"")
    state, report = _catch_up(client, state, message.aggregates, last, Stopwatch(), keep)
    return state, ReportOnly(round_id=round_id, report=report)


def _catch_up(
    client: ClientContext,
    state: ClientState,
    aggregates: tuple[Aggregate, ...],
    until: int,
    watch: Stopwatch,
    keep: Keep,
) -> tuple[ClientState, Report]:
    """Lines 19 to 23 for each round that this client has not applied yet, then its metrics."""
    with watch("reveal"):
        for aggregate in aggregates:
            if aggregate.number == state.applied + 1:
                state = clear_finished_round(algorithm.apply_outcome(client, state, aggregate, keep))
                keep(state)
    if state.applied != until:
        numbers = [aggregate.number for aggregate in aggregates]
        raise ProtocolError(
            f"{client.name} needs the aggregates of rounds {state.applied + 1} to {until}, got {numbers}"
        )
    with watch("evaluate"):
        metrics = client.learner.evaluate(state.weights) if state.applied else {}
    if metrics:
        client.log_metrics("evaluate", state.applied, metrics)
    if "metrics" not in client.report_fields:
        metrics = {}
    released = ([METRICS] if metrics and client.holdout else []) + ([SECONDS] if client.reports_seconds else [])
    client.ledger.record(client.releases(state.applied, 0, released))
    return state, Report(state.applied, metrics, client.timed(watch))


def _check_begin(client: ClientContext, state: ClientState, message: Begin) -> None:
    number, attempt = message.round_id.number, message.round_id.attempt
    if not 1 <= number <= client.parameters.rounds:
        raise ProtocolError(f"rounds are numbered 1 to {client.parameters.rounds}, got {number}")
    asked, answered = (number, attempt), (state.number, state.attempt)
    if asked < answered or (asked == answered and not client.simulated):  # an interrupted simulation is replayed
        raise ProtocolError(
            f"{client.name} has already answered round {state.number}, attempt {state.attempt}; it answers each once "
            f"and in order, got round {number}, attempt {attempt}"
        )
    if message.train and client.name not in client.parameters.members(number):
        raise ProtocolError(f"{client.name} was not drawn for round {number}, so it does not train in it")
    if not (state.number or state.applied) and state.line != client.root.line and message.rescue is None:
        raise ProtocolError(f"the keys of {client.name} were rotated after it joined this run; start a new run")
    if message.train and state.opened == number and not client.simulated:
        raise ProtocolError(f"{client.name} already released shares in round {number} and will not send another update")
