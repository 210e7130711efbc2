"""A run goes on without clients that fail or are away, and they catch up."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from five_clients import FEDAVG, LENGTH, STATIC, UPDATES, each_method, hand, lost, of_all
from hand import Served, honest, mean, served
from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import Begin, Elected, Finish, RollCall, SnapshotRequest, pack, unpack
from paraaegis.protocol.state import ServerState, decode_state, encode_state


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


def test_a_lost_goodbye_does_not_spoil_the_run():
    done = served(hand(FEDAVG), lost("client-4", Finish, number=3))
    assert [len(line.clients) for line in done.lines] == [5, 5, 5]
    assert done.lines[-1].metrics["accuracy"] == done.model()[0]


def absent(client, until=lambda _: False):
    """A transport that does not reach one client, until it does."""
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
    assert done.round_server.state.late == ["client-4"]
    rounds, lines = done.hand.learners["client-0"].trained, len(done.lines)
    again = Served(done.hand, honest, done.round_server.state).run(over=True)
    np.testing.assert_array_equal(again.model("client-4"), again.model())
    assert not done.round_server.state.late
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
    done.round_server.parameters = replace(done.round_server.parameters, quorum=4)
    done.run()
    assert [len(line.clients) for line in done.lines] == [4, 4, 4]
    assert playing.states["client-4"].phase != "ended"
