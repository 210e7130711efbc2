"""Laws of the vote: splitting loses nothing, counting knows no order, no order is drawn twice."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from paraaegis.crypto.shuffle import secret_order
from paraaegis.protocol.partition import Partition, places_of
from paraaegis.protocol.voting import Tally, cast, pack_positions, select, unpack_positions
from toy import KEYS, play

quick = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(0, 300)


@st.composite
def masks(draw):
    length = draw(lengths)
    return draw(arrays(np.bool_, length))


@st.composite
def votes(draw):
    """Clients × values, and k."""
    clients, length = draw(st.integers(1, 8)), draw(st.integers(1, 120))
    # Few distinct values, so that there are ties to decide.
    cast_by = draw(arrays(np.float32, (clients, length), elements=st.sampled_from([0.0, 0.5, -0.5, 1.0, -3.0])))
    return cast_by, draw(st.integers(0, length))


def order_of(length, number=1, attempt=0):
    return secret_order(KEYS.root.begin("run").at(number, attempt).step, length)


@quick
@given(elected=masks(), seed=seeds)
def test_splitting_and_merging_is_the_identity(elected, seed):
    rng = np.random.default_rng(seed)
    partition = Partition.of(elected, rng.permutation(elected.size))
    for vector in (rng.normal(size=elected.size).astype(np.float32), rng.integers(-(2**60), 2**60, elected.size)):
        inside, outside = partition.split(vector)
        assert partition.counts == (np.count_nonzero(elected), np.count_nonzero(~elected))
        assert partition.merge(inside, outside[partition.rest]).tobytes() == vector.tobytes()


@quick
@given(elected=masks(), seed=seeds)
def test_the_outside_travels_where_the_vote_did_not_fall(elected, seed):
    """The value that travels at the j-th position outside is that position's parameter."""
    order = np.random.default_rng(seed).permutation(elected.size)
    partition = Partition.of(elected, order)
    _, outside = partition.split(np.arange(elected.size))
    np.testing.assert_array_equal(outside[partition.rest], order[~elected])


@quick
@given(chosen=masks())
def test_unpacking_what_was_packed_is_the_identity(chosen):
    k = int(np.count_nonzero(chosen))
    np.testing.assert_array_equal(unpack_positions(pack_positions(chosen), k, chosen.size), chosen)


@quick
@given(votes=votes(), seed=seeds)
def test_the_elected_set_is_the_same_for_any_order_of_ballots(votes, seed):
    updates, k = votes
    order = order_of(updates.shape[1])
    ballots = [cast(select("max", update, k, np.random.default_rng(0)), places_of(order)) for update in updates]
    elected = []
    for which in (range(len(ballots)), np.random.default_rng(seed).permutation(len(ballots))):
        tally = Tally(k, order.size)
        for index in which:
            tally.add(ballots[index])
        elected.append(tally.elect())
    np.testing.assert_array_equal(*elected)
    assert np.count_nonzero(elected[0]) == k


@quick
@given(votes=votes())
def test_no_position_outside_has_more_votes_than_one_inside(votes):
    updates, k = votes
    tally = Tally(k, updates.shape[1])
    for update in updates:
        tally.add(pack_positions(select("max", update, k, np.random.default_rng(0))))
    elected = tally.elect()
    inside, outside = tally.counts[elected], tally.counts[~elected]
    if inside.size and outside.size:
        assert inside.min() >= outside.max()
        tied = np.flatnonzero(tally.counts == inside.min())
        np.testing.assert_array_equal(elected[tied], np.sort(elected[tied])[::-1])  # lower positions first


@quick
@given(votes=votes(), strategy=st.sampled_from(["max", "min", "rand"]), seed=seeds)
def test_a_client_votes_exactly_k_times_and_the_same_again(votes, strategy, seed):
    updates, k = votes
    chosen, again = (select(strategy, updates[0], k, np.random.default_rng(seed)) for _ in range(2))
    assert np.count_nonzero(chosen) == k
    np.testing.assert_array_equal(chosen, again)
    magnitude = np.abs(updates[0])
    if 0 < k < chosen.size and strategy == "max":
        assert magnitude[chosen].min() >= magnitude[~chosen].max()
    if 0 < k < chosen.size and strategy == "min":
        assert magnitude[chosen].max() <= magnitude[~chosen].min()


@quick
@given(length=st.integers(50, 300), first=st.tuples(st.integers(1, 9), st.integers(0, 3)),
       second=st.tuples(st.integers(1, 9), st.integers(0, 3)))  # fmt: skip
def test_the_order_of_each_round_and_attempt_is_a_permutation_of_its_own(length, first, second):
    orders = order_of(length, *first), order_of(length, *second)
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(length))
    assert np.array_equal(*orders) == (first == second)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, ratio=st.sampled_from([0.1, 0.2, 1.0]))
def test_every_client_ends_a_round_with_the_same_elected_set_and_model(seed, ratio):
    updates = np.random.default_rng(seed).normal(size=(4, 30))
    played = play(updates, "protect.method=paraaegis-feedback", f"protect.ratio={ratio}", workers=4)
    k = round(ratio * 30)
    withheld = [played.residual(client) == 0 for client in played.engine.states]
    assert all(np.count_nonzero(zero) == k for zero in withheld)
    for zero, state in zip(withheld, played.engine.states.values(), strict=True):
        np.testing.assert_array_equal(zero, withheld[0])
        np.testing.assert_array_equal(state.weights, played.model)
