"""A client that is too far behind gets a peer's model, which the server cannot open."""

import msgspec
import numpy as np
import pytest

from five_clients import FEDAVG, LENGTH, SAMPLES, each_method, hand
from hand import Hand, served
from paraaegis.crypto.sealed_box import new_pair, unseal
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.protocol.client import start
from paraaegis.protocol.messages import Aggregate, Begin, Ended, Receiver, RollCall, SnapshotRequest, Upload
from toy import play


def or_refusal(answer):
    """A client's frames, or what it says against the message."""
    try:
        return answer()
    except ProtocolError as error:
        return str(error)


def away_for_long(client, request, answer):
    """The last client does not answer from round 2 to 6."""
    return None if client == "client-4" and 2 <= request.round_id.number <= 6 else or_refusal(answer)


@each_method
def test_a_client_that_lost_its_disk_while_the_run_goes_on_gets_a_peers_model(settings):
    """Aggregates that everyone has applied are not kept."""
    playing = Hand(np.ones((5, 1, LENGTH)), "federation.quorum=4", *settings, rounds=6)
    lost = []

    def meddle(client, request, answer):
        if client == "client-2" and isinstance(request, Begin) and request.round_id.number == 4 and not lost:
            playing.states[client] = start(playing.silos[client])
            lost.append(client)
        return or_refusal(answer)

    done = served(playing, meddle)
    assert [line.round for line in done.lines if "client-2" not in line.clients] == [4]
    assert "snapshot" in done.lines[4].bytes_up
    np.testing.assert_array_equal(done.model("client-2"), done.model())


def test_nobody_seals_models_for_a_client_that_does_not_answer_and_it_is_rescued_when_it_is_back():
    peeked = []

    def meddle(client, request, answer):
        if isinstance(request, SnapshotRequest):
            peeked.append(request.round_id.number)
        return away_for_long(client, request, answer)

    playing = Hand(
        np.ones((5, 1, LENGTH)), FEDAVG, "federation.quorum=4", "federation.history=2", rounds=10, samples=SAMPLES
    )
    done = served(playing, meddle)
    assert [len(line.clients) for line in done.lines] == [5, 4, 4, 4, 4, 4, 4, 5, 5, 5]
    assert "needs the aggregates" in done.lines[6].dropped["client-4"]
    assert peeked == [8]
    np.testing.assert_array_equal(done.model("client-4"), done.model())


def test_a_rescued_client_is_not_sent_what_its_peers_model_holds():
    begun = {}

    def meddle(client, request, answer):
        if client == "client-4" and isinstance(request, Begin) and request.rescue:
            begun[request.round_id.number] = (request.rescue.applied, [past.number for past in request.aggregates])
        return away_for_long(client, request, answer)

    playing = Hand(np.ones((5, 1, LENGTH)), FEDAVG, "federation.quorum=4", "federation.history=3", rounds=8)
    done = served(playing, meddle)
    assert begun == {8: (6, [7])}
    np.testing.assert_array_equal(done.model("client-4"), done.model())


def test_a_peer_that_cannot_give_its_model_still_trains_and_is_not_dropped():
    asked = []

    def meddle(client, request, answer):
        if isinstance(request, SnapshotRequest):
            asked.append(client)
        if isinstance(request, SnapshotRequest) and client == "client-0":
            return "out of memory"
        return away_for_long(client, request, answer)

    playing = Hand(np.ones((5, 1, LENGTH)), FEDAVG, "federation.quorum=4", "federation.history=2", rounds=10)
    done = served(playing, meddle)
    assert asked == ["client-0", "client-1"]
    assert len(done.lines[7].clients) == 5
    assert done.lines[7].dropped == {}


@pytest.mark.parametrize("method", ["fedavg", "paraaegis-static", "paraaegis-feedback", "ckks-fedavg"])
def test_a_client_left_out_for_longer_than_the_history_gets_a_peers_model(method):
    """Thirty rounds of one client in five: most wait for longer than the two rounds that are kept."""
    settings = (f"protect.method={method}", "federation.fraction=0.2", "federation.history=2", "protect.ratio=0.5")
    played = play(np.ones((10, 1, 6)), *settings, rounds=30)
    assert any("snapshot" in line.bytes_down for line in played.lines)
    assert all(len(line.clients) == 2 for line in played.lines)
    assert not any(line.dropped for line in played.lines)
    for state in played.engine.states.values():
        np.testing.assert_array_equal(state.weights, played.model)


def test_a_peers_model_cannot_be_opened_by_the_server():
    playing = hand(FEDAVG)
    ours, theirs = playing.silos["client-0"], playing.silos["client-1"]
    sealed = bytes(playing.peek("client-0", 1, "client-1").sealed["client-1"].view)
    once = playing.states["client-1"].once
    context = msgspec.msgpack.encode([playing.parameters.run, "client-0", "client-1", "model", 0])
    unseal(theirs.identity[0], ours.identity[1], sealed, context, once=once)
    for private, secret in ((new_pair()[0], once), (theirs.identity[0], new_pair()[0]), (theirs.identity[0], b"")):
        with pytest.raises(CryptoError):
            unseal(private, ours.identity[1], sealed, context, once=secret)


