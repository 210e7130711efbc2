"""Members are drawn for each round, and the model is the same for all."""

import numpy as np
import pytest

from five_clients import FEDAVG, UPDATES, hand
from paraaegis.runs.check import resolve
from toy import configure, play


@pytest.mark.parametrize("method", ["fedavg", "paraaegis-feedback"])
def test_clients_that_were_seldom_sampled_end_with_the_same_model(method):
    settings = (f"protect.method={method}", "federation.fraction=0.4")
    played = play(UPDATES, *settings, rounds=9)
    assert all(len(line.clients) == 2 for line in played.lines)
    assert {client for line in played.lines for client in line.clients} == set(played.engine.states)
    for state in played.engine.states.values():
        np.testing.assert_array_equal(state.weights, played.model)


def test_every_round_has_metrics_though_the_evaluator_is_not_sampled():
    played = play(UPDATES, FEDAVG, "federation.fraction=0.4", rounds=6)
    assert not all("client-0" in line.clients for line in played.lines)
    assert all("accuracy" in line.metrics for line in played.lines)


def test_members_are_drawn_anew_each_round_and_alike_for_all():
    parameters = hand(FEDAVG, "federation.fraction=0.4", "federation.history=50", quorum=2, rounds=50).parameters
    drawn = [parameters.members(number) for number in range(1, 51)]
    assert all(len(set(members)) == 2 for members in drawn)
    assert drawn == [parameters.members(number) for number in range(1, 51)]
    assert len(set(drawn)) > 5


@pytest.mark.parametrize("sampled", range(1, 60))
def test_a_default_quorum_is_four_fifths_rounded_up(sampled):
    config = configure(f"federation.clients={sampled}")
    assert resolve(config, [1]).federation.quorum == -(-4 * sampled // 5)
