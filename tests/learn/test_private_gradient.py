"""The laws of a step of DP-SGD: what one record changes, who is drawn, and the noise."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare, kstest
from torch import nn

from paraaegis.crypto.streams import system
from paraaegis.learn.private import poisson
from paraaegis.types import RecordPrivacy
from private import attached, gradient_of, images, net, points, step_of

ROUNDING = 1e-5
GRADIENTS = {name: gradient_of(name, 1.0) for name in ("mlp", "cnn-gn")}
kinds = st.sampled_from(sorted(GRADIENTS))


def with_clip(kind, clip):
    gradient = GRADIENTS[kind]
    gradient.privacy = RecordPrivacy(1.0, 1, clip, 0.0)
    return gradient


# What one record changes


@given(
    kind=kinds,
    seed=st.integers(0, 1000),
    place=st.integers(0, 5),
    clip=st.sampled_from([1e-10, 1e-6, 0.1, 1.0, 30.0]),
    scale=st.sampled_from([0.0, 1e-20, 1.0, 1e5, 1e15, 1e30, 3e38, math.nan, math.inf, -math.inf]),
)
@settings(deadline=None, max_examples=80)
def test_one_record_changes_the_sum_of_a_step_by_at_most_the_clip(kind, seed, place, clip, scale):
    gradient, (inputs, targets) = with_clip(kind, clip), images(6, seed)
    inputs[place] *= scale
    others = torch.arange(6) != place
    change = step_of(gradient, (inputs, targets)) - step_of(gradient, (inputs[others], targets[others]))
    assert change.norm() <= clip * (1 + ROUNDING)


@given(kind=kinds, seed=st.integers(0, 1000), clip=st.sampled_from([1e-6, 0.01, 1.0, 1e9, math.inf]))
@settings(deadline=None, max_examples=30)
def test_the_gradient_of_one_sample_is_scaled_down_to_the_clip(kind, seed, clip):
    gradient, (inputs, targets) = with_clip(kind, clip), images(1, seed)
    found = step_of(gradient, (inputs, targets))
    loss = F.cross_entropy(gradient._model(inputs), targets)
    plain = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(gradient._parameters.values()))])
    wanted = plain.double() * min(1.0, clip * (1 - 2**-14) / plain.double().norm())
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("kind", sorted(GRADIENTS))
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_gradient_without_a_norm_counts_as_zero_and_spoils_no_other(kind, broken):
    gradient, (inputs, targets) = with_clip(kind, 1.0), images(6)
    inputs[2, 0, 3, 3] = broken
    others = torch.arange(6) != 2
    alone = step_of(gradient, (inputs[others], targets[others]))
    torch.testing.assert_close(step_of(gradient, (inputs, targets)), alone, rtol=1e-4, atol=1e-6)
    assert alone.norm() > 0.1
    assert torch.isfinite(gradient.losses)


def test_a_gradient_too_small_for_its_norm_in_float32_stays_below_the_smallest_clip():
    inputs, targets = torch.full((1, 3), 1e-24), torch.tensor([0])
    model = nn.Linear(3, 2, bias=False)
    assert step_of(gradient_of(model, 1e-10), (inputs, targets)).norm() <= 1e-10


@given(kind=kinds, cuts=st.lists(st.integers(1, 9), max_size=4, unique=True))
@settings(deadline=None, max_examples=20)
def test_in_how_many_pieces_a_step_is_computed_changes_nothing(kind, cuts):
    gradient, (inputs, targets) = with_clip(kind, 0.5), images(10)
    whole = step_of(gradient, (inputs, targets))
    pieces = list(zip(inputs.tensor_split(sorted(cuts)), targets.tensor_split(sorted(cuts)), strict=True))
    torch.testing.assert_close(step_of(gradient, *pieces), whole, rtol=1e-4, atol=1e-6)


def test_padding_counts_for_nothing():
    gradient, (inputs, targets) = with_clip("mlp", 1.0), images(6)
    wanted = step_of(gradient, (inputs[:4], targets[:4]))
    loss = gradient.losses.clone()
    gradient.begin()
    inputs[5] = math.nan
    gradient.add(inputs, targets, torch.tensor([1.0, 1, 1, 1, 0, 0]))
    gradient.finish(None)
    found = torch.cat([one.grad.flatten() for one in gradient._parameters.values()]).double()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient.losses, loss)


@pytest.mark.parametrize(("rate", "samples"), [(0.5, 8), (0.01, 3), (1.0, 6)])
def test_a_step_is_divided_by_the_expected_number_of_samples_and_not_by_how_many_were_drawn(rate, samples):
    inputs, targets = images(6)
    total = step_of(gradient_of("mlp", 1.0), (inputs, targets))
    torch.testing.assert_close(step_of(gradient_of("mlp", 1.0, samples, rate), (inputs, targets)),
                               total / (rate * samples), rtol=1e-5, atol=1e-8)  # fmt: skip


def test_a_weight_used_twice_is_clipped_as_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).tanh())

    model, (inputs, targets) = Tied(), points(1)
    gradient = gradient_of(model, math.inf)
    (plain,) = torch.autograd.grad(F.cross_entropy(model(inputs), targets), [model.first.weight])
    torch.testing.assert_close(step_of(gradient, (inputs, targets)), plain.flatten().double())
    assert step_of(gradient_of(model, 1e-3), (inputs, targets)).norm() == pytest.approx(1e-3, rel=1e-4)


# Who is drawn


@pytest.mark.parametrize("rng", [np.random.default_rng(5), system()], ids=["seeded", "system"])
def test_every_set_of_records_is_drawn_as_often_as_independent_draws_would(rng):
    rate, count, steps = 0.3, 3, 40_000
    drawn = [sum(1 << row for row in rows) for rows in poisson(count, RecordPrivacy(rate, steps, 1.0, 1.0), rng)]
    sizes = np.array([bin(one).count("1") for one in range(2**count)])
    expected = steps * rate**sizes * (1 - rate) ** (count - sizes)
    assert chisquare(np.bincount(drawn, minlength=2**count), expected).pvalue > 1e-6  # also the empty and the full set


@given(rate=st.floats(0.01, 1.0), count=st.integers(1, 400), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=30)
def test_each_record_is_drawn_at_the_rate_and_never_twice_in_a_step(rate, count, seed):
    steps = list(poisson(count, RecordPrivacy(rate, 300, 1.0, 1.0), np.random.default_rng(seed)))
    assert len(steps) == 300
    assert all(len(set(rows.tolist())) == len(rows) and set(rows.tolist()) <= set(range(count)) for rows in steps)
    total = sum(map(len, steps))
    assert min(binom.cdf(total, 300 * count, rate), binom.sf(total - 1, 300 * count, rate)) > 1e-9


def test_at_rate_one_every_step_has_every_record():
    steps = poisson(7, RecordPrivacy(1.0, 50, 1.0, 1.0), np.random.default_rng(0))
    assert all(rows.tolist() == list(range(7)) for rows in steps)


# The noise


def wide(multiplier, clip=0.5, rate=1e-9, steps=4, samples=5):
    """A training of a wide layer, nearly always on no records; with a rate of learning of 1 its update is its noise."""
    privacy = RecordPrivacy(rate, steps, clip, multiplier)
    options = {"data": points(samples), "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1.0)}
    torch.manual_seed(0)
    return attached(nn.Linear(3, 5000), privacy, **options)


def noise_of(learner, number):
    first = learner.initial()
    return learner.train(np.zeros_like(first), number)[0].astype(float)


def test_steps_without_records_add_noise_of_the_multiplier_times_the_clip_over_the_expected_samples():
    std = 2.0 * 0.5 / (1e-9 * 5) * math.sqrt(4)
    assert kstest(noise_of(wide(2.0), 1) / std, "norm").pvalue > 1e-4


def test_noise_is_fresh_in_every_step_and_round():
    one = wide(2.0, steps=1)
    rounds = np.stack([noise_of(one, number) for number in (1, 2, 3)])
    assert np.abs(np.corrcoef(rounds) - np.eye(3)).max() < 0.05
    several = noise_of(wide(2.0, steps=16), 1)
    assert several.std() == pytest.approx(4 * rounds[0].std(), rel=0.05)  # equal noise would add up to 16


@given(st.floats(1e-3, 1e4), st.sampled_from([1e-10, 1e-3, 1.0, 1e6]))
@settings(deadline=None, max_examples=20)
def test_noise_scales_with_multiplier_and_clip_alone(multiplier, clip):
    first, second = noise_of(wide(multiplier, clip), 1), noise_of(wide(1.0, 1.0), 1)
    wanted = second * multiplier * clip
    np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-5 * wanted.std())


@example(9.9)
@given(st.floats(0.0, 10.0))
@settings(deadline=None, max_examples=10)
def test_noise_does_not_depend_on_the_data(size):
    privacy = RecordPrivacy(1.0, 1, 1.0, 3.0)
    inputs, targets = points(12)
    noised, bare = (attached(net(), one, (inputs * size, targets), lr=1.0) for one in
                    (privacy, RecordPrivacy(1.0, 1, 1.0, 0.0)))  # fmt: skip
    first = noised.initial()
    noise = noised.train(first, 1)[0] - bare.train(first, 1)[0]
    other = attached(net(), privacy, (inputs * 0, targets), lr=1.0).train(first, 1)[0]
    still = attached(net(), RecordPrivacy(1.0, 1, 1.0, 0.0), (inputs * 0, targets), lr=1.0).train(first, 1)[0]
    np.testing.assert_allclose(noise, other - still, atol=1e-5)
