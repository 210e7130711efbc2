"""A client trusts its own configuration: what contradicts it is refused, and an error changes nothing."""

from dataclasses import fields, replace
from itertools import count

import msgspec
import numpy as np
import pytest

from hand import Hand, mean
from paraaegis.crypto.ratchet import Root
from paraaegis.errors import LearnerError, ParaAegisError, ProtocolError, RunError, UpdateError
from paraaegis.fixed_point import pack_fixed_point, unpack_fixed_point
from paraaegis.protocol.binding import MOST_SAMPLES, prove_count
from paraaegis.protocol.client import start, step
from paraaegis.protocol.learner import CheckedLearner, check_learners
from paraaegis.protocol.messages import (
    VERSION,
    Aggregate,
    Ballot,
    Elected,
    Ended,
    Hello,
    OneTimeKey,
    Report,
    ReportOnly,
    RollCall,
    SnapshotRequest,
    Upload,
    pack,
)
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.voting import pack_positions, unpack_positions
from paraaegis.types import Blob, Learner, Payload
from toy import ToyLearner, configure, learners_of, wired_of

ME, PEER = "client-0", "client-1"
LENGTH = 40
UPDATES = np.round(np.random.default_rng(0).normal(size=(2, 3, LENGTH)) * 8) / 8  # exact on the grid when halved
STATIC = ("protect.method=paraaegis-static", "protect.ratio=0.25")
FEEDBACK = ("protect.method=paraaegis-feedback", "protect.ratio=0.25")
FEDAVG = ("protect.method=fedavg",)
CKKS = ("protect.method=ckks-fedavg",)
WRONG = [("run", "another"), ("method", "dp-fedavg"), ("length", LENGTH + 1), ("version", VERSION + 1)]


def hand(*settings, updates=UPDATES, **more):
    return Hand(updates, "federation.quorum=1", *(settings or STATIC), **more)


def with_learner(silo, facts=None):
    """The client with its learner made anew."""
    return replace(silo, learner=CheckedLearner(silo.name, lambda: silo.learner.made, facts or silo.learner.facts))


def bits(state):
    return {name: array.tobytes() for name, array in state.to_arrays().items()}


def refused(hand, message, match=None, error=ProtocolError, client=ME):
    """The message is refused and the client's state is what it was."""
    before, state = bits(hand.states[client]), hand.states[client]
    with pytest.raises(error, match=match) as caught:
        hand.send(client, message)
    assert hand.states[client] is state
    assert bits(state) == before
    return str(caught.value)


def voted(*settings, **more):
    """A federation whose clients have voted in round 1, and the Elected that is due."""
    playing = hand(*settings, **more)
    ballots = [playing.send(client, playing.begin(1)) for client in playing.silos]
    return playing, playing.elect(1, ballots)


def elsewhere(message, **changed):
    return msgspec.structs.replace(message, round_id=msgspec.structs.replace(message.round_id, **changed))


# Phases and addresses


@pytest.mark.parametrize("message", ["Hello", "Ballot", "Upload", "ReportOnly", "Ended"])
def test_a_client_answers_only_what_a_server_says(message):
    playing = hand()
    round_id, report = playing.parameters.round_id(1), Report(0)
    refused(
        playing,
        {
            "Hello": Hello(
                round_id=round_id, config="", model="", weight=1, joined="", root=0, once=OneTimeKey(b"", {})
            ),
            "Ballot": Ballot(round_id=round_id, votes=Blob(b""), fingerprint="", report=report),
            "Upload": Upload(round_id=round_id, payload=Payload("grid", 0), fingerprint="", report=report),
            "ReportOnly": ReportOnly(round_id=round_id, report=report),
            "Ended": Ended(round_id=round_id),
        }[message],
        f"does not answer {message}",
    )


def test_elected_is_refused_before_a_vote():
    playing = hand()
    _, elected = voted()
    refused(playing, elected, "client-0 received Elected, but its phase is idle, not voted")


def test_elected_is_refused_after_the_upload():
    playing, elected = voted()
    assert isinstance(playing.send(ME, elected), Upload)
    refused(playing, elected, "client-0 received Elected, but its phase is sent, not voted")


def test_elected_is_refused_where_nobody_votes():
    playing = hand(*FEDAVG)
    _, elected = voted()
    playing.send(ME, playing.begin(1))
    refused(playing, elsewhere(elected, method="fedavg"), "its phase is sent, not voted")


@pytest.mark.parametrize(("field", "came"), WRONG)
def test_a_begin_for_elsewhere_is_refused(field, came):
    playing = hand()
    message = refused(playing, elsewhere(playing.begin(1), **{field: came}), "Begin does not belong here")
    assert f"expected {field} {getattr(playing.parameters.round_id(1), field)!r}, got {came!r}" in message
    playing.send(ME, playing.begin(1))


