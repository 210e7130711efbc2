"""The server mixes only what belongs together, goes on without those who fail, and holds no key."""

import types
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hand import Hand, Served, honest, mean, served
from paraaegis.crypto.ckks import Secret
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.ratchet import Ratchet, Root
from paraaegis.crypto.sealed_box import new_pair, unseal
from paraaegis.engines.local import LocalTransport
from paraaegis.errors import CryptoError, DriftError, LostTrustError, ProtocolError, RunError
from paraaegis.protocol.client import start
from paraaegis.protocol.learner import CheckedLearner
from paraaegis.protocol.messages import (
    VERSION,
    Aggregate,
    Begin,
    Elected,
    Ended,
    Finish,
    Receiver,
    RollCall,
    SnapshotRequest,
    Upload,
    pack,
    unpack,
    unpack_aggregate,
)
from paraaegis.protocol.round_server import Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ServerState, decode_state, encode_state
from paraaegis.protocol.voting import pack_positions
from paraaegis.runs.assemble import assemble
from paraaegis.runs.check import resolve
from paraaegis.types import Blob, Payload
from toy import KEYS, configure, learners_of, play

LENGTH = 24
UPDATES = np.round(np.random.default_rng(0).normal(size=(5, 3, LENGTH)) * 64) / 64
SAMPLES = [10, 10, 10, 10, 40]  # eighths and a half: means over all, or without the last, are exact on the grid
FEDAVG = "protect.method=fedavg"
STATIC = ("protect.method=paraaegis-static", "protect.ratio=0.25")
CKKS = ("protect.method=ckks-fedavg",)
METHODS = {"fedavg": (FEDAVG,), "ckks": CKKS, "static": STATIC}
each_method = pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS)


def hand(*settings, quorum=4, rounds=3, samples=SAMPLES):
    return Hand(UPDATES, f"federation.quorum={quorum}", *settings, rounds=rounds, samples=samples)


def of_all(number):
    """The mean update of a round in which everyone is counted."""
    return mean(UPDATES[:, number - 1], SAMPLES)


def lost(client, kind, number=1):
    """A carrier on which one client's reply to one message is lost."""

    def meddle(name, request, answer):
        frames = answer()
        hit = name == client and isinstance(request, kind) and request.round_id.number == number
        return None if hit else frames

    return meddle


def spoilt(client, kind, spoil):
    """A carrier that spoils one client's reply of round 1."""

    def meddle(name, request, answer):
        frames = answer()
        hit = name == client and isinstance(request, kind) and request.round_id.number == 1
        return spoil(frames) if hit else frames

    return meddle


# Everyone must be alike


@each_method
def test_a_model_that_drifted_stops_the_run_by_name(settings):
    playing = hand(*settings)

    def drift(client, request, answer):
        if client == "client-3" and isinstance(request, Begin) and request.round_id.number == 2:
            state = playing.states[client]
            playing.states[client] = replace(state, weights=state.weights + np.float32(1))
        return answer()

    with pytest.raises(
        DriftError, match=r"models, .* differ from the other clients' at client-3; nothing was aggregated"
    ):
        served(playing, drift)


def joins_with(playing, **changed):
    silo = playing.silos["client-2"]
    facts = msgspec.structs.replace(silo.learner.facts, **changed)
    playing.silos["client-2"] = replace(silo, learner=CheckedLearner(silo.name, lambda: silo.learner.made, facts))


def other_model(playing):
    joins_with(playing, model="0" * 64)


def other_length(playing):
    joins_with(playing, length=LENGTH + 1, model="1" * 64)


def other_key(playing):
    playing.silos["client-2"] = replace(playing.silos["client-2"], root=Root(bytes(32), bytes(16)))
    playing.states["client-2"] = start(playing.silos["client-2"])


def other_config(playing):
    playing.silos["client-2"] = replace(
        playing.silos["client-2"], parameters=replace(playing.parameters, config="0" * 64)
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (other_model, "first models"),
        (other_length, "first models"),
        (other_key, "keys, rosters or secret orders"),
        (other_config, "configurations"),
    ],
)
def test_a_client_unlike_the_others_stops_the_run_before_any_training(change, what):
    playing = hand(*STATIC)
    change(playing)
    with pytest.raises(DriftError, match=f"{what} differ from the other clients' at client-2"):
        served(playing)
    assert [learner.trained for learner in playing.learners.values()] == [0] * 5


