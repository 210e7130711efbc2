"""A client checks how many samples the others have, and that they proved it."""

import msgspec
import numpy as np
import pytest

from hand import mean
from paraaegis.errors import ProtocolError
from paraaegis.protocol.binding import MOST_SAMPLES, prove_count
from paraaegis.protocol.client import step
from two_clients import FEDAVG, LENGTH, ME, PEER, STATIC, UPDATES, ended, hand, refused, with_learner


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
    if playing.federation.server.votes:
        elected = playing.elect(1, list(replies.values()))
        positions, replies = elected.positions, {client: playing.send(client, elected) for client in playing.silos}
    playing.send(ME, playing.begin(2, playing.sum(1, replies, positions)))
    assert playing.states[ME].counts.tolist() == [1, 1]
    np.testing.assert_array_equal(playing.states[ME].weights, mean(UPDATES[:, 0]))


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
