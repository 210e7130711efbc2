"""How samples are dealt to clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraaegis.errors import ConfigError, DataError
from paraaegis.learn.split import split

LABELS = np.arange(1000, dtype=np.int64) % 10


def deal(labels=LABELS, clients=10, how="dirichlet", alpha=0.5, minimum=20, seed=0):
    return split(labels, clients, how, alpha, minimum, np.random.default_rng(seed))


@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=300),
    clients=st.integers(1, 20),
    how=st.sampled_from(["iid", "dirichlet"]),
    alpha=st.floats(1e-300, 1e6),
    wish=st.integers(0, 30),
    seed=st.integers(0, 2**32),
)
def test_a_split_is_a_partition_with_the_minimum_for_everyone(labels, clients, how, alpha, wish, seed):
    minimum = min(wish, len(labels) // clients)
    shares = deal(np.array(labels, dtype=np.int64), clients, how, alpha, minimum, seed)
    assert len(shares) == clients
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(labels)))
    assert min(share.size for share in shares) >= minimum
    assert all(share.dtype == np.int64 and np.all(np.diff(share) > 0) for share in shares)


@pytest.mark.parametrize("clients", [1, 3, 7, 10])
def test_iid_shares_differ_by_one_sample_at_most(clients):
    sizes = [share.size for share in deal(clients=clients, how="iid")]
    assert max(sizes) - min(sizes) <= 1


def test_the_generator_decides_the_split():
    for how in ("iid", "dirichlet"):
        first, again, other = (deal(how=how, seed=seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_small_alpha_gives_a_client_fewer_classes():
    def classes(alpha):
        return np.mean([np.unique(LABELS[share]).size for share in deal(alpha=alpha, minimum=1)])

    assert classes(0.05) < classes(0.5) < classes(100)


def test_samples_that_are_moved_come_from_all_classes_of_the_giver():
    labels = np.repeat(np.arange(10), 1000)
    shares = deal(labels, clients=10, alpha=0.001, minimum=200)
    receiver = min(shares, key=lambda share: share.size)
    assert receiver.size == 200
    assert np.unique(labels[receiver]).size > 1


def test_an_impossible_minimum_is_refused_with_its_numbers():
    with pytest.raises(DataError, match=r"10 clients with at least 101 samples each need 1010.* has 1000"):
        deal(minimum=101)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"how": "shards"}, "iid, dirichlet, got 'shards'"),
        ({"alpha": 0.0}, "alpha must be a positive number, got 0.0"),
        ({"alpha": float("nan")}, "got nan"),
        ({"clients": 0}, "at least 1, got 0"),
    ],
)
def test_a_split_that_means_nothing_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        deal(**wrong)
