"""Two clients of any method, with what a client must refuse, and how."""

from dataclasses import replace

import numpy as np
import pytest

from hand import Hand
from paraaegis.errors import ProtocolError
from paraaegis.protocol.learner import CheckedLearner
from paraaegis.protocol.messages import Ended, RollCall, SnapshotRequest

ME, PEER = "client-0", "client-1"
LENGTH = 40
UPDATES = np.round(np.random.default_rng(0).normal(size=(2, 3, LENGTH)) * 8) / 8  # exact on the grid when halved
STATIC = ("protect.method=paraaegis-static", "protect.ratio=0.25")
FEEDBACK = ("protect.method=paraaegis-feedback", "protect.ratio=0.25")
FEDAVG = ("protect.method=fedavg",)
CKKS = ("protect.method=ckks-fedavg",)


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
