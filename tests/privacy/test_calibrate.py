"""From a budget to its noise and back: exact accounting, and the paper's Remark."""

import itertools
import math

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from paraaegis.errors import PrivacyError
from paraaegis.privacy.calibrate import (
    composed_mu,
    delta_of,
    epsilon_of,
    mu_of,
    rdp_multiplier,
    remark_multiplier,
    remark_sensitivity,
    tight_multiplier,
    varying,
)


def test_fifty_rounds_of_one_and_a_hundred_thousandth_need_these_multipliers():
    """dp-accounting's PLD agrees with the first; the second is √(2T ln(1/δ))."""
    assert mu_of(1.0, 1e-5) == pytest.approx(0.268051, abs=5e-7)
    assert tight_multiplier(1.0, 1e-5, 50) == pytest.approx(26.3795, abs=5e-5)
    assert remark_multiplier(1.0, 1e-5, 50) == pytest.approx(33.93, abs=5e-3)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 100.0, 5000.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_delta_of_and_mu_of_are_inverse(epsilon, delta):
    assert delta_of(epsilon, mu_of(epsilon, delta)) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 0.5), (0.1, 1.0), (3.0, 2.0)])
def test_delta_is_the_privacy_loss_that_exceeds_epsilon(epsilon, mu):
    """δ = ∫ max(0, p − e^ε·q) for N(μ, 1) against N(0, 1), integrated where it is positive."""
    start = epsilon / mu + mu / 2
    exact, _ = quad(lambda x: norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), start, start + 40)
    assert delta_of(epsilon, mu) == pytest.approx(exact, rel=1e-6)


def test_more_rounds_or_a_smaller_budget_need_more_noise():
    for multiplier in (tight_multiplier, remark_multiplier):
        assert multiplier(1.0, 1e-5, 200) == pytest.approx(2 * multiplier(1.0, 1e-5, 50))
        assert multiplier(0.5, 1e-5, 50) > multiplier(1.0, 1e-5, 50)
        assert multiplier(1.0, 1e-9, 50) > multiplier(1.0, 1e-5, 50)


def test_the_remark_counts_sampled_rounds_only():
    assert remark_multiplier(1.0, 1e-5, 50, fraction=0.25) == pytest.approx(remark_multiplier(1.0, 1e-5, 50) / 2)


def test_the_remarks_sensitivity_is_the_smallest_clients():
    assert remark_sensitivity(1.0, 947) == pytest.approx(2 / 947)
    assert remark_sensitivity(3.0, 10) == pytest.approx(0.6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 1e-5)])
def test_a_budget_that_is_none_is_refused(epsilon, delta):
    with pytest.raises(PrivacyError, match=f"got ε = {epsilon}, δ = {delta}"):
        mu_of(epsilon, delta)


def test_a_budget_beyond_all_accounting_is_refused_in_our_own_words():
    with pytest.raises(PrivacyError, match="1000000000"):
        mu_of(1e9, 1e-5)


@pytest.mark.parametrize("ratio", [0.9, 0.5, 1.0])
@pytest.mark.parametrize("rounds", [1, 15, 50])
def test_a_varying_series_composes_to_the_budget(ratio, rounds):
    sigma = tight_multiplier(1.0, 1e-5, rounds)
    series = varying(sigma, rounds, ratio)
    assert len(series) == rounds
    assert epsilon_of(composed_mu(1.0, series), 1e-5) == pytest.approx(1.0, abs=1e-3)
    assert all(later == pytest.approx(ratio * sooner) for sooner, later in itertools.pairwise(series))


def test_the_varying_series_of_the_paper_is_the_one_that_was_solved_by_hand():
    series = varying(tight_multiplier(1.0, 1e-5, 50), 50, 0.9)
    assert (series[0], series[-1]) == (pytest.approx(1494.6, abs=0.1), pytest.approx(8.56, abs=0.01))


def test_the_papers_noise_read_as_client_level_is_thousands():
    sigma = remark_sensitivity(1.0, 947) * remark_multiplier(1.0, 1e-5, 50)
    assert epsilon_of(composed_mu(1.0, [sigma] * 50), 1e-5) == pytest.approx(5288, abs=1)


def test_renyi_accounting_is_looser_than_exact():
    assert rdp_multiplier(1.0, 1e-5, 50) == pytest.approx(28.605, abs=0.01)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("rounds", [1, 50])
def test_the_closed_form_agrees_with_privacy_loss_distributions(epsilon, delta, rounds):
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    multiplier = tight_multiplier(epsilon, delta, rounds)
    accountant = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), rounds))
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-3, abs=1e-3)
