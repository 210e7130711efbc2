"""Arithmetic in Z_Q[x]/(x^2048 + 1), held to the schoolbook."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlwe_by_hand as hand
from paraaegis.crypto.ring import DEGREE, LAZY, PRIMES, ROOTS, SPARE, draw, fields, multiply, reversed_bits, transform
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError

BY_FIELD = pytest.mark.parametrize("which", [0, 1])


def transformed(polynomial, which):
    """The transform itself: what `transform` returns is divided by 2048 already."""
    words = transform(np.array(polynomial))[which].words.astype(np.int64)
    return (words * DEGREE % PRIMES[which]).astype(np.uint32)


def schoolbook(a, b):
    """Exact for small coefficients."""
    whole = np.convolve(a, b)
    return whole[:DEGREE] - np.append(whole[DEGREE:], 0)


def small(seed, peak=10**4):
    return np.random.default_rng(seed).integers(-peak, peak, DEGREE, endpoint=True)


def test_the_primes_are_the_largest_two_below_2_to_the_25_that_are_1_mod_4096():
    candidates = range(2**25 - 4095, 0, -4096)
    primes = (p for p in candidates if all(p % d for d in range(2, int(p**0.5) + 1)))
    assert (next(primes), next(primes)) == PRIMES == hand.P
    assert [pow(root, DEGREE, prime) for root, prime in zip(ROOTS, PRIMES, strict=True)] == [p - 1 for p in PRIMES]


@BY_FIELD
def test_the_roots_are_the_smallest(which):
    powers = {pow(ROOTS[which], odd, PRIMES[which]) for odd in range(1, 2 * DEGREE, 2)}
    assert len(powers) == DEGREE
    assert min(powers) == ROOTS[which] == hand.PSI[which]


@BY_FIELD
def test_a_transform_holds_values_at_odd_powers_of_the_root(which):
    polynomial, prime = small(0), PRIMES[which]
    values = transformed(polynomial, which)
    for place in (0, 1, 2, 3, 1023, 1024, 2047, 1234):
        point, value = pow(ROOTS[which], 2 * reversed_bits(place) + 1, prime), 0
        for one in reversed(polynomial.tolist()):
            value = (value * point + one) % prime
        assert int(values[place]) == value


@BY_FIELD
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.sampled_from([1, 21, 5229, 10**6]))
def test_a_product_is_the_schoolbooks(which, first, second, peak):
    a, s = small(first), small(second, peak)
    values = transformed(a, which)
    multiply(values, transform(s)[which], fields()[which])
    assert values.max() < LAZY * PRIMES[which]
    np.testing.assert_array_equal(values % PRIMES[which], schoolbook(a, s) % PRIMES[which])


@BY_FIELD
@pytest.mark.parametrize("polynomials", [2, 3, 5, 16, 31, 55, 64])
def test_interleaved_products_are_those_of_each(which, polynomials):
    by, rng = transform(small(0, 21))[which], np.random.default_rng(polynomials)
    values = rng.integers(0, PRIMES[which], (DEGREE, polynomials), dtype=np.uint32)
    alone = [np.ascontiguousarray(column) for column in values.T]
    together = values.reshape(-1).copy()
    multiply(together, by, fields()[which])
    for column, one in zip(together.reshape(DEGREE, polynomials).T, alone, strict=True):
        multiply(one, by, fields()[which])
        np.testing.assert_array_equal(column, one)


@BY_FIELD
@pytest.mark.parametrize("polynomials", [1, 64])
def test_nothing_overflows_where_sums_are_largest(which, polynomials):
    """Equal numbers throughout: all of them meet in one coefficient, and each level's sums are as large as can be."""
    prime, field = PRIMES[which], fields()[which]
    for a in (prime - 1, prime // 2, 1):
        for s in (-1, 21, prime // 2):
            values = np.full(DEGREE * polynomials, a, dtype=np.uint32)
            multiply(values, transform(np.append(s, np.zeros(DEGREE - 1, dtype=np.int64)))[which], field)
            assert values.max() < LAZY * prime
            expected = np.zeros((DEGREE, polynomials))
            expected[0] = a * s % prime  # a constant has the same value everywhere
            np.testing.assert_array_equal((values % prime).reshape(DEGREE, -1), expected)


def words_of(key, count):
    return np.frombuffer(keystream(key)(4 * count), dtype="<u4")


@BY_FIELD
def test_a_draw_is_the_documented_one(which):
    update, values = hand.stream(bytes(range(32))), np.empty(60_000, dtype=np.uint32)
    expected = hand.uniform(update, values.size, PRIMES[which])
    words = words_of(bytes(range(32)), values.size + SPARE)
    end = draw(words, 0, values, PRIMES[which])
    assert values.tolist() == expected
    assert words[end] == hand.number(update, 4)  # the next word of the stream


def test_rejected_places_take_the_next_words_in_order_until_all_fit():
    prime, bad = PRIMES[1], 2**25 - 1
    first = [5, prime, prime - 1, bad, 0, bad]  # places 1, 3 and 5 are drawn again
    second = [bad, 7, prime]  # for those, of which 1 and 5 are once more
    words = np.array([1, 2, *first, *second, bad, 9, 8, 77], dtype=np.uint32) << 7 | 127
    values = np.empty(6, dtype=np.uint32)
    assert words[draw(words, 2, values, prime)] >> 7 == 77  # and no word more
    assert values.tolist() == [5, 8, prime - 1, 7, 0, 9]
    with pytest.raises(CryptoError, match="11 words are too few to draw 6 residues; they are not random"):
        draw(words[:-2], 2, values, prime)


def test_more_rejected_places_than_are_allowed_for_are_refused():
    words = np.full(SPARE + 9, 2**32 - 1, dtype=np.uint32)
    with pytest.raises(CryptoError, match="not random"):
        draw(words, 0, np.empty(SPARE + 1, dtype=np.uint32), PRIMES[0])


@BY_FIELD
def test_drawn_numbers_are_uniform_below_the_prime(which):
    """Chi-squared over 64 classes, and nothing at p or above."""
    values = np.empty(1_000_000, dtype=np.uint32)
    draw(words_of(b"\x01" * 32, values.size + SPARE), 0, values, PRIMES[which])
    assert values.max() < PRIMES[which]
    counts = np.bincount(values.astype(np.int64) * 64 // PRIMES[which], minlength=64)
    expected = values.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * np.sqrt(2 * 63)