@pytest.mark.parametrize("lie", ["another key", "fewer rounds", "another client's"])
def test_no_model_is_sealed_to_a_one_time_key_that_its_client_did_not_make(lie):
    playing = hand(FEDAVG)
    playing.send("client-1", playing.begin(2, playing.round(1)))
    true = playing.receiver("client-1", "client-0")
    false = {
        "another key": Receiver(new_pair()[1], true.applied, true.proof),
        "fewer rounds": Receiver(true.once, 0, true.proof),
        "another client's": Receiver(true.once, true.applied, playing.receiver("client-1", "client-2").proof),
    }[lie]
    receivers = {"client-1": false, "client-2": playing.receiver("client-2", "client-0")}
    sealed = playing.send(
        "client-0", SnapshotRequest(round_id=playing.parameters.round_id(2), receivers=receivers)
    ).sealed
    assert set(sealed) == {"client-2"}  # and nothing else happens: one client's lie must not end the run for others


def test_no_keys_are_sealed_to_a_client_that_has_erased_them():
    """Held back at round 1, a peer would give a client, or the thief of its folder, the keys of all later rounds."""
    playing = hand(FEDAVG)
    playing.send("client-1", playing.begin(2, playing.round(1)))
    assert playing.peek("client-0", 1, "client-1").sealed == {}
    assert set(playing.peek("client-1", 2, "client-0").sealed) == {"client-0"}


def test_a_one_time_key_is_gone_with_the_next_message():
    playing = hand(FEDAVG)
    for message in (
        playing.begin(1),
        playing.begin(2, Aggregate(1, 0)),
        playing.finish(Aggregate(2, 0), Aggregate(3, 0)),
    ):
        playing.send("client-1", RollCall(round_id=playing.parameters.round_id(0)))
        assert playing.states["client-1"].once
        playing.send("client-1", message)
        assert not playing.states["client-1"].once


def test_a_model_sealed_to_an_older_one_time_key_is_asked_for_again():
    """As where the answer to a roll call was lost: an ordinary error, which ends nothing."""
    playing = hand(FEDAVG)
    peers = [name for name in playing.silos if name != "client-1"]
    first = playing.round(1, clients=peers)
    playing.send("client-0", playing.begin(2, first))
    rescue = playing.rescue(1, "client-0", playing.peek("client-0", 2, "client-1").sealed["client-1"], "client-1")
    playing.send("client-1", RollCall(round_id=playing.parameters.round_id(0)))
    with pytest.raises(ProtocolError, match="one-time key that client-1 no longer has"):
        playing.send("client-1", playing.begin(2, rescue=rescue))
    assert playing.states["client-1"].phase == "idle"


@pytest.mark.parametrize("receiver", ["stranger", "client-0"])
def test_models_are_sealed_to_other_clients_of_the_run_only(receiver):
    playing = hand(FEDAVG)
    playing.hellos["stranger"] = playing.hellos["client-1"]
    with pytest.raises(ProtocolError, match=f"only be sealed to other clients of the run, got '{receiver}'"):
        playing.peek("client-0", 1, "client-1", receiver)


def rescued(applied, sender, receiver):
    """What client-1 answers to the model that client-0 sealed to `receiver` after round 2, and its state."""
    playing = hand(FEDAVG)
    peers = [name for name in playing.silos if name != "client-1"]
    first = playing.round(1, clients=peers)
    second = playing.round(2, first, clients=peers)
    playing.send("client-0", playing.begin(3, second))
    sealed = playing.peek("client-0", 3, *peers[1:], "client-1").sealed[receiver]
    reply = playing.send("client-1", playing.begin(3, rescue=playing.rescue(applied, sender, sealed, "client-1")))
    return reply, playing.states["client-1"], playing.states["client-0"].weights


def test_a_peers_model_is_taken_as_it_is():
    reply, state, model = rescued(2, "client-0", "client-1")
    assert isinstance(reply, Upload)
    np.testing.assert_array_equal(state.weights, model)


@pytest.mark.parametrize(
    ("applied", "sender", "receiver"),
    [
        (3, "client-0", "client-1"),
        (2, "client-2", "client-1"),
        (2, "stranger", "client-1"),
        (2, "client-0", "client-2"),
    ],
    ids=["another round", "another sender", "a stranger", "another receiver"],
)
def test_a_rescue_that_is_not_what_it_claims_ends_the_run_for_this_client(applied, sender, receiver):
    reply, state, _ = rescued(applied, sender, receiver)
    assert isinstance(reply, Ended)
    assert state.phase == "ended"
    np.testing.assert_array_equal(state.weights, np.zeros(LENGTH))
