"""A client answers a message once, in its order and only where it belongs."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from paraaegis.protocol.messages import (
    VERSION,
    Ballot,
    Elected,
    Ended,
    Hello,
    OneTimeKey,
    Report,
    ReportOnly,
    Upload,
    pack,
)
from paraaegis.protocol.voting import pack_positions, unpack_positions
from paraaegis.types import Blob, Payload
from two_clients import FEDAVG, FEEDBACK, LENGTH, ME, PEER, STATIC, hand, refused, voted

WRONG = [("run", "another"), ("method", "dp-fedavg"), ("length", LENGTH + 1), ("version", VERSION + 1)]


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
    refused(playing, elected, "client-0 received Elected in phase 'idle'; expected phase 'voted'")


def test_elected_is_refused_after_the_upload():
    playing, elected = voted()
    assert isinstance(playing.send(ME, elected), Upload)
    refused(playing, elected, "client-0 received Elected in phase 'sent'; expected phase 'voted'")


def test_elected_is_refused_where_nobody_votes():
    playing = hand(*FEDAVG)
    _, elected = voted()
    playing.send(ME, playing.begin(1))
    refused(playing, elsewhere(elected, method="fedavg"), "in phase 'sent'; expected phase 'voted'")


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
