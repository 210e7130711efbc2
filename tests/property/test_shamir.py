from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paraaegis.crypto import lwe
from paraaegis.crypto.shamir import Packing, Q, centre, rebuild, share, thresholds
from paraaegis.errors import CryptoError

Integers = NDArray[np.int64]
HALF = Q // 2
law = settings(deadline=None)


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    holders = draw(st.integers(2, 12))
    needed = draw(st.integers(2, holders))
    privacy = draw(st.integers(1, needed - 1))
    return Packing(holders, privacy, needed - privacy)


secret_lists = st.lists(st.integers(-HALF, HALF), min_size=1, max_size=30)
seeds = st.integers(0, 2**32)


def through(known: dict[int, int], target: int) -> int:
    """The value at `target` of the polynomial through `known`, by Python's integers: an oracle of its own."""
    total = 0
    for point, value in known.items():
        others = [other for other in known if other != point]
        top, bottom = prod(target - other for other in others), prod(point - other for other in others)
        total += value * top * pow(bottom, -1, Q)
    return total % Q


def some(draw: st.DataObject, packing: Packing, count: int) -> list[int]:
    return draw.draw(st.permutations(range(packing.holders)))[:count]


@law
@given(secret_lists, packings(), seeds, st.data())
def test_any_needed_shares_rebuild_the_secrets(
    secrets: list[int], packing: Packing, seed: int, data: st.DataObject
) -> None:
    shares = share(np.array(secrets), packing, np.random.default_rng(seed))
    holders = some(data, packing, data.draw(st.integers(packing.needed, packing.holders)))
    assert shares.shape == (packing.holders, packing.columns(len(secrets)))
    assert rebuild({j: shares[j] for j in holders}, len(secrets), packing).tolist() == secrets


@law
@given(st.lists(secret_lists, min_size=1, max_size=6), packings(), seeds)
def test_the_sum_of_shares_is_a_share_of_the_sum(lists: list[list[int]], packing: Packing, seed: int) -> None:
    length = min(map(len, lists))
    rows = np.array([entries[:length] for entries in lists])
    rng = np.random.default_rng(seed)
    held = np.sum([share(row, packing, rng) for row in rows], axis=0)
    found = rebuild(dict(enumerate(held)), length, packing)
    np.testing.assert_array_equal(found, centre(rows.sum(axis=0)))


@law
@given(secret_lists, packings(), seeds, st.data())
def test_fewer_shares_than_needed_are_refused(
    secrets: list[int], packing: Packing, seed: int, data: st.DataObject
) -> None:
    shares = share(np.array(secrets), packing, np.random.default_rng(seed))
    holders = some(data, packing, packing.needed - 1)
    with pytest.raises(CryptoError, match=f"{packing.needed} shares are needed"):
        rebuild({j: shares[j] for j in holders}, len(secrets), packing)


@law
@given(packings(), seeds, st.data())
def test_every_candidate_secret_fits_the_shares_of_a_private_set_equally_well(
    packing: Packing, seed: int, data: st.DataObject
) -> None:
    k, t = packing.packing, packing.privacy
    several = st.lists(st.integers(-HALF, HALF), min_size=k, max_size=k)
    secrets, candidate = data.draw(several), data.draw(several)
    shares = share(np.array(secrets), packing, np.random.default_rng(seed))
    spied = some(data, packing, t)
    # t shares and k candidates fix one polynomial of degree t + k − 1, whatever the candidates are.
    known = {j + 1: int(shares[j, 0]) for j in spied} | {-1 - index: value for index, value in enumerate(candidate)}
    forged = {j: np.array([through(known, j + 1)]) for j in range(packing.holders)}
    assert all(forged[j][0] == shares[j, 0] for j in spied)
    assert rebuild(forged, k, packing).tolist() == candidate


@pytest.mark.parametrize("packing", [Packing(5, 2, 2), Packing(4, 2, 1), Packing(6, 3, 3)])
def test_shares_of_a_private_set_are_uniform_and_independent(packing: Packing) -> None:
    secrets = np.zeros(packing.packing * 40_000, dtype=np.int64)
    shares = share(secrets, packing, np.random.default_rng(3))
    for spied in combinations(range(packing.holders), packing.privacy):
        cells = np.zeros(shares.shape[1], dtype=np.int64)
        for j in spied:
            cells = cells * 4 + shares[j] * 4 // Q
        counts = np.bincount(cells, minlength=4**packing.privacy)
        expected = shares.shape[1] / counts.size
        chi = ((counts - expected) ** 2 / expected).sum()
        degrees = counts.size - 1
        assert abs(chi - degrees) < 5 * np.sqrt(2 * degrees)