def test_a_configuration_that_all_clients_but_not_the_server_have_stops_the_run():
    playing = hand(*STATIC)
    for client, silo in playing.silos.items():
        playing.silos[client] = replace(silo, parameters=replace(playing.parameters, config="0" * 64))
    with pytest.raises(
        DriftError,
        match="configurations differ from the other clients' at client-0, client-1, client-2, client-3, client-4",
    ):
        served(playing)


@pytest.mark.parametrize("silence", [None, "the power is out"])
def test_a_client_that_does_not_join_stops_the_run_with_its_reason(silence):
    def meddle(client, request, answer):
        return silence if client == "client-1" else answer()

    with pytest.raises(ProtocolError, match=f"not everyone joined: client-1: {silence or 'did not answer in time'}"):
        served(hand(FEDAVG), meddle)


def test_a_client_that_comes_back_with_other_data_stops_the_run():
    playing = hand(FEDAVG)
    state = ServerState(weights=dict.fromkeys(playing.silos, 11))
    with pytest.raises(ProtocolError, match="a different sample count: it had 11 and has 10 now"):
        Served(playing, honest, state).run()


def test_a_state_that_is_older_than_its_clients_is_refused():
    playing = hand(FEDAVG)
    served(playing)
    with pytest.raises(ProtocolError, match="client-0 has applied round 3, but the server's state ends at round 0"):
        served(playing)


# Clients that fail


@each_method
def test_a_lost_reply_leaves_a_round_of_the_others_with_weights_renormalised(settings):
    playing = hand(*settings, samples=[30, 10, 10, 10, 20], rounds=1)
    done = served(playing, lost("client-4", Begin))
    (line,) = done.lines
    assert line.clients == ["client-0", "client-1", "client-2", "client-3"]
    assert line.dropped == {"client-4": "did not answer in time"}
    for client in playing.silos:
        np.testing.assert_allclose(done.model(client), mean(UPDATES[:4, 0], [30, 10, 10, 10]), atol=1e-6)
        np.testing.assert_array_equal(done.model(client), done.model())


def test_a_lost_upload_leaves_a_round_of_the_others():
    playing = hand(*STATIC, rounds=1)
    done = served(playing, lost("client-4", Elected))
    assert done.lines[0].dropped == {"client-4": "did not answer in time"}
    np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]))
    np.testing.assert_array_equal(done.model("client-4"), done.model())


@each_method
def test_a_client_whose_reply_was_lost_takes_part_again(settings):
    playing = hand(*settings)
    done = served(playing, lost("client-2", Begin, number=2))
    assert [len(line.clients) for line in done.lines] == [5, 4, 5]
    for client in playing.silos:
        np.testing.assert_array_equal(done.model(client), done.model())


@each_method
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_round_without_quorum_is_aborted_and_nothing_is_applied(settings, number):
    playing = hand(*settings)

    def meddle(client, request, answer):
        frames = answer()
        gone = client in ("client-3", "client-4") and isinstance(request, Begin) and request.round_id.number == number
        return None if gone else frames

    models = {}
    done = Served(playing, meddle)
    done.run(lambda state: models.setdefault(state.number, done.model().copy()))
    assert [line.clients == [] for line in done.lines] == [t == number for t in (1, 2, 3)]
    assert done.lines[number - 1].dropped.keys() == {"client-3", "client-4"}
    np.testing.assert_array_equal(done.model(), sum(of_all(t) for t in (1, 2, 3) if t != number))


def test_a_round_that_loses_its_quorum_after_the_vote_is_aborted():
    def meddle(client, request, answer):
        frames = answer()
        return None if client in ("client-3", "client-4") and isinstance(request, Elected) else frames

    playing = hand(*STATIC, rounds=2)
    done = served(playing, meddle)
    assert [line.clients for line in done.lines] == [[], []]
    for client in playing.silos:
        np.testing.assert_array_equal(done.model(client), np.zeros(LENGTH))


@each_method
def test_a_round_that_nobody_answers_is_aborted(settings):
    playing = hand(*settings, rounds=2)

    def meddle(client, request, answer):
        frames = answer()
        return None if isinstance(request, Begin) and request.round_id.number == 1 else frames

    done = served(playing, meddle)
    assert [len(line.clients) for line in done.lines] == [0, 5]
    assert len(done.lines[0].dropped) == 5


