"""A fraction of the clients each round; the others catch up."""

from dataclasses import replace

import numpy as np
import pytest

from hand import Hand
from paraaegis.engines.local import LocalTransport
from paraaegis.errors import ProtocolError
from paraaegis.methods import METHODS
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.single_flight import SingleFlight
from paraaegis.protocol.state import ServerState
from toy import configure, federation_of, learners_of, play

UPDATES = np.random.default_rng(3).normal(size=(6, 8, 120)).astype(np.float32)
HALF = ("federation.fraction=0.5", "federation.history=20")
NOISY = ("privacy.epsilon=1.0", "privacy.clip=1.0")


@pytest.mark.parametrize("method", METHODS)
def test_clients_that_were_left_out_end_with_the_same_model(method):
    played = play(UPDATES, f"protect.method={method}", "protect.lwe=matrix", *HALF, *NOISY, rounds=8)
    models = [state.weights for state in played.engine.states.values()]
    for model in models[1:]:
        np.testing.assert_array_equal(model, models[0])
    assert {len(line.clients) for line in played.lines} == {3}
    assert len({tuple(line.clients) for line in played.lines}) > 1


def test_every_round_has_its_metrics_also_when_the_evaluator_is_not_sampled():
    played = play(UPDATES, "protect.method=fedavg", *HALF, rounds=8)
    assert any("client-0" not in line.clients for line in played.lines)
    assert all("accuracy" in line.metrics for line in played.lines)


def test_the_mean_is_taken_over_those_who_took_part():
    updates = np.ones((4, 1, 50), dtype=np.float32)
    played = play(updates, "protect.method=fedavg", "federation.fraction=0.5", rounds=1)
    np.testing.assert_array_equal(played.model, np.ones(50, dtype=np.float32))


def test_a_client_refuses_a_round_whose_past_it_was_not_given():
    playing = Hand(UPDATES, *HALF, rounds=8)
    with pytest.raises(ProtocolError, match=r"needs the aggregates of rounds 1 to 3, got \[\]"):
        playing.send(playing.parameters.members(4)[0], playing.begin(4))


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_was_never_drawn_ends_with_the_same_model(method):
    """Nothing may be shared in the process that a silo on its own would not have."""
    settings = (f"protect.method={method}", "protect.lwe=matrix", *HALF, *NOISY)
    learners = learners_of(UPDATES)
    config = configure("federation.clients=6", "federation.rounds=2", *settings)
    federation = federation_of(config, learners)
    drawn = {client for number in (1, 2) for client in federation.parameters.members(number)}
    assert set(federation.clients) - drawn
    alone = {
        name: replace(silo, cache=SingleFlight(), deltas=SingleFlight()) for name, silo in federation.clients.items()
    }
    engine = LocalTransport(alone)
    engine.run(RoundServer(federation.parameters, federation.server, ServerState()), lambda _: None, lambda _: None)
    for state in engine.states.values():
        np.testing.assert_array_equal(state.weights, engine.states["client-0"].weights)