@pytest.mark.parametrize(("field", "came"), [*WRONG, ("number", 2), ("attempt", 1)])
def test_an_elected_for_elsewhere_is_refused(field, came):
    playing, elected = voted()
    message = refused(playing, elsewhere(elected, **{field: came}), "Elected does not belong here")
    assert f"expected {field} {getattr(playing.parameters.round_id(1), field)!r}, got {came!r}" in message
    playing.send(ME, elected)


@pytest.mark.parametrize(("field", "came"), [*WRONG, ("number", 2), ("attempt", 1)])
def test_a_finish_for_elsewhere_is_refused(field, came):
    playing = hand(*FEDAVG, rounds=1)
    aggregate = playing.round(1)
    refused(
        playing,
        elsewhere(playing.finish(aggregate), **{field: came}),
        "Finish does not belong here|a run ends after one of its rounds 1 to 1, got 2",
    )
    playing.send(ME, playing.finish(aggregate))


@pytest.mark.parametrize("number", [-1, 0, 4])
def test_a_round_outside_the_run_is_refused(number):
    refused(hand(), hand().begin(number), f"rounds are numbered 1 to 3, got {number}")


# Once and in order


@pytest.mark.parametrize("settings", [STATIC, FEDAVG], ids=["votes", "no-vote"])
def test_a_round_is_answered_once(settings):
    playing = hand(*settings)
    playing.send(ME, playing.begin(1))
    refused(playing, playing.begin(1), "already answered round 1, attempt 0")
    assert playing.learners[ME].trained == 1


@pytest.mark.parametrize("settings", [STATIC, FEDAVG, FEEDBACK], ids=["static", "fedavg", "feedback"])
def test_a_simulation_that_was_interrupted_answers_a_round_again_with_the_same_bits(settings):
    playing = hand(*settings)
    playing.silos[ME] = replace(playing.silos[ME], simulated=True)
    first, again = (pack(playing.send(ME, playing.begin(1)))[1:] for _ in range(2))
    assert [bytes(memoryview(frame)) for frame in first] == [bytes(memoryview(frame)) for frame in again]


def test_another_attempt_is_answered_in_another_order_and_once():
    playing = hand()
    first = playing.send(ME, playing.begin(1))
    second = playing.send(ME, playing.begin(1, attempt=1))
    assert bytes(first.votes.view) != bytes(second.votes.view)
    assert first.fingerprint != second.fingerprint
    for attempt in (0, 1):
        refused(playing, playing.begin(1, attempt=attempt), "already answered round 1, attempt 1")


def test_an_earlier_round_is_not_answered_again():
    playing = hand(*FEDAVG)
    first = playing.round(1)
    playing.send(ME, playing.begin(2, first))
    refused(playing, playing.begin(1, attempt=5), "already answered round 2, attempt 0")


@pytest.mark.parametrize("phase", ["voted", "sent"])
def test_a_request_to_report_does_not_undo_an_answered_round(phase):
    """It would throw away what feedback withheld: the next aggregate decides what becomes of it."""
    playing, elected = voted(*FEEDBACK)
    if phase == "sent":
        playing.send(ME, elected)
    refused(playing, playing.begin(1, train=False), "answered round 1")


def test_a_client_that_was_not_sampled_reports_as_often_as_it_is_asked():
    playing = hand(*FEDAVG)
    aggregate = playing.round(1, clients=[PEER])
    for _ in range(2):
        reply = playing.send(ME, playing.begin(2, aggregate, train=False))
        assert isinstance(reply, ReportOnly)
        assert reply.report.applied == 1
    assert playing.learners[ME].trained == 0
    assert isinstance(playing.send(ME, playing.begin(2, aggregate)), Upload)


# What a client derives itself


@pytest.mark.parametrize("k", [0, 9, 11, LENGTH])
def test_another_number_of_elected_than_its_own_is_refused(k):
    playing, elected = voted()
    chosen = np.arange(LENGTH) < k
    refused(playing, Elected(round_id=elected.round_id, positions=pack_positions(chosen)), "10")
    playing.send(ME, elected)


@pytest.mark.parametrize("settings", [FEDAVG, STATIC], ids=["no-keys", "keys"])
def test_counts_that_change_within_a_run_are_refused(settings):
    playing = hand(*settings)
    aggregate = playing.round(1)
    changed = playing.begin(2, aggregate, counts={ME: 10, PEER: 11})
    refused(playing, changed, r"sample counts are fixed for a run; client-0 has 10, but different ones were received")
    playing.send(ME, playing.begin(2, aggregate))