@each_method
def test_bad_frames_drop_their_client_with_a_reason(settings):
    votes = settings == STATIC
    bad = {
        "noise": (lambda _: (b"\xff" * 30,), "not a message of this protocol"),
        "nothing": (lambda _: (), "at least one frame, got none"),
        "cut": (lambda frames: (*frames[:-1], bytes(frames[-1])[:-1]), r"expected a blob of \d+ bytes, got \d+"),
        "surplus": (lambda frames: (*frames, b"more"), "frames too many"),
        "another message": (lambda _: pack(RollCall(round_id=playing.parameters.round_id(1))), "got RollCall"),
        "another round": (lambda frames: elsewhere(frames, number=2), "expected number 1, got 2"),
        "another run": (lambda frames: elsewhere(frames, run="x"), "expected run .*, got 'x'"),
        "another length": (lambda frames: elsewhere(frames, length=7), f"expected length {LENGTH}, got 7"),
        "another method": (lambda frames: elsewhere(frames, method="y"), "expected method .*, got 'y'"),
        "another version": (lambda frames: elsewhere(frames, version=99), f"expected version {VERSION}, got 99"),
    }
    for name, (spoil, reason) in bad.items():
        playing = hand(*settings, rounds=1)
        done = served(playing, spoilt("client-4", Elected if votes else Begin, spoil))
        (line,) = done.lines
        assert list(line.dropped) == ["client-4"], name
        with pytest.raises(ProtocolError, match=reason):
            raise ProtocolError(line.dropped["client-4"])
        np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]), name)


def elsewhere(frames, **changed):
    message = unpack(frames)
    return pack(msgspec.structs.replace(message, round_id=msgspec.structs.replace(message.round_id, **changed)))


def with_payload(payload):
    return lambda frames: pack(msgspec.structs.replace(unpack(frames), payload=payload))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (Payload("ckks", LENGTH), "expected a 'grid' payload of 0 parts"),
        (Payload("grid", LENGTH + 1, (Blob(bytes(4 * LENGTH + 4)),)), f"expected a 'grid' payload of {LENGTH} values"),
        (Payload("grid", LENGTH, (Blob(bytes(4 * LENGTH - 1)),)), "grid values must have"),
        (Payload("grid", LENGTH), "need 1 chunks, got 0"),
    ],
)
def test_a_payload_that_does_not_fit_drops_its_client(payload, reason):
    done = served(hand(FEDAVG, rounds=1), spoilt("client-4", Begin, with_payload(payload)))
    assert reason in done.lines[0].dropped["client-4"]
    np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]))


def test_half_an_upload_is_not_half_counted():
    """The inside is whole, the outside is cut: neither may enter the sum."""

    def spoil(frames):
        upload = unpack(frames)
        inside, outside = upload.payload.parts
        cut = msgspec.structs.replace(outside, chunks=(Blob(bytes(outside.chunks[0].view)[:-1]),))
        return with_payload(msgspec.structs.replace(upload.payload, parts=(inside, cut)))(frames)

    for client in ("client-0", "client-4"):  # the first to arrive, and the last
        playing = hand(*STATIC, rounds=1)
        done = served(playing, spoilt(client, Elected, spoil))
        rest = [i for i in range(5) if f"client-{i}" != client]
        weights = [SAMPLES[i] for i in rest]
        np.testing.assert_allclose(done.model("client-2"), mean(UPDATES[rest, 0], weights), atol=1e-6)


@pytest.mark.parametrize("k", [0, 5, 7])
def test_a_ballot_of_another_number_of_votes_drops_its_client(k):
    def spoil(frames):
        return pack(msgspec.structs.replace(unpack(frames), votes=pack_positions(np.arange(LENGTH) < k)))

    done = served(hand(*STATIC, rounds=1), spoilt("client-4", Begin, spoil))
    assert "6" in done.lines[0].dropped["client-4"]
    np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]))


def test_an_error_that_a_client_reports_is_its_reason():
    def meddle(client, request, answer):
        return "out of memory" if client == "client-4" and isinstance(request, Begin) else answer()

    done = served(hand(FEDAVG, rounds=1), meddle)
    assert done.lines[0].dropped == {"client-4": "out of memory"}


