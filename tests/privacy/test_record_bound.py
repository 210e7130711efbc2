"""What guesses about records prove: never more than an ideal mechanism leaks, and nearly all of it."""

import numpy as np
import pytest
from scipy.special import ndtr

from paraaegis.privacy.audit import mu_bound
from paraaegis.privacy.record_audit import Curve, Guess, multiplier_bound
from paraaegis.privacy.records import Step


def guess_of(there, absent):
    return Guess.of(np.asarray(there), np.asarray(absent))


def ideal(rng, rate, noise, steps, people):
    """Scores of the best observer of ideal steps, of people who are in and of people who are out."""
    for drawn in (rng.random((steps, people)) < rate, 0.0):
        seen = drawn + noise * rng.standard_normal((steps, people))
        yield np.log1p(rate * np.expm1((seen - 0.5) / noise**2)).sum(axis=0)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(1.0, 1.4, 2), (0.1, 0.9, 20)])
def test_an_ideal_mechanism_is_not_refuted_and_one_with_a_quarter_less_noise_is(rate, noise, steps):
    rng, curve = np.random.default_rng(7), Curve(Step(rate, noise), steps)
    assert not any(curve.refuted_by(guess_of(*ideal(rng, rate, noise, steps, 5_000))) for _ in range(100))
    assert curve.refuted_by(guess_of(*ideal(rng, rate, 0.75 * noise, steps, 20_000)))


def test_guessing_proves_nothing():
    coins = np.random.default_rng(7).standard_normal((2, 5_000))
    assert multiplier_bound([guess_of(*coins)], Step(1.0, 1.0), 1)[0] is None


def test_a_perfect_guess_proves_all_that_is_searched():
    perfect = guess_of(np.ones(5_000), -np.ones(5_000))
    assert multiplier_bound([perfect], Step(1.0, 4.0), 1)[0] == pytest.approx(1.0, rel=0.01)


def test_the_bound_of_a_plain_gaussian_is_that_of_its_mu():
    trials, mu = 5_000, 1.5
    errors = round(trials * ndtr(-mu / 2))
    guess = Guess(errors, errors, trials, trials)
    bound, _ = multiplier_bound([guess], Step(1.0, 1.0), 1)
    assert 1 / bound == pytest.approx(mu_bound(errors, errors, trials), rel=0.01)
