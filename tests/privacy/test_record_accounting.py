"""The ε of DP-SGD agrees with other accountants, and the noise for a target ε meets it tightly."""

import logging
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.stats import binom, norm

from paraaegis.errors import ConfigError, PrivacyError
from paraaegis.privacy.calibrate import delta_of, epsilon_of
from paraaegis.privacy.ledger import TRAINING, Release
from paraaegis.privacy.record_budget import RecordBudget, check_delta
from paraaegis.privacy.records import Step, epsilon_of_steps, multiplier_for
from toy import configure

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
TRAININGS = [  # sampling rate, noise multiplier, steps, δ
    (0.1, 1.0, 200, 1e-5),
    (0.01, 0.8, 1000, 1e-5),
    (0.1, 5.0, 3000, 1e-4),
    (0.5, 3.0, 100, 1e-3),
    (0.02, 0.5, 50, 1e-5),
    (0.001, 0.6, 20000, 1e-6),
    (0.1, 20.0, 10000, 1e-5),
]
pytestmark = pytest.mark.filterwarnings("ignore:Optimal order")  # of Rényi bounds
everywhere = pytest.mark.parametrize(("rate", "multiplier", "steps", "delta"), TRAININGS)


def ours(rate, multiplier, steps, delta, group=1):
    return epsilon_of_steps([(Step(rate, multiplier), steps)], delta, group)


def theirs(accountant, rate, multiplier, steps, delta):
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, steps)).get_epsilon(delta)


@everywhere
def test_epsilon_agrees_with_opacus(rate, multiplier, steps, delta):
    accountant = PRVAccountant()
    accountant.history = [(multiplier, rate, steps)]
    above = accountant.get_epsilon(delta, eps_error=0.01)  # an upper bound within this error
    assert above - 0.02 <= ours(rate, multiplier, steps, delta) <= above * 1.002


@everywhere
def test_epsilon_is_below_the_renyi_bounds_and_not_far(rate, multiplier, steps, delta, caplog):
    accountant = RDPAccountant()
    accountant.history = [(multiplier, rate, steps)]
    opacus = accountant.get_epsilon(delta)
    with caplog.at_level(logging.ERROR):
        google = theirs(rdp.RdpAccountant(neighboring_relation=ADD_OR_REMOVE), rate, multiplier, steps, delta)
    for bound in (opacus, google):
        assert 0.75 * bound < ours(rate, multiplier, steps, delta) <= bound


@everywhere
def test_epsilon_does_not_depend_on_the_grid_of_losses(rate, multiplier, steps, delta):
    finer = pld.PLDAccountant(ADD_OR_REMOVE, value_discretization_interval=2e-4)
    fine = theirs(finer, rate, multiplier, steps, delta)
    assert fine * (1 - 1e-5) <= ours(rate, multiplier, steps, delta) <= fine * 1.005


@given(st.floats(0.3, 50), st.integers(1, 500), st.floats(1e-8, 1e-2))
@settings(deadline=None)
def test_without_sampling_epsilon_is_the_exact_one_of_gaussians(multiplier, steps, delta):
    exact = epsilon_of(math.sqrt(steps) / multiplier, delta)
    assert ours(1.0, multiplier, steps, delta) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 7])
def test_sampling_at_a_rate_just_below_one_is_nearly_no_sampling(steps):  # the two take different ways
    assert ours(1 - 1e-9, 2.0, steps, 1e-5) == pytest.approx(ours(1.0, 2.0, steps, 1e-5), rel=1e-3)


def test_more_steps_of_one_kind_are_as_many_single_ones():
    together = epsilon_of_steps([(Step(0.1, 1.0), 30), (Step(0.2, 2.0), 5), (Step(1.0, 9.0), 2)], 1e-5)
    apart = [(Step(0.1, 1.0), 10)] * 3 + [(Step(0.2, 2.0), 5)] + [(Step(1.0, 9.0), 1)] * 2
    assert epsilon_of_steps(apart, 1e-5) == pytest.approx(together, rel=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "group"),
    [(8.0, 1e-5, 0.1, 200, 1), (0.5, 1e-5, 0.1, 2000, 1), (2.0, 1e-4, 0.01, 300, 1), (50.0, 1e-5, 0.1, 10, 1),
     (4.0, 1e-5, 1.0, 20, 1), (4.0, 1e-5, 1.0, 20, 3), (8.0, 1e-5, 0.1, 200, 30), (1.0, 1e-12, 0.1, 100, 1)],
)  # fmt: skip
def test_the_noise_for_a_budget_meets_it_and_wastes_little(epsilon, delta, rate, steps, group):
    multiplier = multiplier_for(epsilon, delta, rate, steps, group)
    assert 0.998 * epsilon < ours(rate, multiplier, steps, delta, group) <= epsilon
    assert float(f"{multiplier:.4g}") == multiplier


# A person with several records


def delta_by_hand(epsilon, rate, multiplier, group, points):
    """δ of one step for removing all records of a person: ∫ (p − e^ε q)⁺, and the same for adding them."""
    counts = np.arange(group + 1)
    mixed = binom.pmf(counts, group, rate) @ norm.pdf(points, counts[:, None], multiplier)
    alone, width = norm.pdf(points, 0, multiplier), points[1] - points[0]
    removed = np.maximum(mixed - math.exp(epsilon) * alone, 0).sum() * width
    added = np.maximum(alone - math.exp(epsilon) * mixed, 0).sum() * width
    return max(removed, added)


