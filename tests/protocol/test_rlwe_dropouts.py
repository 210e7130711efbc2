"""A round under RLWE loses clients in every phase: what still opens is counted, the rest goes back to its clients."""

import numpy as np
import pytest

from five_clients import UPDATES, hand, lost, of_all
from five_masked import FEEDBACK, STATIC, WHOLE, away, conserved, each_method
from hand import Served, honest, mean, served
from paraaegis.protocol.messages import Begin, Elected, Finish, Survivors

ROUND = {"before the ballot": Begin, "before the upload": Elected, "before its sum of shares": Survivors}
PHASES = [(ways, phase) for ways in (STATIC, FEEDBACK) for phase in ROUND]
PHASES += [(WHOLE, phase) for phase in ROUND if phase != "before the upload"]  # which has no vote
each_phase = pytest.mark.parametrize(("settings", "phase"), PHASES)


@each_phase
@pytest.mark.parametrize("heard", [True, False])
def test_a_client_lost_in_any_phase_leaves_a_round_of_the_others(settings, phase, heard):
    playing = hand(*settings)
    done = served(playing, away("client-4", kind=ROUND[phase], number=2, heard=heard))
    counted = 5 if phase == "before its sum of shares" else 4
    assert [len(line.clients) for line in done.lines] == [5, counted, 5]
    assert list(done.lines[1].dropped) == ["client-4"]
    for client in playing.silos:
        np.testing.assert_array_equal(done.model(client), done.model())
    if settings is not FEEDBACK:
        second = of_all(2) if counted == 5 else mean(UPDATES[:4, 1])
        np.testing.assert_array_equal(done.model(), of_all(1) + second + of_all(3))


@each_phase
@pytest.mark.parametrize("heard", [True, False])
def test_a_round_that_falls_below_the_quorum_in_any_phase_is_void_and_the_run_continues(settings, phase, heard):
    playing = hand(*settings)
    done = served(playing, away("client-3", "client-4", kind=ROUND[phase], number=2, heard=heard))
    assert [len(line.clients) for line in done.lines] == [5, 0, 5]
    assert {"client-3", "client-4"} <= set(done.lines[1].dropped)
    assert not done.round_server.state.ended
    trained = heard or phase != "before the ballot"
    if settings is FEEDBACK and trained:
        np.testing.assert_allclose(done.model(), conserved(playing), atol=1e-6)
    elif settings is not FEEDBACK:
        np.testing.assert_array_equal(done.model(), of_all(1) + of_all(3))


@pytest.mark.parametrize("phase", ROUND)
def test_only_a_counted_upload_leaves_the_residual_without_what_was_sent(phase):
    """A client that is lost before its upload gets it back; one that is lost after it was counted does not."""
    playing = hand(*FEEDBACK, rounds=1)
    done = served(playing, away("client-4", kind=ROUND[phase], heard=True))
    trained, residual = UPDATES[4, 0], playing.states["client-4"].residual
    if phase == "before its sum of shares":
        assert "client-4" in done.lines[0].clients
        sent = residual == 0
        assert 0 < sent.sum() < trained.size
        np.testing.assert_array_equal(residual, np.where(sent, 0, trained))
        np.testing.assert_allclose(done.model(), conserved(playing), atol=1e-6)
    else:
        assert "client-4" not in done.lines[0].clients
        np.testing.assert_array_equal(residual, trained)


def test_a_void_round_gives_every_update_back_even_where_shares_were_given_out():
    playing = hand(*FEEDBACK, rounds=1)
    done = served(playing, away("client-3", "client-4", kind=Survivors))
    assert done.lines[0].clients == []
    assert "4 sums of shares are needed" in done.lines[0].dropped["(shares)"]
    for index, state in enumerate(playing.states.values()):
        np.testing.assert_array_equal(state.residual, UPDATES[index, 0])
        np.testing.assert_array_equal(state.weights, 0)
        assert state.share is None


# Late clients


@each_method
def test_a_late_client_catches_up_from_history(settings):
    playing = hand(*settings)
    done = served(playing, lambda n, r, a: None if n == "client-4" and r.round_id.number in (1, 2) else a())
    assert [len(line.clients) for line in done.lines] == [4, 4, 5]
    for client in playing.silos:
        np.testing.assert_array_equal(done.model(client), done.model())


@each_method
def test_a_late_client_gets_a_peers_model(settings):
    playing = hand(*settings, "federation.history=1", rounds=5)
    rescued = []

    def meddle(name, request, answer):
        if name != "client-4" or not isinstance(request, Begin):
            return answer()
        rescued.append(request.rescue)
        return "its disk is full" if request.round_id.number < 4 else answer()

    done = served(playing, meddle)
    assert [len(line.clients) for line in done.lines] == [4, 4, 4, 5, 5]
    assert rescued[3].applied == 2  # and round 3 from history
    for client in playing.silos:
        np.testing.assert_array_equal(done.model(client), done.model())


@each_method
def test_a_client_that_was_away_at_the_end_gets_the_last_model_afterwards(settings):
    done = served(hand(*settings), lost("client-4", Finish, number=3))
    absent = Served(hand(*settings), lambda n, r, a: None if n == "client-4" and isinstance(r, Finish) else a())
    absent.run()
    assert absent.round_server.state.late == ["client-4"]
    again = Served(absent.hand, honest, absent.round_server.state).run(over=True)
    np.testing.assert_array_equal(again.model("client-4"), done.model())
