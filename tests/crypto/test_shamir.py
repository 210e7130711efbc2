from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paraaegis.crypto import lwe
from paraaegis.crypto.shamir import NARROW, WIDE, Field, add, centre, rebuild, share
from paraaegis.errors import CryptoError

law = settings(deadline=None)
both = st.sampled_from([NARROW, WIDE])
BOTH = pytest.mark.parametrize("field", [NARROW, WIDE], ids=["narrow", "wide"])
seeds = st.integers(0, 2**32)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """Holders and quorum."""
    holders = draw(st.integers(2, 12))
    return holders, draw(st.integers(2, holders))


def numbers(field: Field) -> st.SearchStrategy[int]:
    return st.integers(-(field.prime // 2), field.prime // 2)


def lists(field: Field) -> st.SearchStrategy[list[int]]:
    return st.lists(numbers(field), min_size=1, max_size=30)


def through(known: dict[int, int], target: int, q: int) -> int:
    """The value at `target` of the polynomial through `known`, by Python's integers: an oracle of its own."""
    total = 0
    for point, value in known.items():
        others = [other for other in known if other != point]
        top, bottom = prod(target - other for other in others), prod(point - other for other in others)
        total += value * top * pow(bottom, -1, q)
    return total % q


def some(data: st.DataObject, holders: int, count: int) -> list[int]:
    return data.draw(st.permutations(range(holders)))[:count]


@law
@given(both, sizes(), seeds, st.data())
def test_any_quorum_of_shares_rebuilds_the_secrets(field, size, seed, data) -> None:
    (holders, quorum), secrets = size, data.draw(lists(field))
    shares = share(np.array(secrets), holders, quorum, np.random.default_rng(seed), field)
    chosen = some(data, holders, data.draw(st.integers(quorum, holders)))
    assert shares.shape == (holders, len(secrets))
    assert rebuild({j: shares[j] for j in chosen}, quorum).tolist() == secrets


@law
@given(both, sizes(), seeds, st.data())
def test_the_sum_of_shares_is_a_share_of_the_sum(field, size, seed, data) -> None:
    secrets = data.draw(st.lists(lists(field), min_size=1, max_size=6))
    length = min(map(len, secrets))
    rows = np.array([entries[:length] for entries in secrets])
    rng = np.random.default_rng(seed)
    held = [add(of_one) for of_one in zip(*(share(row, *size, rng, field) for row in rows), strict=True)]
    assert held[0].dtype == field.word
    np.testing.assert_array_equal(rebuild(dict(enumerate(held)), size[1]), centre(rows.sum(axis=0), field.prime))


@law
@given(both, sizes(), seeds, st.data())
def test_fewer_shares_than_the_quorum_are_refused(field, size, seed, data) -> None:
    holders, quorum = size
    shares = share(np.array([1, -1]), holders, quorum, np.random.default_rng(seed), field)
    with pytest.raises(CryptoError, match=f"{quorum} shares are needed"):
        rebuild({j: shares[j] for j in some(data, holders, quorum - 1)}, quorum)


@law
@given(both, sizes(), seeds, st.data())
def test_every_candidate_secret_fits_the_shares_of_all_but_one_of_a_quorum(field, size, seed, data) -> None:
    (holders, quorum), secret, other = size, data.draw(numbers(field)), data.draw(numbers(field))
    shares = share(np.array([secret]), holders, quorum, np.random.default_rng(seed), field)
    spied = some(data, holders, quorum - 1)
    known = {j + 1: int(shares[j, 0]) for j in spied} | {0: other}
    forged = {j: np.array([through(known, j + 1, field.prime)], dtype=field.word) for j in range(holders)}
    assert all(forged[j][0] == shares[j, 0] for j in spied)
    assert rebuild(forged, quorum).tolist() == [other]


@BOTH
@pytest.mark.parametrize(("holders", "quorum"), [(5, 4), (4, 3), (6, 4)])
def test_shares_of_all_but_one_of_a_quorum_are_uniform_and_independent(holders: int, quorum: int, field: Field) -> None:
    shares = share(np.zeros(40_000, dtype=np.int64), holders, quorum, np.random.default_rng(3), field)
    for spied in combinations(range(holders), quorum - 1):
        cells = np.zeros(shares.shape[1], dtype=np.int64)
        for j in spied:
            cells = cells * 4 + shares[j].astype(np.int64) * 4 // field.prime
        counts = np.bincount(cells, minlength=4 ** (quorum - 1))
        expected, degrees = shares.shape[1] / counts.size, counts.size - 1
        assert abs(((counts - expected) ** 2 / expected).sum() - degrees) < 5 * np.sqrt(2 * degrees)


def test_small_secrets_are_not_found_by_trying_all_of_them() -> None:
    """The attack on several small secrets in one polynomial: with t + 1 shares only the true ones were small."""
    holders, quorum, rng = 7, 6, np.random.default_rng(4)
    secrets = lwe.RING.secret(rng)[:20]
    shares, q = share(secrets, holders, quorum, rng, NARROW), NARROW.prime
    for column in range(secrets.size):
        known = {j + 1: int(shares[j, column]) for j in range(quorum - 1)}
        fitting = [guess for guess in range(-21, 22) if through(known | {0: guess}, 0, q) == guess % q]
        assert fitting == list(range(-21, 22))


@pytest.mark.parametrize("form", lwe.FORMS.values(), ids=lwe.FORMS)
def test_one_clients_mask_cannot_be_rebuilt_with_one_share_too_few(form: lwe.Form) -> None:
    rng = np.random.default_rng(4)
    secret = form.secret(rng)
    shares = share(secret, 10, 8, rng, form.field)
    guess = {j: shares[j] for j in range(7)}
    guess[9] = rng.integers(0, form.field.prime, size=form.size).astype(form.field.word)
    wrong = form.mask(bytes(32), rebuild(guess, 8), 4096)
    assert np.mean(wrong == form.mask(bytes(32), secret, 4096)) < 0.01


def test_two_sharings_of_one_secret_differ() -> None:
    rng, secrets = np.random.default_rng(6), np.arange(100)
    assert not np.any(share(secrets, 6, 4, rng, WIDE) == share(secrets, 6, 4, rng, WIDE))


@pytest.mark.parametrize(("holders", "quorum"), [(3, 1), (3, 0), (3, 4), (1, 1)])
def test_a_quorum_of_one_or_beyond_all_is_refused(holders: int, quorum: int) -> None:
    with pytest.raises(CryptoError, match="quorum of 2 or more"):
        share(np.arange(3), holders, quorum, np.random.default_rng(1), WIDE)


@law
@given(both, sizes(), seeds)
def test_a_wrong_share_among_more_than_a_quorum_is_noticed(field, size, seed) -> None:
    holders, quorum = size
    rng = np.random.default_rng(seed)
    shares = dict(enumerate(share(np.arange(20), holders, quorum, rng, field)))
    shares[int(rng.integers(holders))][0] += 1
    if holders > quorum:
        with pytest.raises(CryptoError, match="contradict"):
            rebuild(shares, quorum)


def test_shares_of_different_lengths_or_fields_are_refused() -> None:
    shares = dict(enumerate(share(np.arange(9), 4, 3, np.random.default_rng(7), WIDE)))
    for other in (shares[1][:-1], shares[1].astype(NARROW.word)):
        with pytest.raises(CryptoError, match="the same length and type"):
            rebuild({**shares, 1: other}, 3)


@BOTH
def test_holders_beyond_the_prime_are_refused_whoever_names_them(field: Field) -> None:
    """Their points would be those of other holders, or that of the secret."""
    shares = dict(enumerate(share(np.arange(9), 3, 3, np.random.default_rng(7), field)))
    for holder in (field.prime - 1, field.prime, -1):
        with pytest.raises(CryptoError, match="holders are numbered 0 to"):
            rebuild({0: shares[0], 1: shares[1], holder: shares[2]}, 3)


def test_more_holders_than_points_are_refused() -> None:
    with pytest.raises(CryptoError, match="at most 65520"):
        share(np.arange(1), NARROW.prime, 2, np.random.default_rng(7), NARROW)


def test_words_of_no_field_are_refused() -> None:
    with pytest.raises(CryptoError, match="uint16 or uint32, got int64"):
        add([np.arange(9), np.arange(9)])


def test_a_hundred_small_secrets_sum_exactly_in_a_large_federation() -> None:
    rng = np.random.default_rng(8)
    secrets = [lwe.RING.secret(rng) for _ in range(100)]
    held = [add(rows) for rows in zip(*(share(secret, 100, 80, rng, NARROW) for secret in secrets), strict=True)]
    np.testing.assert_array_equal(rebuild({j: held[j] for j in range(10, 95)}, 80), np.sum(secrets, axis=0))