def test_a_reply_counts_once_and_a_strangers_never():
    playing = hand(FEDAVG, rounds=1)
    done = Served(playing, honest)

    def carry(exchange):
        for client, frames in exchange.messages.items():
            reply = Reply(client, pack(playing.send(client, unpack(frames))))
            yield Reply("stranger", reply.frames)
            yield reply
            yield reply

    drive(serve(done.desk), carry, done.lines.append, lambda _: None)
    assert done.lines[0].clients == list(playing.silos)
    np.testing.assert_array_equal(done.model(), of_all(1))


def test_a_lost_goodbye_does_not_spoil_the_run():
    done = served(hand(FEDAVG), lost("client-4", Finish, number=3))
    assert [len(line.clients) for line in done.lines] == [5, 5, 5]
    assert done.lines[-1].metrics["accuracy"] == done.model()[0]


def absent(client, until=lambda _: False):
    """A carrier that does not reach one client, until it does."""
    return lambda name, request, answer: None if name == client and not until(request) else answer()


@each_method
def test_a_run_goes_on_with_a_quorum_and_who_comes_later_catches_up(settings):
    stored = []
    first = Served(hand(*settings, rounds=4), honest)
    first.run(lambda state: stored.append((encode_state(state), list(state.history), dict(first.hand.states))))
    data, history, states = stored[0]
    playing = hand(*settings, rounds=4)
    playing.states = states
    state = msgspec.structs.replace(decode_state(data), history=history)
    back = absent("client-4", lambda request: request.round_id.number >= 3)
    rest = Served(playing, back, state).run()
    assert [len(line.clients) for line in rest.lines] == [5, 4, 5, 5]
    np.testing.assert_array_equal(rest.model("client-4"), rest.model())


def test_a_run_does_not_go_on_without_a_quorum():
    playing = hand(FEDAVG, quorum=5)
    state = ServerState(weights=dict(playing.weights), seen=dict.fromkeys(playing.weights, 0))
    with pytest.raises(ProtocolError, match="not everyone joined: client-4"):
        Served(playing, absent("client-4"), state).run()


@each_method
def test_a_client_that_was_away_at_the_end_gets_the_last_model_when_the_run_is_served_once_more(settings):
    done = served(hand(*settings), absent("client-4", lambda request: request.round_id.number < 2))
    assert done.desk.state.late == ["client-4"]
    rounds, lines = done.hand.learners["client-0"].trained, len(done.lines)
    again = Served(done.hand, honest, done.desk.state).run(over=True)
    np.testing.assert_array_equal(again.model("client-4"), again.model())
    assert not done.desk.state.late
    assert (done.hand.learners["client-0"].trained, len(done.lines) + len(again.lines)) == (rounds, lines)


def test_a_client_that_lost_its_last_states_is_brought_up_to_date():
    stored = []
    first = Served(hand(FEDAVG), honest)
    first.run(lambda state: stored.append((encode_state(state), list(state.history), dict(first.hand.states))))
    data, history, states = stored[1]
    playing = hand(FEDAVG)
    playing.states = {**states, "client-2": stored[0][2]["client-2"]}  # a round older than the server knows
    rest = Served(playing, honest, msgspec.structs.replace(decode_state(data), history=history)).run()
    assert rest.lines[-1].clients == list(playing.silos)
    np.testing.assert_array_equal(rest.model("client-2"), first.model())


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


def test_seconds_that_are_no_number_are_left_out():
    def meddle(client, request, answer):
        reply = unpack(answer())
        if client == "client-1" and isinstance(request, Begin):
            seconds = dict.fromkeys(reply.report.seconds, float("nan"))
            reply = msgspec.structs.replace(reply, report=msgspec.structs.replace(reply.report, seconds=seconds))
        return pack(reply)

    lines = served(hand(FEDAVG), meddle).lines
    assert all(np.isfinite(list(line.seconds.values())).all() for line in lines)
    assert "train" in lines[0].seconds


def test_a_client_that_does_not_prove_its_sample_count_to_every_other_client_does_not_join():
    def meddle(client, request, answer):
        reply = unpack(answer())
        if client == "client-1" and isinstance(request, RollCall):
            proofs = {peer: proof for peer, proof in reply.proofs.items() if peer != "client-2"}
            reply = msgspec.structs.replace(reply, proofs=proofs)
        return pack(reply)

    with pytest.raises(ProtocolError, match="client-1 should prove its sample count to every other client"):
        served(hand(*STATIC), meddle)


# Clients whose checks fail


