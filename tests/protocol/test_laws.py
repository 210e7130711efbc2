"""The extremes are laws: with nothing switched on, every method is FedAvg; at its ends ParaAegis is another method."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from paraaegis.fixed_point import STEP
from paraaegis.methods import METHODS
from toy import play

quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
values = st.floats(-100, 100, width=32)


@st.composite
def updates(draw, max_length=40):
    """Clients × rounds × values."""
    clients, rounds = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    length = draw(st.integers(1, max_length))
    return draw(arrays(np.float32, (clients, rounds, length), elements=values))


def mean_on_the_grid(updates, samples=None):
    """FedAvg, computed by hand: weighted steps, summed as integers."""
    weights = np.asarray(samples or [10] * len(updates), dtype=np.float64)
    model = np.zeros(updates.shape[2], dtype=np.float32)
    for number in range(updates.shape[1]):
        steps = sum(
            np.rint(((model + updates[i, number]) - model).astype(np.float64) * (weights[i] / weights.sum()) / STEP)
            for i in range(len(updates))
        )
        model = model + (steps * STEP).astype(np.float32)
    return model


def method(name, *more):
    return (f"protect.method={name}", *more)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("paraaegis-feedback", "lwe-secagg")])
@quick
@given(updates=updates(), ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_a_round_without_noise_equals_fedavg(name, updates, ratio):
    played = play(updates, *method(name, f"protect.ratio={ratio}"), rounds=updates.shape[1])
    np.testing.assert_array_equal(played.model, mean_on_the_grid(updates))


@quick
@given(updates=updates(), data=st.data())
def test_clients_weigh_by_their_samples(updates, data):
    samples = data.draw(st.lists(st.integers(1, 1000), min_size=len(updates), max_size=len(updates)))
    played = play(updates, *method("paraaegis-static"), rounds=updates.shape[1], samples=samples)
    np.testing.assert_array_equal(played.model, mean_on_the_grid(updates, samples))


@quick
@given(updates=updates())
def test_uniform_weights_ignore_samples(updates):
    samples = list(range(1, len(updates) + 1))
    settings = method("fedavg", "federation.weights=uniform")
    played = play(updates, *settings, rounds=updates.shape[1], samples=samples)
    np.testing.assert_array_equal(played.model, mean_on_the_grid(updates))


@quick
@given(updates=updates(), epsilon=st.sampled_from([0.5, 8.0]))
def test_ratio_zero_equals_dp_fedavg_with_the_same_noise(updates, epsilon):
    noisy = (f"privacy.epsilon={epsilon}", "privacy.clip=1.0")
    ours = play(updates, *method("paraaegis-static", "protect.ratio=0.0", *noisy), rounds=updates.shape[1])
    theirs = play(updates, *method("dp-fedavg", *noisy), rounds=updates.shape[1])
    np.testing.assert_array_equal(ours.model, theirs.model)


@quick
@given(updates=updates())
def test_ratio_one_equals_ckks_fedavg(updates):
    noisy = ("privacy.epsilon=1.0", "privacy.clip=1.0")
    ours = play(updates, *method("paraaegis-static", "protect.ratio=1.0", *noisy), rounds=updates.shape[1])
    theirs = play(updates, *method("ckks-fedavg", *noisy), rounds=updates.shape[1])
    np.testing.assert_array_equal(ours.model, theirs.model)


@quick
@given(updates=updates())
def test_feedback_with_ratio_one_equals_fedavg(updates):
    played = play(updates, *method("paraaegis-feedback", "protect.ratio=1.0"), rounds=updates.shape[1])
    np.testing.assert_array_equal(played.model, mean_on_the_grid(updates))


@quick
@given(updates=updates(), ratio=st.sampled_from([0.1, 0.3, 0.5]))
def test_feedback_loses_nothing_of_a_clients_updates(updates, ratio):
    """What a single client sent and what it withholds add up to what it trained, value by value."""
    assume(round(ratio * updates.shape[-1]) > 0)
    one = np.round(updates[:1] * 4) / 4  # exact in float32 and on the grid, so that sums have no rounding of their own
    played = play(one, *method("paraaegis-feedback", f"protect.ratio={ratio}"), rounds=updates.shape[1])
    np.testing.assert_array_equal(played.model + played.residual("client-0"), one[0].sum(axis=0))


@quick
@given(updates=updates())
def test_the_result_does_not_depend_on_scheduling(updates):
    settings = method("paraaegis-static", "protect.ratio=0.3", "privacy.epsilon=1.0", "privacy.clip=1.0")
    one = play(updates, *settings, rounds=updates.shape[1], workers=1)
    many = play(updates, *settings, rounds=updates.shape[1], workers=8)
    np.testing.assert_array_equal(one.model, many.model)
    assert [line.metrics for line in one.lines] == [line.metrics for line in many.lines]