def test_counts_are_needed_once():
    playing = hand()
    with pytest.raises(ProtocolError, match="expected sample counts of client-0, client-1, got those of nobody"):
        step(playing.silos[ME], playing.states[ME], playing.begin(1))
    aggregate = playing.round(1)
    state, _ = step(playing.silos[ME], playing.states[ME], playing.begin(2, aggregate))
    assert state.counts.tolist() == [10, 10]


def test_a_client_whose_data_changed_within_a_run_sends_nothing():
    playing = hand(*FEDAVG)
    aggregate = playing.round(1)
    joined = playing.silos[ME].learner
    playing.silos[ME] = with_learner(playing.silos[ME], facts=msgspec.structs.replace(joined.facts, samples=9))
    refused(playing, playing.begin(2, aggregate), "had 10 samples when this run began and has 9 now")


@pytest.mark.parametrize("own", [10, 12])
def test_another_count_of_its_own_samples_is_refused(own):
    playing = hand(samples=[11, 10])
    refused(playing, playing.begin(1, counts={ME: own, PEER: 10}), "client-0 has 11, but different ones were received")
    playing.send(ME, playing.begin(1))


@pytest.mark.parametrize(
    "counts",
    [{ME: 10}, {PEER: 10, ME: 10}, {ME: 10, PEER: 10, "stranger": 10}, {ME: 10, "stranger": 10}]
    + [{ME: 10, PEER: count} for count in (-1, 0, 9, MOST_SAMPLES + 1)],
)
def test_impossible_counts_are_refused(counts):
    playing = hand()
    refused(
        playing,
        playing.begin(1, counts=counts),
        "expected sample counts of client-0, client-1, got |a sample count must be between 10 and ",
    )
    playing.send(ME, playing.begin(1))


@pytest.mark.parametrize("settings", [FEDAVG, STATIC], ids=["no-keys", "keys"])
@pytest.mark.parametrize(
    "clients", [(), (PEER, ME), (ME, ME), (ME, PEER, PEER), (ME, "stranger"), (ME, PEER, "stranger")]
)
def test_an_aggregate_over_impossible_clients_is_refused(settings, clients):
    playing = hand(*settings)
    aggregate = playing.round(1)
    lying = msgspec.structs.replace(aggregate, clients=clients, nonces=(aggregate.nonces * 2)[: len(clients)])
    refused(playing, playing.begin(2, lying), "should be a sum over 1 or more of .*, each once and in this order")
    playing.send(ME, playing.begin(2, aggregate))


def test_an_aggregate_over_less_than_a_quorum_is_refused():
    playing = Hand(UPDATES, "federation.quorum=2", *STATIC)
    refused(playing, playing.begin(2, playing.round(1, counted=[PEER])), "should be a sum over 2 or more of ")


@pytest.mark.parametrize(
    "changed",
    [{"nonces": ()}, {"nonces": (bytes(16),)}, {"nonces": (bytes(16), bytes(15))}, {"nonces": (bytes(16),) * 3}]
    + [{"tag": bytes(size)} for size in (0, 7, 9)],
)
def test_an_aggregate_without_a_nonce_for_each_client_and_a_tag_is_refused(changed):
    playing = hand()
    aggregate = playing.round(1)
    lying = msgspec.structs.replace(aggregate, **changed)
    refused(playing, playing.begin(2, lying), "a nonce of 16 bytes for each of its 2 clients and a tag of 8")
    playing.send(ME, playing.begin(2, aggregate))


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
@pytest.mark.parametrize("length", [LENGTH + 1, -1, 0, 2**40])
def test_an_aggregate_of_another_length_is_refused(settings, length):
    playing = hand(*settings)
    aggregate = playing.round(1)
    lying = msgspec.structs.replace(aggregate.payload, length=length)
    refused(playing, playing.begin(2, msgspec.structs.replace(aggregate, payload=lying)), f"got {length}")


@pytest.mark.parametrize(("settings", "part"), [(STATIC, 0), (STATIC, 1), (FEEDBACK, 0)])
@pytest.mark.parametrize("length", [LENGTH + 1, -1, 0, 2**40])
def test_an_aggregates_part_of_another_length_is_refused(settings, part, length):
    playing = hand(*settings)
    aggregate = playing.round(1)
    parts = list(aggregate.payload.parts)
    parts[part] = msgspec.structs.replace(parts[part], length=length)
    lying = msgspec.structs.replace(aggregate.payload, parts=tuple(parts))
    refused(playing, playing.begin(2, msgspec.structs.replace(aggregate, payload=lying)), error=ParaAegisError)


def test_an_aggregate_of_another_method_is_refused():
    plain = hand(*FEDAVG).round(1)
    playing = hand()
    aggregate = msgspec.structs.replace(playing.round(1), payload=plain.payload)
    refused(playing, playing.begin(2, aggregate), "expected a 'parallel' payload of 2 parts, got a 'grid'")


