"""Each client casts exactly k votes, and exactly k positions are elected."""

import numpy as np
import pytest

from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.protocol.gaps import encode
from paraaegis.protocol.partition import places_of
from paraaegis.protocol.voting import STRATEGIES, Tally, cast, pack_positions, select, unpack_positions


def rng():
    return np.random.default_rng(0)


def update(length=100):
    return np.random.default_rng(1).normal(size=length).astype(np.float32)


def mask_of(length, *positions):
    mask = np.zeros(length, dtype=np.bool_)
    mask[list(positions)] = True
    return mask


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("k", [0, 1, 37, 99, 100])
def test_a_client_casts_exactly_k_votes(strategy, k):
    assert np.count_nonzero(select(strategy, update(), k, rng())) == k


def test_max_takes_the_largest_magnitudes():
    values = np.array([0.1, -5.0, 3.0, -0.2, 4.0], dtype=np.float32)
    assert np.flatnonzero(select("max", values, 2, rng())).tolist() == [1, 4]
    chosen = select("max", update(), 30, rng())
    assert np.abs(update()[chosen]).min() >= np.abs(update()[~chosen]).max()


def test_min_takes_the_smallest_magnitudes():
    values = np.array([0.1, -5.0, 3.0, -0.2, 4.0], dtype=np.float32)
    assert np.flatnonzero(select("min", values, 2, rng())).tolist() == [0, 3]
    chosen = select("min", update(), 30, rng())
    assert np.abs(update()[chosen]).max() <= np.abs(update()[~chosen]).min()


def test_rand_is_drawn_from_the_generator_and_blind_to_the_values():
    same = [select("rand", values, 10, np.random.default_rng(3)) for values in (update(), -7 * update())]
    np.testing.assert_array_equal(*same)
    other = select("rand", update(), 10, np.random.default_rng(4))
    assert (other != same[0]).any()


@pytest.mark.parametrize("strategy", ["max", "min"])
def test_of_equal_values_the_first_win(strategy):
    values = np.array([1, -1, 1, 1, -1], dtype=np.float32)
    assert np.flatnonzero(select(strategy, values, 2, rng())).tolist() == [0, 1]


@pytest.mark.parametrize("k", [-1, 101])
def test_k_out_of_range_is_refused_with_the_range(k):
    with pytest.raises(UpdateError, match=rf"between 0 and the 100 values .* got {k}"):
        select("max", update(), k, rng())


def test_no_values_take_no_votes():
    assert select("max", np.zeros(0, dtype=np.float32), 0, rng()).size == 0


def test_a_ballot_is_in_the_secret_order():
    order = np.array([3, 1, 0, 2])
    ballot = cast(mask_of(4, 0), places_of(order))
    assert np.flatnonzero(unpack_positions(ballot, 1, 4)).tolist() == [2]


@pytest.mark.parametrize("k", [0, 1, 10, 50, 51, 99, 100])
def test_a_set_takes_the_bytes_of_the_positions_in_it_or_not_in_it_whichever_are_fewer(k):
    chosen = np.random.default_rng(0).permutation(100) < k
    packed, others = pack_positions(chosen), pack_positions(~chosen)
    assert packed.view == encode(np.flatnonzero(chosen if k <= 50 else ~chosen), 100).view
    assert packed.view == others.view or k == 50
    np.testing.assert_array_equal(unpack_positions(packed, k, 100), chosen)


@pytest.mark.parametrize("k", [1, 50, 90])
def test_a_ballot_of_another_number_of_votes_is_refused(k):
    for other in (k - 1, k + 1):
        with pytest.raises(ProtocolError, match=r"of 100 positions|exactly"):
            unpack_positions(pack_positions(mask_of(100, *range(other))), k, 100)


def tally_of(k, length, *ballots):
    tally = Tally(k, length)
    for positions in ballots:
        tally.add(pack_positions(mask_of(length, *positions)))
    return tally


def test_the_positions_with_most_votes_are_elected():
    tally = tally_of(2, 6, [0, 5], [5, 3], [3, 5])
    assert np.flatnonzero(tally.elect()).tolist() == [3, 5]


def test_a_tie_goes_to_the_lower_position():
    tally = tally_of(2, 6, [4, 5], [1, 3])
    assert np.flatnonzero(tally.elect()).tolist() == [1, 3]
    tally = tally_of(2, 6, [4, 5], [5, 1])
    assert np.flatnonzero(tally.elect()).tolist() == [1, 5]


@pytest.mark.parametrize("k", [0, 1, 20, 39, 40])
def test_exactly_k_are_elected_whatever_the_votes(k):
    ballots = [np.random.default_rng(seed).permutation(40)[:k] for seed in range(7)]
    assert np.count_nonzero(tally_of(k, 40, *ballots).elect()) == k


def test_a_refused_ballot_is_not_counted():
    tally = tally_of(2, 6, [4, 5])
    with pytest.raises(ProtocolError):
        tally.add(pack_positions(mask_of(6, 0, 1, 2)))
    assert tally.ballots == 1
    assert tally.counts.tolist() == [0, 0, 0, 0, 1, 1]


def test_ballots_for_more_than_half_of_the_positions_are_counted_by_those_left_out():
    assert tally_of(4, 6, [0, 1, 2, 3], [2, 3, 4, 5]).counts.tolist() == [1, 1, 2, 2, 1, 1]
    tally = tally_of(5, 6, [0, 1, 2, 3, 4])
    with pytest.raises(ProtocolError):
        tally.add(pack_positions(mask_of(6, 0, 1, 2)))
    assert tally.counts.tolist() == [1, 1, 1, 1, 1, 0]


def test_agreement_is_the_share_of_votes_on_elected_positions():
    alike = tally_of(2, 6, [4, 5], [4, 5])
    assert alike.agreement(alike.elect()) == 1.0
    apart = tally_of(2, 6, [0, 1], [2, 3], [4, 5])
    assert apart.agreement(apart.elect()) == pytest.approx(1 / 3)
    assert Tally(0, 6).agreement(Tally(0, 6).elect()) == 0.0
