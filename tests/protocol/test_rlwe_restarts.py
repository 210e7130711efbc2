"""A server that is stopped within a round under RLWE: what was asked for is not asked for again."""

import numpy as np
import pytest

from five_clients import hand, of_all
from five_masked import FEEDBACK, WHOLE, away, conserved, each_method
from hand import Served, honest, served
from paraaegis.protocol.messages import Begin, Survivors
from paraaegis.protocol.state import decode_state, encode_state


class StoppedError(Exception):
    pass


def stopped_at(settings, number):
    """A run whose server stops once it has decided to ask for shares in this round, and what it saved then."""
    playing, saved = hand(*settings), []
    first = Served(playing, honest)

    def stop(state):
        saved.append((encode_state(state), list(state.history)))
        if state.opening[0] == number > state.number:
            raise StoppedError

    with pytest.raises(StoppedError):
        first.run(stop)
    state = decode_state(saved[-1][0])
    state.history = saved[-1][1]
    return playing, state, first.lines


@each_method
def test_a_round_whose_shares_were_requested_is_void_after_a_restart_and_not_masked_again(settings):
    playing, state, lines = stopped_at(settings, 2)
    state.attempt += 1
    trained = []

    def meddle(name, request, answer):
        if isinstance(request, Begin) and request.train:
            trained.append((name, request.round_id.number))
        return answer()

    done = Served(playing, meddle, state).run()
    assert [len(line.clients) for line in lines + done.lines] == [5, 0, 5]
    assert "no client sends them twice" in done.lines[0].dropped["(shares)"]
    assert {number for _, number in trained} == {3}
    for client in playing.silos:
        np.testing.assert_array_equal(done.model(client), done.model())
    if settings is FEEDBACK:
        np.testing.assert_allclose(done.model(), conserved(playing), atol=1e-6)
    else:
        np.testing.assert_array_equal(done.model(), of_all(1) + of_all(3))


@each_method
def test_a_server_continues_from_any_state_that_it_saved(settings):
    playing, saved = hand(*settings), []
    Served(playing, honest).run(lambda s: saved.append((encode_state(s), list(s.history), dict(playing.states))))
    for data, history, states in saved:
        state = decode_state(data)
        state.history, state.attempt = history, state.attempt + 1
        again = hand(*settings)
        again.states = dict(states)
        again.learners.update(playing.learners)
        done = Served(again, honest, state).run(over=state.number == 3)
        for client in again.silos:
            np.testing.assert_array_equal(done.model(client), done.model())
        assert not state.ended


def test_a_lost_request_does_not_lose_a_sum():
    """Frames that did not leave the server are not counted; the sum opens with the rows of the others."""
    done = served(hand(*WHOLE, rounds=1), away("client-0", kind=Survivors))
    assert len(done.lines[0].clients) == 5
    assert done.lines[0].bytes_down["shares"] > 0