@pytest.mark.parametrize("numbers", [(), (1,), (2,), (2, 1)])
def test_missing_aggregates_are_refused_with_those_that_are_needed(numbers):
    playing = hand(*FEDAVG)
    first = playing.round(1, clients=[PEER])
    second = playing.round(2, first, clients=[PEER])
    sent = [{1: first, 2: second}[number] for number in numbers]
    needed = 2 if 1 in numbers else 1
    with pytest.raises(ProtocolError, match=f"aggregates of rounds {needed} to 2, got "):
        playing.send(ME, playing.begin(3, *sent))
    assert playing.states[ME].applied == needed - 1  # what it has checked it keeps, lest it be asked again
    playing.send(ME, playing.begin(3, first, second))


def test_an_aggregate_without_its_elected_positions_is_refused_by_who_does_not_know_them():
    playing = hand()
    aggregate = playing.round(1, clients=[PEER])
    blind = msgspec.structs.replace(aggregate, elected=None)
    refused(playing, playing.begin(2, blind), "has no elected positions")
    playing.send(ME, playing.begin(2, aggregate))
    playing.send(PEER, playing.begin(2, blind))
    np.testing.assert_array_equal(playing.states[ME].weights, playing.states[PEER].weights)


# Bad input


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(settings, bad):
    playing = hand(*settings)
    playing.learners[ME].updates[0][3] = bad
    refused(playing, playing.begin(1), "client-0 in round 1 gave NaN or infinity", UpdateError)
    playing.learners[ME].updates[0][3] = 1.0
    playing.send(ME, playing.begin(1))


@pytest.mark.parametrize(("model", "came"), [
    (np.zeros(LENGTH + 1, np.float32), "40 values, as many as its first model has, got 41"),
    (np.zeros((1, LENGTH), np.float32), r"one numpy vector of float32, got ndarray of float32 and shape \(1, 40\)"),
    (np.zeros(LENGTH), r"one numpy vector of float32, got ndarray of float64 and shape \(40,\)"),
    ([0.0] * LENGTH, "one numpy vector of float32, got list"),
    (None, "one numpy vector of float32, got NoneType; did it return nothing"),
])  # fmt: skip
def test_what_a_learner_returns_must_be_a_model(model, came):
    playing = hand()
    for returned in (model, (model, {})):
        playing.learners[ME].train = lambda weights, number, returned=returned: returned
        refused(playing, playing.begin(1), f"train of client-0's learner must return .*{came}", LearnerError)
    playing = hand(*FEDAVG)
    first = playing.round(1)
    playing.learners[ME].apply = lambda weights, delta: model
    refused(playing, playing.begin(2, first), f"apply of client-0's learner must return .*{came}", LearnerError)


@pytest.mark.parametrize(("returned", "why"), [
    (([], {}, 1), r"must return \(weights, metrics\) or the weights alone, got 3 values"),
    ((np.zeros(LENGTH, np.float32), [0.5]), "a dict of numbers by name as metrics, got list"),
    ((np.zeros(LENGTH, np.float32), {"loss": "low"}), "returned str for 'loss'; return a number"),
])  # fmt: skip
def test_metrics_that_are_none_are_refused(returned, why):
    playing = hand()
    playing.learners[ME].train = lambda weights, number: returned
    refused(playing, playing.begin(1), f"client-0's learner .*{why}", LearnerError)


def test_an_error_of_a_learner_names_its_client_and_keeps_its_traceback():
    playing = hand()
    playing.learners[ME].train = lambda weights, number: {}["labels"]
    with pytest.raises(LearnerError, match="train in round 1 of client-0's learner failed: KeyError: 'la") as refusal:
        playing.send(ME, playing.begin(1))
    assert isinstance(refusal.value.__cause__, KeyError)


def test_what_training_measures_goes_to_the_clients_own_log_alone():
    playing, logged = hand(*FEDAVG), []
    playing.silos[ME] = replace(playing.silos[ME], log_metrics=lambda *line: logged.append(line))
    playing.learners[ME].train = lambda weights, number: (weights + 1, {"loss": 0.25})
    reply = playing.send(ME, playing.begin(1))
    assert logged == [("train", 1, {"loss": 0.25})]
    assert reply.report.metrics == {}


@pytest.mark.parametrize(("state", "why"), [([1.0], "a dict of numpy arrays"), ({"step": 3}, "a dict of numpy arrays")])
def test_a_state_that_cannot_be_stored_is_refused(state, why):
    playing = hand()
    playing.learners[ME].state = lambda: state
    with pytest.raises(LearnerError, match=f"state of client-0's learner must return {why}"):
        playing.silos[ME].learner.state()