def forged_for(*clients):
    """A server that gives these clients another sum of round 1 than the others."""

    def meddle(client, request, answer):
        if client not in clients or not isinstance(request, Begin) or request.round_id.number != 2:
            return answer()
        (past,) = request.aggregates
        lie = msgspec.structs.replace(past, tag=bytes([past.tag[0] ^ 1]) + past.tag[1:])
        return pack(playing.send(client, msgspec.structs.replace(request, aggregates=(lie,))))

    playing = hand(*STATIC)
    return playing, meddle


def test_a_client_whose_check_fails_is_out_and_the_others_continue():
    playing, meddle = forged_for("client-4")
    done = served(playing, meddle)
    assert [len(line.clients) for line in done.lines] == [5, 4, 4]
    for line in done.lines[1:]:
        assert line.dropped["client-4"] == "ended the run, because a check of what the server passed on failed"
    np.testing.assert_array_equal(done.model("client-4"), np.zeros(LENGTH))
    np.testing.assert_array_equal(done.model(), of_all(1) + mean(UPDATES[:4, 1]) + mean(UPDATES[:4, 2]))


def test_a_run_in_which_too_few_clients_trust_the_server_stops():
    playing, meddle = forged_for("client-3", "client-4")
    with pytest.raises(LostTrustError, match=r"client-3, client-4 ended the run.*fewer than 4 clients are left"):
        served(playing, meddle)


# Sampling


@pytest.mark.parametrize("method", ["fedavg", "paraaegis-feedback"])
def test_clients_that_were_seldom_sampled_end_with_the_same_model(method):
    settings = (f"protect.method={method}", "federation.fraction=0.4")
    played = play(UPDATES, *settings, rounds=9)
    assert all(len(line.clients) == 2 for line in played.lines)
    assert {client for line in played.lines for client in line.clients} == set(played.engine.states)
    for state in played.engine.states.values():
        np.testing.assert_array_equal(state.weights, played.model)


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
    with pytest.raises(ProtocolError, match="another one-time key"):
        playing.send("client-1", playing.begin(2, rescue=rescue))
    assert playing.states["client-1"].phase == "idle"


@pytest.mark.parametrize("receiver", ["stranger", "client-0"])
def test_models_are_sealed_to_other_clients_of_the_run_only(receiver):
    playing = hand(FEDAVG)
    playing.hellos["stranger"] = playing.hellos["client-1"]
    with pytest.raises(ProtocolError, match=f"other clients of the run only, got '{receiver}'"):
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


def test_every_round_has_metrics_though_the_evaluator_is_not_sampled():
    played = play(UPDATES, FEDAVG, "federation.fraction=0.4", rounds=6)
    assert not all("client-0" in line.clients for line in played.lines)
    assert all("accuracy" in line.metrics for line in played.lines)


def test_members_are_drawn_anew_each_round_and_alike_for_all():
    plan = hand(FEDAVG, "federation.fraction=0.4", "federation.history=50", quorum=2, rounds=50).parameters
    drawn = [plan.members(number) for number in range(1, 51)]
    assert all(len(set(members)) == 2 for members in drawn)
    assert drawn == [plan.members(number) for number in range(1, 51)]
    assert len(set(drawn)) > 5


