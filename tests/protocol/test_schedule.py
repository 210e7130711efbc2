"""The ratio of each round: r_t = r_0·λ^t."""

import pytest

from paraaegis.errors import ConfigError
from paraaegis.protocol.schedule import Schedule


def test_the_first_round_has_the_initial_ratio():
    assert Schedule(0.3, 0.5).ratio_at(1) == 0.3


def test_a_ratio_decays_geometrically():
    assert [Schedule(0.8, 0.5).ratio_at(number) for number in (1, 2, 3)] == [0.8, 0.4, 0.2]


def test_without_decay_the_ratio_is_constant():
    assert {Schedule(0.1).ratio_at(number) for number in range(1, 100)} == {0.1}


@pytest.mark.parametrize(("ratio", "elected"), [(0.0, 0), (0.1, 10), (0.104, 10), (0.106, 11), (1.0, 100)])
def test_k_is_the_rounded_share_of_the_values(ratio, elected):
    assert Schedule(ratio).elected_at(1, 100) == elected


def test_k_never_leaves_its_range():
    assert Schedule(1.0).elected_at(1, 0) == 0
    assert all(Schedule(1.0).elected_at(1, length) == length for length in range(50))
    assert Schedule(0.1, 0.01).elected_at(50, 1000) == 0


@pytest.mark.parametrize("ratio", [1.5, -0.1, float("nan"), float("inf")])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(ConfigError, match=rf"ratio must be in \[0, 1\], got {ratio}"):
        Schedule(ratio)


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.1, float("nan")])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ConfigError, match=rf"decay must be in \(0, 1\], got {decay}"):
        Schedule(0.5, decay)