def test_a_first_model_that_changes_is_refused():
    """As at a node, which makes its learner again for every message."""
    playing = hand()
    silo = with_learner(playing.silos[ME])
    playing.learners[ME].initial = lambda: np.ones(LENGTH, np.float32)
    with pytest.raises(LearnerError, match=r"first model of client-0 .*torch\.manual_seed"):
        start(silo)


@pytest.mark.parametrize("samples", [0, -1, 2.5, None, True])
def test_samples_must_be_a_count(samples):
    learner = ToyLearner(np.ones((1, 3)))
    learner.samples = samples
    with pytest.raises(LearnerError, match="samples of a's learner must be a whole number of at least 1"):
        check_learners({"a": learner})


def test_a_learner_needs_three_things_alone():
    class Least(Learner):
        samples = 3

        def initial(self):
            return np.zeros(4, np.float32)

        def train(self, weights, number):
            return weights + 1

    (learner,) = check_learners({"a": Least()}).values()
    trained, metrics = learner.train(learner.initial(), 1)
    assert learner.apply(trained, trained).tolist() == [2.0] * 4
    assert (metrics, learner.evaluate(trained), learner.state()) == ({}, {}, {})


def test_an_update_beyond_the_reach_of_ckks_is_refused_and_nothing_leaves():
    playing = hand("protect.method=ckks-fedavg", updates=np.full((2, 3, LENGTH), 1e6))
    refused(playing, playing.begin(1), "supports sums within", UpdateError)


def test_a_client_with_too_few_samples_does_not_join():
    with pytest.raises(ProtocolError, match="client-0 has fewer samples than the 10 "):
        hand(*FEDAVG, "federation.min_samples=10", samples=[9, 10])
    assert isinstance(hand(*FEDAVG, "federation.min_samples=10", samples=[10, 10]).hellos[PEER], Hello)


def test_a_client_without_samples_does_not_join():
    with pytest.raises(LearnerError, match="samples of client-0's learner must be a whole number of at least 1"):
        hand(*FEDAVG, samples=[0, 10])


# An error leaves the old state usable


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
def test_a_damaged_aggregate_is_refused_and_the_right_one_is_taken_afterwards(settings):
    playing, other = hand(*settings), hand(*settings)
    for one in (playing, other):
        one.aggregate = one.round(1)

    def cut(payload):
        chunks = tuple(Blob(bytes(chunk.view)[:-1]) for chunk in payload.chunks)
        return msgspec.structs.replace(payload, chunks=chunks, parts=tuple(map(cut, payload.parts)))

    damaged = msgspec.structs.replace(playing.aggregate, payload=cut(playing.aggregate.payload))
    refused(playing, playing.begin(2, damaged), error=ParaAegisError)
    playing.send(ME, playing.begin(2, playing.aggregate))
    other.send(ME, other.begin(2, other.aggregate))
    np.testing.assert_array_equal(playing.states[ME].weights, other.states[ME].weights)


# The fate of what was withheld


def keys_of(playing, number, attempt=0):
    """A round's keys, which the client itself has erased."""
    return playing.silos[ME].first_keys(playing.silos[ME].root).at(number, attempt)


def sent_and_withheld(playing, number, aggregate):
    """A client's part of the sum and the rest, from what was elected."""
    elected = unpack_positions(aggregate.elected, playing.parameters.k(number), playing.parameters.length)
    return playing.silos[ME].partition(keys_of(playing, number).step, elected).elected


def test_a_counted_upload_leaves_the_outside_as_residual():
    playing = hand(*FEEDBACK)
    aggregate = playing.round(1)
    inside = sent_and_withheld(playing, 1, aggregate)
    playing.send(ME, playing.begin(2, aggregate, train=False))
    np.testing.assert_array_equal(playing.states[ME].residual, np.where(inside, 0, UPDATES[0, 0]))
    np.testing.assert_array_equal(playing.states[ME].weights, np.where(inside, mean(UPDATES[:, 0]), 0))


def test_an_upload_that_was_not_counted_returns_whole():
    playing = hand(*FEEDBACK)
    aggregate = playing.round(1, counted=[PEER])
    playing.send(ME, playing.begin(2, aggregate, train=False))
    np.testing.assert_array_equal(playing.states[ME].residual, UPDATES[0, 0])
    inside = sent_and_withheld(playing, 1, aggregate)
    np.testing.assert_array_equal(playing.states[ME].weights, np.where(inside, UPDATES[1, 0], 0))


def test_an_upload_to_a_void_round_returns_whole():
    playing = hand(*FEEDBACK)
    void = playing.round(1, counted=[])
    ballot = playing.send(ME, playing.begin(2, void))
    np.testing.assert_array_equal(playing.states[ME].weights, 0)
    np.testing.assert_array_equal(playing.states[ME].residual, UPDATES[0, 0])
    np.testing.assert_array_equal(playing.states[ME].update, UPDATES[0, 0] + UPDATES[0, 1])
    assert ballot.report.applied == 1


