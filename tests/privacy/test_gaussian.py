"""Clipping bounds the norm; the noise has the variance that was asked for."""

import math

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from paraaegis.errors import ConfigError, CryptoError
from paraaegis.fixed_point import CHUNK, slices
from paraaegis.parallel import parallel_map
from paraaegis.privacy.budget import noise
from paraaegis.privacy.gaussian import Gaussian, Noise, norm
from toy import configure, federation_of, learners_of, play

COUNT = 200_000


def rng(seed=0):
    return np.random.default_rng(seed)


def perturbed(gaussian, values, number, generator):
    """All chunks in one."""
    return np.concatenate(parallel_map(gaussian.perturb(values, number, Noise(generator)), slices(values.size)))


def assert_variance(values, sigma):
    """A two-sided chi-square test at one in a million."""
    low, high = chi2.ppf([5e-7, 1 - 5e-7], values.size)
    assert low < np.square(values).sum() / sigma**2 < high


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [1e-4, 0.07, 26.38])
def test_noise_has_the_variance_that_was_asked_for(sigma, seed):
    values = np.zeros(COUNT, dtype=np.float32)
    noised = perturbed(Gaussian(1.0, (sigma,)), values, 1, rng(seed))
    assert_variance(noised, sigma)
    assert kstest(noised / sigma, "norm").pvalue > 1e-6


def test_the_variance_test_can_fail():
    noised = perturbed(Gaussian(1.0, (1.0,)), np.zeros(COUNT, dtype=np.float32), 1, rng())
    with pytest.raises(AssertionError):
        assert_variance(noised, 1.02)


def test_noise_is_added_to_the_clipped_values():
    values = np.full(COUNT, 3.0, dtype=np.float32)
    gaussian = Gaussian(2.0, (0.5,))
    assert_variance(perturbed(gaussian, values, 1, rng()) - values * (2.0 / norm(values)), 0.5)


def test_each_round_has_its_own_deviation():
    gaussian = Gaussian(1.0, (0.1, 10.0))
    values = np.zeros(COUNT, dtype=np.float32)
    assert_variance(perturbed(gaussian, values, 1, rng()), 0.1)
    assert_variance(perturbed(gaussian, values, 2, rng()), 10.0)


@pytest.mark.parametrize(("length", "clip"), [(1, 0.5), (100, 1.0), (10_000, 1e-3)])
def test_clipping_brings_the_norm_down_to_the_threshold(length, clip):
    values = rng().normal(scale=100, size=length).astype(np.float32)
    clipped = perturbed(Gaussian(clip, (0.0,)), values, 1, rng())
    assert norm(clipped) == pytest.approx(clip, rel=1e-12)
    np.testing.assert_allclose(clipped / clip, values / norm(values), rtol=1e-6)


@pytest.mark.parametrize("clip", [1.0, 5.0, math.inf])
def test_what_is_within_the_threshold_is_left_as_it_is(clip):
    values = np.array([0.6, -0.8], dtype=np.float32) * np.float32(0.999)
    np.testing.assert_array_equal(perturbed(Gaussian(clip, (0.0,)), values, 1, rng()), values.astype(np.float64))


def test_the_norm_does_not_overflow_float32():
    assert norm(np.full(4, 1e30, dtype=np.float32)) == pytest.approx(2e30)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_threshold_that_is_not_positive_is_refused(clip):
    with pytest.raises(ConfigError, match=f"must be positive, got {clip}"):
        Gaussian(clip, (1.0,))


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf])
def test_a_deviation_that_is_no_deviation_is_refused(sigma):
    with pytest.raises(ConfigError, match="finite standard deviation"):
        Gaussian(1.0, (1.0, sigma))


def test_the_configuration_asks_for_the_papers_deviation():
    """θ = 1, 947 records, (1, 1e-5), T = 50."""
    paper = ["privacy.epsilon=1.0", "privacy.clip=1.0", "federation.rounds=50", "federation.min_samples=947"]
    by_formula = noise(configure(*paper, "privacy.calibration=paper"))
    assert by_formula.sigmas == pytest.approx([0.0717] * 50, abs=5e-5)
    tight = noise(configure(*paper))
    assert tight.sigmas == pytest.approx([26.3795] * 50, abs=5e-5)
    assert tight.clip == 1.0