@pytest.mark.parametrize(
    ("rate", "multiplier", "group"), [(0.1, 1.0, 1), (0.1, 2.0, 2), (0.3, 3.0, 5), (0.05, 4.0, 40)]
)
def test_epsilon_of_a_group_is_that_of_the_mixture_it_draws(rate, multiplier, group):
    points = np.linspace(-12 * multiplier, group + 12 * multiplier, 400_001)
    epsilon = ours(rate, multiplier, 1, 1e-4, group)
    assert delta_by_hand(epsilon, rate, multiplier, group, points) <= 1e-4
    assert delta_by_hand(epsilon - 0.01, rate, multiplier, group, points) > 1e-4


def test_a_group_of_one_is_a_record_and_larger_groups_cost_more():
    spent = [ours(0.1, 3.0, 20, 1e-5, group) for group in (1, 2, 3, 10)]
    assert spent == sorted(set(spent))
    assert ours(1.0, 6.0, 5, 1e-5, group=3) == pytest.approx(ours(1.0, 2.0, 5, 1e-5))


def test_a_group_may_be_large():
    assert 0 < ours(0.01, 2000.0, 3, 1e-5, group=1500) < 1


# What a client has spent


def budget(group=1):
    return RecordBudget(8.0, 1e-5, group, planned=(Step(0.1, 1.13), 200))


def test_noised_updates_count_as_gaussians_that_move_by_twice_the_clip():
    update = Release(round=1, client="a", what="update", server="noised", clients="noised", clip=0.5, sigma=3.0)
    for group in (1, 4):  # however many records change, an update stays within its clip
        spent = budget(group=group).cost(update) + budget(group=group).cost(update)
        assert budget(group=group).epsilon_at(spent) == pytest.approx(epsilon_of(math.sqrt(2) * 2 * 0.5 / 3.0, 1e-5))


def test_a_ledger_of_barely_noised_updates_is_counted_without_filling_memory():
    weak = Release(round=1, client="a", what="update", server="noised", clients="noised", clip=1.0, sigma=0.002)
    trained = Release(round=1, client="a", what=TRAINING, server="nothing", clients="nothing",
                      clip=1.0, sigma=1.13, sample_rate=0.1, steps=100)  # fmt: skip
    spent = budget().cost(weak) + budget().cost(trained)
    assert budget().epsilon_at(spent) > epsilon_of(2 / 0.002, 1e-5)
    assert not budget().fits(spent)


def test_the_planned_steps_fit_and_one_more_does_not():
    step, most = budget().planned
    kind = type(budget().nothing)
    assert budget().fits(kind({step: most}))
    assert budget().epsilon_at(kind({step: most})) <= 8.0
    assert not budget().fits(kind({step: most + 10}))
    assert not budget().fits(kind({step: most, Step(0.1, 5.0): 200}))


@given(st.sampled_from([1e-10, 3e-7, 0.1, 0.7, 1.0, 1e6, 1e30]), st.integers(1000, 9999), st.integers(-4, 3))
def test_a_multiplier_survives_the_ledger(clip, digits, power):
    multiplier = float(f"{digits}e{power - 3}")
    one = Release(round=1, client="a", what=TRAINING, server="nothing", clients="nothing",
                  clip=clip, sigma=multiplier * clip, sample_rate=0.1, steps=3)  # fmt: skip
    assert budget().cost(one) == {Step(0.1, multiplier): 3}


# What is refused

RECORD = ("privacy.unit=record", "privacy.calibration=tight", "privacy.epsilon=8", "privacy.clip=1")


def test_delta_is_at_most_a_tenth_of_one_record_and_the_error_names_one_that_is_accepted():
    check_delta(configure(*RECORD, "privacy.delta=0.0002"), "a", 479)
    with pytest.raises(
        PrivacyError, match=r"at most 1/\(10 · 479\) = 0\.000208 for a, which has 479 samples"
    ) as refused:
        check_delta(configure(*RECORD, "privacy.delta=0.00021"), "a", 479)
    offered = float(str(refused.value).split(" = ")[1].split()[0])
    check_delta(configure(*RECORD, f"privacy.delta={offered}"), "a", 479)
    check_delta(configure("privacy.delta=0.5"), "a", 479)  # of other units


@pytest.mark.parametrize("delta", [0.7, 0.11, 1e-13, 1e-100])
def test_a_delta_that_no_client_could_have_is_refused_at_once(delta):
    with pytest.raises(ConfigError, match=r"privacy\.delta must be between 1e-12 and 0\.1"):
        configure(*RECORD, f"privacy.delta={delta}")


def test_a_clip_below_what_float32_can_square_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.clip must be at least 1e-10"):
        configure(*RECORD, "privacy.clip=1e-12")
    configure(*RECORD, "privacy.clip=1e-10")


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [((50.1, 1e-5, 0.1, 10), "at most 50 .* got 50.1; more protects nobody"),
     ((1e-4, 1e-5, 0.1, 10_000), "needs a noise multiplier above 10000; raise privacy.epsilon")],
)  # fmt: skip
def test_budgets_that_no_noise_meets_or_that_protect_nobody_are_refused(asked, refusal):
    with pytest.raises(ConfigError, match=refusal):
        multiplier_for(*asked)


def test_without_noise_epsilon_is_infinite():
    assert ours(0.1, 0.0, 10, 1e-5) == math.inf


def test_delta_of_gaussians_is_the_one_at_their_epsilon():
    assert delta_of(ours(1.0, 2.0, 3, 1e-5), math.sqrt(3) / 2) == pytest.approx(1e-5)