def test_a_round_that_ended_at_the_vote_returns_all_of_its_update():
    playing = hand(*FEEDBACK)
    first = playing.round(1)
    playing.send(ME, playing.begin(2, first))
    update = playing.states[ME].update.copy()
    playing.send(ME, playing.begin(3, Aggregate(2, 0), train=False))
    np.testing.assert_array_equal(playing.states[ME].residual, update)


def test_a_residual_survives_a_round_without_its_client():
    playing = hand(*FEEDBACK)
    first = playing.round(1)
    playing.send(ME, playing.begin(2, first, train=False))
    residual = playing.states[ME].residual.copy()
    second = playing.round(2, first, clients=[PEER])
    playing.send(ME, playing.begin(3, second, train=False))
    np.testing.assert_array_equal(playing.states[ME].residual, residual)


def test_a_withheld_update_is_conserved_over_rounds_that_count_and_that_do_not():
    """What entered the model and what is withheld add up to all that was trained."""
    playing = hand(*FEEDBACK, updates=UPDATES[:1])
    first = playing.round(1)
    void = playing.round(2, first, counted=[])
    third = playing.round(3, void)
    playing.send(ME, playing.finish(third))
    state = playing.states[ME]
    np.testing.assert_array_equal(state.weights + state.residual, UPDATES[0].sum(axis=0))


# Catching up


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
def test_a_client_that_was_left_out_catches_up_in_order(settings):
    playing = hand(*settings)
    first = playing.round(1, clients=[PEER])
    second = playing.round(2, first, clients=[PEER])
    playing.send(PEER, playing.begin(3, second))
    reply = playing.send(ME, playing.begin(3, first, second))
    assert reply.report.applied == 2
    np.testing.assert_array_equal(playing.states[ME].weights, playing.states[PEER].weights)


def test_aggregates_that_were_applied_already_are_not_applied_again():
    playing = hand(*FEDAVG)
    first = playing.round(1)
    second = playing.round(2, first)
    playing.send(ME, playing.begin(3, first, second))
    np.testing.assert_array_equal(playing.states[ME].weights, mean(UPDATES[:, 0]) + mean(UPDATES[:, 1]))


def test_a_first_report_has_no_metrics():
    assert hand(*FEDAVG).send(ME, hand(*FEDAVG).begin(1)).report.metrics == {}


# The state on disk


@pytest.mark.parametrize("settings", [STATIC, FEEDBACK], ids=["static", "feedback"])
def test_a_state_survives_the_disk_in_every_phase(tmp_path, settings, monkeypatch):
    """Each message may reach a fresh process: the run goes on as if it had stayed in memory."""
    kept, stored = hand(*settings), hand(*settings)

    def on_disk(playing):
        for name, state in playing.states.items():
            np.savez(tmp_path / "state.npz", allow_pickle=False, **state.to_arrays())
            with np.load(tmp_path / "state.npz", allow_pickle=False) as arrays:
                playing.states[name] = ClientState.from_arrays(dict(arrays))

    phases = set()
    for playing, between in ((kept, lambda _: None), (stored, on_disk)):
        nonces = count()  # the same in both runs
        monkeypatch.setattr("paraaegis.crypto.mac.new_nonce", lambda n=nonces: next(n).to_bytes(16, "little"))
        aggregates = ()
        for number in (1, 2):
            ballots = [playing.send(client, playing.begin(number, *aggregates)) for client in playing.silos]
            phases.add(playing.states[ME].phase)
            between(playing)
            elected = playing.elect(number, ballots)
            uploads = {client: playing.send(client, elected) for client in playing.silos}
            phases.add(playing.states[ME].phase)
            between(playing)
            aggregates = (playing.sum(number, uploads, elected.positions),)
        playing.send(ME, playing.begin(3, *aggregates, train=False))
        phases.add(playing.states[ME].phase)
        between(playing)
    assert phases == {"voted", "sent", "idle"}
    assert kept.states[ME].applied == 2
    assert bits(replace(kept.states[ME], once=b"")) == bits(replace(stored.states[ME], once=b""))


def test_a_state_comes_back_with_every_field():
    vector, mask = np.arange(4, dtype=np.float32), np.array([True, False, True, False])
    integers = np.arange(3, dtype=np.int64)
    state = ClientState(
        vector, "sent", 3, 1, 2, counts=integers, chains="c", nonce="d", view="f",
        held=Root(bytes(32), bytes(16)).begin("r"), root=4, joined="g", once=b"h", line=b"i",
        pinned="j", model="k", share=integers + 1,
        opened=1, residual=vector + 1, update=vector + 2, next_residual=vector + 3, fingerprint="e", elected=mask,
    )  # fmt: skip
    assert set(state.to_arrays()) == {
        {"next_residual": "kept", "fingerprint": "mark"}.get(field.name, field.name) for field in fields(state)
    } - {"upload_context"}
    back = ClientState.from_arrays(state.to_arrays())
    assert bits(back) == bits(state)
    assert [type(getattr(back, field.name)) for field in fields(back)] == [
        type(getattr(state, field.name)) for field in fields(state)
    ]


