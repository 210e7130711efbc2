from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraaegis.crypto import lwe
from paraaegis.crypto.shamir import Q, centre, rebuild, share
from paraaegis.errors import CryptoError

HALF = Q // 2
law = settings(deadline=None)
secret_lists = st.lists(st.integers(-HALF, HALF), min_size=1, max_size=30)
seeds = st.integers(0, 2**32)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """Holders and quorum."""
    holders = draw(st.integers(2, 12))
    return holders, draw(st.integers(2, holders))


def through(known: dict[int, int], target: int) -> int:
    """The value at `target` of the polynomial through `known`, by Python's integers: an oracle of its own."""
    total = 0
    for point, value in known.items():
        others = [other for other in known if other != point]
        top, bottom = prod(target - other for other in others), prod(point - other for other in others)
        total += value * top * pow(bottom, -1, Q)
    return total % Q


def some(data: st.DataObject, holders: int, count: int) -> list[int]:
    return data.draw(st.permutations(range(holders)))[:count]


@law
@given(secret_lists, sizes(), seeds, st.data())
def test_any_quorum_of_shares_rebuilds_the_secrets(secrets, size, seed, data) -> None:
    holders, quorum = size
    shares = share(np.array(secrets), holders, quorum, np.random.default_rng(seed))
    chosen = some(data, holders, data.draw(st.integers(quorum, holders)))
    assert shares.shape == (holders, len(secrets))
    assert rebuild({j: shares[j] for j in chosen}, quorum).tolist() == secrets


@law
@given(st.lists(secret_lists, min_size=1, max_size=6), sizes(), seeds)
def test_the_sum_of_shares_is_a_share_of_the_sum(lists, size, seed) -> None:
    length = min(map(len, lists))
    rows = np.array([entries[:length] for entries in lists])
    rng = np.random.default_rng(seed)
    held = np.sum([share(row, *size, rng) for row in rows], axis=0)
    np.testing.assert_array_equal(rebuild(dict(enumerate(held)), size[1]), centre(rows.sum(axis=0)))


@law
@given(secret_lists, sizes(), seeds, st.data())
def test_fewer_shares_than_the_quorum_are_refused(secrets, size, seed, data) -> None:
    holders, quorum = size
    shares = share(np.array(secrets), holders, quorum, np.random.default_rng(seed))
    with pytest.raises(CryptoError, match=f"{quorum} shares are needed"):
        rebuild({j: shares[j] for j in some(data, holders, quorum - 1)}, quorum)


@law
@given(sizes(), st.integers(-HALF, HALF), st.integers(-HALF, HALF), seeds, st.data())
def test_every_candidate_secret_fits_the_shares_of_all_but_one_of_a_quorum(size, secret, other, seed, data) -> None:
    holders, quorum = size
    shares = share(np.array([secret]), holders, quorum, np.random.default_rng(seed))
    spied = some(data, holders, quorum - 1)
    known = {j + 1: int(shares[j, 0]) for j in spied} | {0: other}
    forged = {j: np.array([through(known, j + 1)]) for j in range(holders)}
    assert all(forged[j][0] == shares[j, 0] for j in spied)
    assert rebuild(forged, quorum).tolist() == [other]


@pytest.mark.parametrize(("holders", "quorum"), [(5, 4), (4, 3), (6, 4)])
def test_shares_of_all_but_one_of_a_quorum_are_uniform_and_independent(holders: int, quorum: int) -> None:
    shares = share(np.zeros(40_000, dtype=np.int64), holders, quorum, np.random.default_rng(3))
    for spied in combinations(range(holders), quorum - 1):
        cells = np.zeros(shares.shape[1], dtype=np.int64)
        for j in spied:
            cells = cells * 4 + shares[j] * 4 // Q
        counts = np.bincount(cells, minlength=4 ** (quorum - 1))
        expected, degrees = shares.shape[1] / counts.size, counts.size - 1
        assert abs(((counts - expected) ** 2 / expected).sum() - degrees) < 5 * np.sqrt(2 * degrees)


def test_small_secrets_are_not_found_by_trying_all_of_them() -> None:
    """The attack on several ternary secrets in one polynomial: with t + 1 shares only the true ones were small."""
    holders, quorum, rng = 7, 6, np.random.default_rng(4)
    secrets = lwe.FORMS["ring"].secret(rng)[:50]
    shares = share(secrets, holders, quorum, rng)
    for column in range(secrets.size):
        fitting = [
            guess
            for guess in (-1, 0, 1)  # quorum − 1 shares and the guess must lie on a polynomial of degree quorum − 1
            if through({j + 1: int(shares[j, column]) for j in range(quorum - 1)} | {0: guess}, 0) == guess % Q
        ]
        assert fitting == [-1, 0, 1]


def test_one_clients_mask_cannot_be_rebuilt_with_one_share_too_few() -> None:
    ring, rng = lwe.FORMS["ring"], np.random.default_rng(4)
    secret = ring.secret(rng)
    shares = share(secret, 10, 8, rng)
    guess = {j: shares[j] for j in range(7)} | {9: rng.integers(0, Q, size=ring.size)}
    wrong = ring.mask(bytes(32), rebuild(guess, 8), 4096)
    assert np.mean(wrong == ring.mask(bytes(32), secret, 4096)) < 0.01


def test_two_sharings_of_one_secret_differ() -> None:
    rng, secrets = np.random.default_rng(6), np.arange(100)
    assert not np.any(share(secrets, 6, 4, rng) == share(secrets, 6, 4, rng))


@pytest.mark.parametrize(("holders", "quorum"), [(3, 1), (3, 0), (3, 4), (1, 1)])
def test_a_quorum_of_one_or_beyond_all_is_refused(holders: int, quorum: int) -> None:
    with pytest.raises(CryptoError, match="quorum of 2 or more"):
        share(np.arange(3), holders, quorum, np.random.default_rng(1))


@law
@given(sizes(), seeds)
def test_a_wrong_share_among_more_than_a_quorum_is_noticed(size, seed) -> None:
    holders, quorum = size
    rng = np.random.default_rng(seed)
    shares = dict(enumerate(share(np.arange(20), holders, quorum, rng)))
    shares[int(rng.integers(holders))][0] += 1
    if holders > quorum:
        with pytest.raises(CryptoError, match="contradict"):
            rebuild(shares, quorum)


def test_shares_of_different_lengths_are_refused() -> None:
    shares = dict(enumerate(share(np.arange(9), 4, 3, np.random.default_rng(7))))
    with pytest.raises(CryptoError, match="the same length"):
        rebuild({**shares, 1: shares[1][:-1]}, 3)


def test_a_hundred_ternary_secrets_sum_exactly_in_a_large_federation() -> None:
    rng = np.random.default_rng(8)
    secrets = [lwe.FORMS["ring"].secret(rng) for _ in range(100)]
    held = np.sum([share(secret, 100, 80, rng) for secret in secrets], axis=0)
    np.testing.assert_array_equal(rebuild({j: held[j] for j in range(10, 95)}, 80), np.sum(secrets, axis=0))