@pytest.mark.parametrize("sampled", range(1, 60))
def test_a_default_quorum_is_four_fifths_rounded_up(sampled):
    config = configure(f"federation.clients={sampled}")
    assert resolve(config, [1]).federation.quorum == -(-4 * sampled // 5)


# The books


@pytest.mark.parametrize("away", [None, "client-4"])
@each_method
def test_the_lines_account_for_every_byte_that_was_carried(settings, away):
    playing = hand(*settings)
    hellos = [0, 0]

    def meddle(client, request, answer):
        if client == away and request.round_id.number == 2:
            return Reply(client, error="its node is not connected", lost=True, sent=False)
        frames = answer()
        if isinstance(request, RollCall):
            hellos[0] += sum(len(memoryview(frame)) for frame in pack(request))
            hellos[1] += sum(len(memoryview(frame)) for frame in frames)
        return frames

    done = served(playing, meddle)
    assert sum(sum(line.bytes_down.values()) for line in done.lines) == done.carried_down - hellos[0]
    assert sum(sum(line.bytes_up.values()) for line in done.lines) == done.carried_up - hellos[1]


def test_a_line_tells_what_its_round_was():
    playing = hand("protect.method=paraaegis-dynamic", "protect.ratio=0.5", "protect.decay=0.5")
    lines = served(playing).lines
    assert [line.round for line in lines] == [1, 2, 3]
    assert [line.ratio for line in lines] == [0.5, 0.25, 0.125]
    assert [line.elected for line in lines] == [12, 6, 3]
    assert all(0 < line.agreement <= 1 for line in lines)
    for line in lines:
        assert {"train", "vote", "protect", "combine", "reveal", "wall"} <= line.seconds.keys()
        assert {"header", "ballot", "ckks", "grid"} == line.bytes_up.keys()


def test_a_line_has_the_metrics_of_the_model_after_its_round():
    done = served(hand(FEDAVG))
    assert [line.metrics["accuracy"] for line in done.lines] == np.cumsum([of_all(t)[0] for t in (1, 2, 3)]).tolist()


def test_clients_may_report_different_metrics():
    """Each is the mean over those who report it, and none of them can stop the server."""
    playing = hand(FEDAVG, rounds=1)
    for index, learner in enumerate(playing.learners.values()):
        learner.evaluate = lambda _, index=index: {"one": 1.0} if index else {"two": 2.0, "one": 6.0}
    (line,) = served(playing).lines
    assert line.metrics == {"one": pytest.approx((6 * 10 + 70) / 80), "two": pytest.approx(2.0)}


@each_method
def test_a_server_goes_on_from_any_state_it_gave_out(settings):
    """The state goes through bytes, and the clients' through their states at that moment."""
    stored = []
    whole = Served(hand(*settings), honest)
    whole.run(lambda state: stored.append((encode_state(state), list(state.history), dict(whole.hand.states))))
    for data, history, states in stored:
        playing = hand(*settings)
        playing.states = states
        kept = [unpack_aggregate(pack(past)) for past in history]
        rest = Served(playing, honest, msgspec.structs.replace(decode_state(data), history=kept)).run()
        np.testing.assert_array_equal(rest.model(), whole.model())
        expected = whole.lines[len(whole.lines) - len(rest.lines) :]
        assert [(line.round, line.metrics) for line in rest.lines] == [(x.round, x.metrics) for x in expected]


@pytest.mark.parametrize("data", [b"", b"\xff" * 9, encode_state(ServerState())[:-2]])
def test_a_damaged_state_is_refused(data):
    with pytest.raises(RunError, match="damaged"):
        decode_state(data)


# The server holds no key


def reachable(root):
    """Every object that can be reached through attributes, slots, items and closures; not through modules and types."""
    found, open_ = {}, [root]
    while open_:
        item = open_.pop()
        if id(item) in found or isinstance(item, type | types.ModuleType):
            continue
        found[id(item)] = item
        open_ += inner(item)
    return list(found.values())


def inner(item):
    if isinstance(item, str | bytes | bytearray | int | float | None):
        return
    if isinstance(item, dict):
        yield from (*item.keys(), *item.values())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from item
    elif isinstance(item, types.FunctionType):
        yield from (*(cell.cell_contents for cell in item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)
    elif isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, memoryview):
        yield item.obj
    else:
        yield getattr(item, "__dict__", None)
        yield getattr(item, "base", None)  # of an array
        for kind in type(item).__mro__:
            slots = getattr(kind, "__slots__", ())
            for name in [slots] if isinstance(slots, str) else slots:
                yield getattr(item, name, None)
        for name in getattr(type(item), "__struct_fields__", ()):
            yield getattr(item, name)


def holding(root, **needles):
    """Which of these bytes lie somewhere within what can be reached."""
    found = set()
    for item in reachable(root):
        try:
            data = memoryview(item).tobytes()
        except TypeError:
            continue
        found |= {name for name, needle in needles.items() if needle in data}
    return found


def secrets_in(root):
    """What of the clients' secrets can be reached: their bytes, and key objects."""
    objects = {"Secret"} if any(isinstance(item, Secret) for item in reachable(root)) else set()
    objects |= {"Ratchet"} if any(isinstance(item, Ratchet) for item in reachable(root)) else set()
    return objects | holding(root, secret=KEYS.root.secret)


def test_the_walk_finds_keys_where_they_are():
    playing = served(hand(*STATIC)).hand
    assert secrets_in(playing.silos["client-0"]) >= {"secret", "Secret"}
    assert secrets_in(playing.states) == {"Ratchet"}
    assert secrets_in([KEYS.__dict__]) == {"secret"}
    closure = (lambda key: lambda: key)(KEYS)
    assert secrets_in({"deep": (closure,)}) == {"secret"}
    assert secrets_in(Blob(b"before" + KEYS.root.secret + b"after")) == {"secret"}
    assert secrets_in(np.frombuffer(KEYS.root.secret, dtype=np.uint8)[::2]) == {"secret"}


@pytest.mark.parametrize("settings", [*METHODS.values(), ("protect.method=paraaegis-feedback",)])
def test_the_servers_object_graph_holds_no_key(settings):
    done = served(hand(*settings))
    assert len(done.lines) == 3
    assert any(isinstance(item, ServerState) for item in reachable(done.desk))
    assert secrets_in(done.desk) == set()


def test_the_server_in_the_middle_of_a_round_holds_no_key():
    """Its generator's frame too: sums, tally and closures while uploads come in."""
    playing = hand(*STATIC)
    done = Served(playing, honest)
    steps = serve(done.desk)
    walked = []

    def carry(exchange):
        for client, frames in exchange.messages.items():
            generator = steps
            while generator is not None:
                walked.append(secrets_in(generator.gi_frame.f_locals))
                generator = generator.gi_yieldfrom
            yield Reply(client, pack(playing.send(client, unpack(frames))))

    drive(steps, carry, done.lines.append, lambda _: None)
    assert len(walked) > 50
    assert set().union(*walked) == set()


def test_with_worker_processes_the_server_reaches_none_that_knows_a_key():
    updates = np.random.default_rng(0).normal(size=(2, 3 * 65536 + 1)).astype(np.float32)
    learners = learners_of(updates)
    config = resolve(configure("protect.method=ckks-fedavg", "federation.clients=2", "federation.rounds=1"), [10])
    with SecretPool(2) as secrets, Pool(2) as keyless:
        wired = assemble(config, learners, KEYS, "client-0", (secrets, keyless))
        desk = RoundServer(wired.parameters, wired.server, ServerState())
        total = desk.half.new_sum(wired.parameters.round_id(1), 0)
        LocalTransport(wired.clients).run(desk, lambda _: None, lambda _: None)
        for root in (desk, total):
            assert secrets_in(root) == set()
            assert not any(isinstance(item, SecretPool) for item in reachable(root))
        assert any(item is keyless for item in reachable(total))


def test_the_server_holds_no_model():
    done = served(hand(*STATIC))
    model = done.model().tobytes()
    assert holding(done.hand.states, model=model) == {"model"}
    assert holding(done.desk, model=model) == set()


@pytest.mark.parametrize("nonce_and_tag", [(b"", b""), (bytes(16), b""), (bytes(15), bytes(8)), (bytes(16), bytes(9))])
def test_an_upload_without_a_proper_nonce_and_tag_is_dropped_and_spoils_nothing(nonce_and_tag):
    playing = hand(*STATIC)

    def spoil(client, request, answer):
        reply = unpack(answer())
        if client == "client-4" and isinstance(reply, Upload) and reply.round_id.number == 2:
            reply = msgspec.structs.replace(reply, nonce=nonce_and_tag[0], tag=nonce_and_tag[1])
        return pack(reply)

    done = served(playing, spoil)
    assert [len(line.clients) for line in done.lines] == [5, 4, 5]
    assert "expected a nonce of 16 bytes and a tag of 8 bytes" in done.lines[1].dropped["client-4"]


def test_a_client_without_keys_of_the_run_is_asked_nothing_until_it_has_some():
    """Its own keys are of a later run: a sum under them would look forged to it."""
    playing = hand(*STATIC)
    asked = []

    def late(client, request, answer):
        if client == "client-4":
            number = request.round_id.number
            if isinstance(request, RollCall) and number == 0 and playing.states[client].applied == 0 and asked:
                reply = unpack(answer())
                return pack(msgspec.structs.replace(reply, root=5, joined="00" * 16))  # as if its own were later ones
            asked.append(type(request))
            if isinstance(request, Begin):
                return None if len(asked) == 2 else "it has lost its disk"
        if isinstance(request, SnapshotRequest):
            return "no model to give"
        return answer()

    done = Served(playing, late)
    done.desk.parameters = replace(done.desk.parameters, quorum=4)
    done.run()
    assert [len(line.clients) for line in done.lines] == [4, 4, 4]
    assert playing.states["client-4"].phase != "ended"