def test_one_clients_mask_cannot_be_rebuilt_from_fewer_shares_than_the_threshold() -> None:
    packing, ring, rng = thresholds(10, 8), lwe.FORMS["ring"], np.random.default_rng(4)
    secret, other = ring.secret(rng), ring.secret(rng)
    shares = share(secret, packing, rng)
    spied = range(packing.privacy)
    with pytest.raises(CryptoError, match="8 shares are needed to rebuild, got 5"):
        rebuild({j: shares[j] for j in spied}, ring.size, packing)
    # The first t rows are the draws themselves, so that another secret gives the spies the very same shares.
    first, second = (share(s, packing, np.random.default_rng(5)) for s in (secret, other))
    np.testing.assert_array_equal(first[spied], second[spied])
    # One share short of all, completed by a guess, gives a mask that has nothing in common with the right one.
    guess = {j: shares[j] for j in range(packing.needed - 1)} | {9: rng.integers(0, Q, size=shares.shape[1])}
    wrong = ring.mask(bytes(32), rebuild(guess, ring.size, packing), 4096)
    assert np.mean(wrong == ring.mask(bytes(32), secret, 4096)) < 0.01


def test_two_sharings_of_one_secret_differ() -> None:
    rng, packing = np.random.default_rng(6), thresholds(6, 4)
    secrets = np.arange(100)
    assert not np.any(share(secrets, packing, rng) == share(secrets, packing, rng))


@law
@given(st.integers(2, 60), st.data())
def test_more_than_half_must_join_to_learn_anything_and_the_quorum_rebuilds(clients: int, data: st.DataObject) -> None:
    quorum = data.draw(st.integers(clients // 2 + 1, clients))
    packing = thresholds(clients, quorum)
    assert packing.privacy + 1 > clients / 2
    assert packing.privacy + 1 >= 2
    assert packing.needed == quorum
    assert packing.packing >= 1


@law
@given(st.integers(-1, 60), st.integers(-1, 70))
def test_a_quorum_of_half_or_beyond_all_is_refused(clients: int, quorum: int) -> None:
    if clients >= 2 and clients / 2 < quorum <= clients:
        return
    with pytest.raises(CryptoError, match="more than half"):
        thresholds(clients, quorum)


@pytest.mark.parametrize("numbers", [(3, 0, 2), (3, 2, 0), (3, 2, 2)])
def test_an_impossible_packing_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(CryptoError, match="privacy"):
        Packing(*numbers)


@law
@given(packings(), seeds)
def test_a_wrong_share_among_more_than_needed_is_noticed(packing: Packing, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = dict(enumerate(share(np.arange(20), packing, rng)))
    shares[int(rng.integers(packing.holders))][0] += 1
    if packing.holders > packing.needed:
        with pytest.raises(CryptoError, match="contradict"):
            rebuild(shares, 20, packing)


def test_shares_of_unknown_holders_or_other_lengths_are_refused() -> None:
    packing = thresholds(4, 3)
    shares = dict(enumerate(share(np.arange(9), packing, np.random.default_rng(7))))
    with pytest.raises(CryptoError, match="numbered 0 to 3"):
        rebuild({**shares, 4: shares[0]}, 9, packing)
    with pytest.raises(CryptoError, match="a share has 9 values"):
        rebuild({**shares, 1: shares[1][:-1]}, 9, packing)


def test_a_hundred_ternary_secrets_sum_exactly_in_a_large_federation() -> None:
    rng, packing = np.random.default_rng(8), thresholds(100, 80)
    secrets = [lwe.FORMS["ring"].secret(rng) for _ in range(100)]
    held = np.sum([share(secret, packing, rng) for secret in secrets], axis=0)
    found = rebuild({j: held[j] for j in range(10, 95)}, 1024, packing)
    np.testing.assert_array_equal(found, np.sum(secrets, axis=0))