def test_the_deviation_is_proportional_to_the_threshold():
    half, whole = (noise(configure("privacy.epsilon=1.0", f"privacy.clip={clip}", "federation.min_samples=10"))
                   for clip in (0.5, 1.0))  # fmt: skip
    assert whole.sigmas[0] == pytest.approx(2 * half.sigmas[0])


def test_an_infinite_budget_switches_noise_off():
    assert noise(configure()) == Gaussian(math.inf, (0.0,) * 15)


def test_the_papers_calibration_needs_the_smallest_data_size():
    with pytest.raises(ConfigError, match=r"federation\.min_samples"):
        noise(configure("privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=paper"))


@pytest.mark.parametrize(("method", "outside"), [("dp-fedavg", 1.0), ("paraaegis-static", 0.9)])
def test_the_noise_in_the_model_has_the_variance_that_was_asked_for(method, outside):
    """Clients that learnt nothing send noise alone, each weighed by one half."""
    played = play(
        np.zeros((2, 50_000)),
        f"protect.method={method}",
        "privacy.epsilon=1.0",
        "privacy.clip=1.0",
        "protect.lwe=matrix",
    )
    (sigma,) = noise(configure("privacy.epsilon=1.0", "privacy.clip=1.0", "federation.rounds=1",
                               "federation.min_samples=10")).sigmas  # fmt: skip
    noised = played.model[played.model != 0]
    assert noised.size == pytest.approx(outside * 50_000, rel=1e-3)
    assert_variance(noised.astype(np.float64), sigma / math.sqrt(2))


def test_seeded_noise_can_be_replayed_and_secret_noise_cannot():
    def model(kind):
        settings = ("protect.method=dp-fedavg", "privacy.epsilon=1.0", "privacy.clip=1.0", f"privacy.noise={kind}")
        return play(np.zeros((2, 50)), *settings).model.tolist()

    assert model("seeded") == model("seeded")
    assert model("secret") != model("secret")


def test_chunks_share_no_noise_and_do_not_depend_on_who_asks_first():
    values = np.zeros(3 * CHUNK, dtype=np.float32)
    places = list(slices(values.size))
    there, back = (Gaussian(1.0, (1.0,)).perturb(values, 1, Noise(rng())) for _ in range(2))
    forwards = [there(index, places[index]) for index in (0, 1, 2)]
    backwards = [back(index, places[index]) for index in (2, 1, 0)][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    assert np.abs(np.corrcoef(forwards) - np.eye(3)).max() < 0.02


def test_one_generator_never_gives_the_same_noise_twice():
    values, generator = np.zeros(1000, dtype=np.float32), rng()
    first, second = (perturbed(Gaussian(1.0, (1.0,)), values, 1, generator) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2


def test_noise_drawn_ahead_is_the_noise_drawn_when_it_is_wanted():
    places = list(enumerate(slices(3 * CHUNK - 5)))
    ahead, later = Noise(rng()), Noise(rng())
    ahead.draw(3 * CHUNK - 5)
    for index in (2, 0):
        np.testing.assert_array_equal(ahead(*places[index]), later(*places[index]))


def test_noise_is_for_one_vector():
    noised = Gaussian(1.0, (1.0,)).perturb(np.zeros(10, dtype=np.float32), 1, Noise(rng()))
    parallel_map(noised, slices(10))
    with pytest.raises(CryptoError, match="noise is for one vector only"):
        parallel_map(noised, slices(10))


@pytest.mark.parametrize("method", ["paraaegis-static", "paraaegis-static inside", "dp-fedavg", "serial", "lwe-secagg"])
def test_a_run_is_the_same_whether_its_noise_was_made_ahead(monkeypatch, method):
    method, _, inside = method.partition(" ")
    settings = (f"protect.method={method}", "privacy.epsilon=1.0", "privacy.clip=1.0", "protect.lwe=matrix")
    settings = (*settings, f"privacy.inside_clip={len(inside)}")
    federation = federation_of(configure("federation.clients=3", *settings), learners_of(np.ones((3, 5))))
    half = type(federation.clients["client-0"].half)
    made, make = [], half.ahead
    monkeypatch.setattr(half, "ahead", lambda self, turn, length: (made.append(length), make(self, turn, length))[1])

    def model(cores):
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        return play(np.ones((3, 500)), *settings, rounds=2).model.tolist()

    alone, at_once = model(2), list(made)
    assert model(3) == alone
    assert made == at_once + [500] * 6