@pytest.mark.parametrize("change", [{"extra": np.zeros(1)}, {"weights": None}], ids=["unknown", "missing"])
def test_foreign_arrays_are_no_state(change):
    arrays = ClientState(np.zeros(3, dtype=np.float32)).to_arrays() | change
    with pytest.raises(RunError, match="a client's state has the arrays"):
        ClientState.from_arrays({name: array for name, array in arrays.items() if array is not None})


def test_a_step_does_not_touch_the_state_it_was_given():
    playing = hand(*FEEDBACK)
    aggregate = playing.round(1)
    state = playing.states[ME]
    frozen = replace(state, **{name: getattr(state, name).copy() for name in ("weights", "update", "next_residual")})
    for name in ("weights", "update", "next_residual", "elected"):
        getattr(state, name).flags.writeable = False
    step(playing.silos[ME], state, playing.begin(2, aggregate))
    assert bits(state) == bits(frozen)


def test_the_first_model_is_the_learners():
    learner = ToyLearner(np.ones((1, 3)))
    learner.initial = lambda: np.array([1, 2, 3], dtype=np.float32)
    playing = Hand(np.ones((1, 3)))
    checked = check_learners({ME: learner})[ME]
    assert start(replace(playing.silos[ME], learner=checked)).weights.tolist() == [1, 2, 3]


# What the server says about weights, sums and the vote


def test_the_total_and_the_heaviest_share_are_those_of_the_counts():
    playing = hand(samples=[10, 30])
    playing.send(ME, playing.begin(1))
    assert (playing.states[ME].total, playing.states[ME].heaviest) == (40, 0.75)


@pytest.mark.parametrize("settings", [FEDAVG, STATIC], ids=["no-keys", "keys"])
def test_with_uniform_weights_every_client_counts_once_whatever_the_server_says(settings):
    playing = hand(*settings, "federation.weights=uniform", samples=[10, 30])
    begin = playing.begin(1, counts={ME: 3, PEER: 1})
    replies = {client: playing.send(client, begin) for client in playing.silos}
    positions = None
    if playing.wired.server.votes:
        elected = playing.elect(1, list(replies.values()))
        positions, replies = elected.positions, {client: playing.send(client, elected) for client in playing.silos}
    playing.send(ME, playing.begin(2, playing.sum(1, replies, positions)))
    assert playing.states[ME].counts.tolist() == [1, 1]
    np.testing.assert_array_equal(playing.states[ME].weights, mean(UPDATES[:, 0]))


def ended(playing, message):
    """The client says that it ended the run and nothing of why, keeps its model, and never says anything else."""
    model = playing.states[ME].weights
    round_id = playing.parameters.round_id(1)
    for sent in (
        message,
        message,
        playing.begin(2),
        RollCall(round_id=playing.parameters.round_id(0)),
        SnapshotRequest(round_id=round_id, receivers={}),
    ):
        assert playing.send(ME, sent) == Ended(round_id=sent.round_id)
        assert playing.states[ME].phase == "ended"
        np.testing.assert_array_equal(playing.states[ME].weights, model)


PROOF_LIES = {
    "none": lambda mine, proofs: {},
    "empty": lambda mine, proofs: {**proofs, PEER: b""},
    "noise": lambda mine, proofs: {**proofs, PEER: bytes(16)},
    "another client's": lambda mine, proofs: {**proofs, PEER: proofs["client-2"]},
    "its own": lambda mine, proofs: {**proofs, PEER: mine[PEER]},
}


@pytest.mark.parametrize("lie", PROOF_LIES.values(), ids=PROOF_LIES)
def test_a_count_without_a_valid_proof_ends_the_run_for_this_client(lie):
    playing = hand(updates=np.ones((3, 1, LENGTH)))
    told = playing.counts(ME)
    proofs = lie(prove_count(playing.silos[ME]), told["proofs"])
    ended(playing, playing.begin(1, counts=told["counts"], proofs=proofs))


def test_a_count_that_its_client_did_not_prove_ends_the_run_for_this_client():
    playing = hand()
    told = playing.counts(ME)
    ended(playing, playing.begin(1, counts={ME: 10, PEER: 11}, proofs=told["proofs"]))


def flipped(data):
    return bytes([data[0] ^ 1]) + data[1:]


