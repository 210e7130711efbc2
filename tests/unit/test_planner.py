"""A plan takes the best that fits, names its neighbours, and says what nothing can fulfil."""

import pytest

from machine import MACHINE
from paraaegis.config import make_config
from paraaegis.errors import ConfigError
from paraaegis.experiments.pilot import Pilot
from paraaegis.experiments.planner import RATIOS, RESERVE, Wish, configured, mean_ratio, plan, train_seconds_of

LENGTH = 1_000_000
PILOT = Pilot(
    method="paraaegis-feedback",
    rounds=3,
    plain=90.0,
    by_ratio={"0.01": 70.0, "0.05": 85.0, "0.2": 89.0},
    train=0.5,
    wall=8.0,
)


def asked(method="paraaegis-feedback", *settings, pilot=None, **wishes):
    base = ["federation.clients=10", "federation.rounds=20", "privacy.calibration=tight", f"protect.method={method}"]
    return plan(make_config({}, [*base, *settings]), Wish(length=LENGTH, **wishes), MACHINE, pilot)


@pytest.mark.parametrize(("limit", "of"), [("megabytes", "megabytes"), ("seconds", "estimate.seconds")])
def test_the_largest_ratio_within_a_limit_is_chosen(limit, of):
    def took(choice):
        for name in of.split("."):
            choice = getattr(choice, name)
        return choice

    wide = {choice.ratio: took(choice) for choice in _all()}
    reserve = RESERVE if limit == "seconds" else 1
    bound = wide[0.05] * reserve * 1.01
    answer = asked(**{limit: bound})
    assert answer.fits
    assert answer.choice.ratio == 0.05
    assert reserve * took(answer.choice) <= bound < reserve * took(answer.better)
    assert (answer.cheaper.ratio, answer.better.ratio) == (0.03, 0.07)
    assert answer.choice.misses == []


def _all():
    """Every choice, met by asking for ever more."""
    answer, found = asked(megabytes=1e9), []
    choice = answer.choice
    while choice is not None:
        found.append(choice)
        choice = asked(megabytes=choice.megabytes * 0.999).choice if len(found) < len(RATIOS) else None
    return found


def test_what_nothing_can_fulfil_gets_the_nearest_and_the_difference():
    answer = asked(seconds=0.001)
    assert not answer.fits
    assert answer.choice.ratio == RATIOS[0]
    assert answer.cheaper is None
    assert "seconds, a fifth in reserve, asked for at most 0.001" in answer.choice.misses[0]


def test_without_limits_the_usual_ratio_is_chosen():
    assert asked().choice.ratio == 0.05
    assert asked("paraaegis-static").choice.ratio == 0.1


def test_a_decaying_ratio_comes_with_its_decay():
    answer = asked("paraaegis-dynamic", megabytes=200)
    assert answer.choice.decay in (0.99, 0.95, 0.9)
    written = configured(make_config({}, ["protect.method=paraaegis-dynamic"]), answer.choice)
    assert (written.protect.ratio, written.protect.decay) == (answer.choice.ratio, answer.choice.decay)


def test_with_a_pilot_the_cheapest_ratio_within_the_points_is_chosen():
    answer = asked(points=5.5, pilot=PILOT)
    assert answer.choice.ratio == 0.05
    assert answer.choice.points_lost == pytest.approx(5.0)
    assert answer.cheaper.points_lost > 5.5


def test_a_pilots_loss_is_its_own_at_its_ratios_and_vanishes_when_all_is_encrypted():
    assert [PILOT.points_lost(ratio) for ratio in (0.01, 0.05, 0.2)] == pytest.approx([20, 5, 1])
    assert 5 < PILOT.points_lost(0.02) < 20
    assert PILOT.points_lost(1.0) == 0
    assert PILOT.points_lost(0.001) == 90


def test_the_plan_says_what_it_guarantees_and_its_noise():
    answer = asked("paraaegis-static", "privacy.epsilon=2.0")
    assert {one.adversary for one in answer.guarantees} >= {"server and network"}
    assert answer.sigma > 1


def test_training_is_a_clients_own_or_its_share_of_this_machine():
    config = make_config({}, ["federation.clients=10"])
    assert train_seconds_of(PILOT, config, MACHINE, LENGTH, here=False) == 0.5
    assert train_seconds_of(PILOT, config, MACHINE, LENGTH, here=True) == pytest.approx((8 - 10 * (0.001 + 0.01)) / 10)


def test_the_mean_of_a_decaying_ratio():
    assert mean_ratio(0.1, 1.0, 9) == 0.1
    assert mean_ratio(0.1, 0.5, 2) == pytest.approx(0.075)


def test_a_method_without_a_ratio_is_refused():
    with pytest.raises(ConfigError, match="a ratio is planned for paraaegis-feedback"):
        asked("fedavg")
