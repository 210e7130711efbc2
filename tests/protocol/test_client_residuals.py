"""What a client withheld is kept until it is in a sum."""

import numpy as np

from hand import mean
from paraaegis.protocol.messages import Aggregate, Ballot
from paraaegis.protocol.voting import unpack_positions
from two_clients import FEEDBACK, ME, PEER, UPDATES, hand


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