AGGREGATE_LIES = {
    "tag": lambda past: {"tag": flipped(past.tag)},
    "own nonce": lambda past: {"nonces": (flipped(past.nonces[0]), past.nonces[1])},
    "peer's nonce": lambda past: {"nonces": (past.nonces[0], flipped(past.nonces[1]))},
    "fewer clients": lambda past: {"clients": (PEER,), "nonces": past.nonces[1:]},
    "another attempt": lambda past: {"attempt": past.attempt + 1},
}


@pytest.mark.parametrize("settings", [STATIC, FEEDBACK, CKKS], ids=["static", "feedback", "ckks"])
@pytest.mark.parametrize("lie", AGGREGATE_LIES.values(), ids=AGGREGATE_LIES)
def test_a_forged_aggregate_ends_the_run_for_this_client(settings, lie):
    playing = hand(*settings)
    aggregate = playing.round(1)
    ended(playing, playing.begin(2, msgspec.structs.replace(aggregate, **lie(aggregate))))


def test_a_sum_that_was_changed_by_one_step_ends_the_run_for_this_client():
    playing = hand()
    aggregate = playing.round(1)
    inside, outside = aggregate.payload.parts
    steps = unpack_fixed_point(outside.chunks, outside.length).copy()
    steps[0] += 1
    parts = (inside, msgspec.structs.replace(outside, chunks=pack_fixed_point(steps)))
    payload = msgspec.structs.replace(aggregate.payload, parts=parts)
    ended(playing, playing.begin(2, msgspec.structs.replace(aggregate, payload=payload)))


def test_clients_that_were_told_different_outcomes_of_a_vote_show_it_in_their_uploads():
    playing, elected = voted()
    other = np.roll(unpack_positions(elected.positions, 10, LENGTH), 1)
    uploads = [
        playing.send(ME, elected),
        playing.send(PEER, msgspec.structs.replace(elected, positions=pack_positions(other))),
    ]
    assert uploads[0].fingerprint != uploads[1].fingerprint
    same = voted()[0]
    assert len({same.send(client, elected).fingerprint for client in (ME, PEER)}) == 1


def test_what_was_made_ahead_is_never_stored_and_gone_when_its_round_is_over(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    playing, _ = voted(*STATIC, "privacy.epsilon=1.0", "privacy.clip=1.0")
    state = playing.states[ME]
    assert state.upload_context.prepared() is not None
    assert ClientState.from_arrays(state.to_arrays()).upload_context is None
    playing.send(ME, msgspec.structs.replace(playing.begin(2, Aggregate(1, 0)), train=False))  # round 1 was aborted
    assert (playing.states[ME].phase, playing.states[ME].upload_context) == ("idle", None)


def test_an_error_ahead_is_heard_of_when_the_upload_is_made(monkeypatch):
    def fail(*_):
        raise MemoryError("no room for noise")

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("paraaegis.protocol.mechanisms.EncodedMechanism.ahead", fail)
    playing, elected = voted(*STATIC, "privacy.epsilon=1.0", "privacy.clip=1.0")
    with pytest.raises(MemoryError, match="no room"):
        playing.send(ME, elected)


def test_repeating_a_step_does_not_repeat_its_noise(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    playing, elected = voted(*STATIC, "privacy.epsilon=1.0", "privacy.clip=1.0")
    state = playing.states[ME]
    step(playing.silos[ME], state, elected)
    with pytest.raises(ParaAegisError, match="for one vector"):
        step(playing.silos[ME], state, elected)


def test_what_was_voted_on_and_never_sent_returns_with_a_peers_model():
    playing = hand(*FEEDBACK)
    first = playing.round(1)
    vote = playing.send(ME, playing.begin(2, first))  # the round goes on without this client
    assert isinstance(vote, Ballot)
    withheld = playing.states[ME].update.copy()
    playing.send(PEER, playing.begin(2, first))
    playing.send(PEER, playing.begin(3, Aggregate(2, 0)))
    sealed = playing.peek(PEER, 3, ME).sealed[ME]
    playing.send(ME, playing.begin(3, rescue=playing.rescue(2, PEER, sealed, ME)))
    np.testing.assert_array_equal(playing.states[ME].update, withheld + UPDATES[0][2])


@pytest.mark.parametrize(("fraction", "kept"), [("1.0", 2), ("0.5", 10)])
def test_sums_that_all_have_applied_are_not_kept(fraction, kept):
    wired = wired_of(
        configure("federation.clients=4", f"federation.fraction={fraction}"), learners_of(np.ones((4, 1, 3)))
    )
    deltas = wired.clients[ME].deltas
    for number in range(20):
        deltas(number, lambda: np.ones(3))
    assert len(deltas._values) == kept
