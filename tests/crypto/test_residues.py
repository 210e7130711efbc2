"""Coefficients as pairs of residues: masks, sums, lifting and the wire format, at their extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlwe_by_hand as hand
from paraaegis.crypto.residues import (
    add,
    add_errors,
    encode,
    lift,
    pack,
    packed_size,
    padded,
    unpack,
)
from paraaegis.crypto.ring import LAZY, MODULUS, PRIMES
from paraaegis.errors import CryptoError

COUNTS = [1, 2, 3, 4, 5, 63, 64, 65, 1000, 2049]


def pairs_of(numbers):
    """Residues of integers, in arrays with room for the padding."""
    pairs = np.full((2, padded(len(numbers))), 12345, dtype=np.uint32)
    pairs[:, : len(numbers)] = [[one % prime for one in numbers] for prime in PRIMES]
    return pairs


def numbers_of(pairs, count):
    return [hand.joined(int(a), int(b)) for a, b in pairs[:, :count].T]


def some(count, seed=0):
    drawn = [int(one) for one in np.random.default_rng(seed).integers(0, MODULUS, count)]
    return [0, MODULUS - 1, PRIMES[0], PRIMES[1], PRIMES[0] - 1, PRIMES[1] - 1, 1, MODULUS // 2, *drawn][:count]


def packed_pairs(pairs, count):
    out = np.full(packed_size(count), 255, dtype=np.uint8)
    pack(pairs, count, out)
    return bytes(out)


def written(numbers):
    return packed_pairs(pairs_of(numbers), len(numbers))


@pytest.mark.parametrize("count", COUNTS)
def test_the_wire_format_is_the_documented_one(count):
    numbers = some(count)
    assert written(numbers) == hand.packed(numbers)
    assert len(written(numbers)) == -(-25 * count // 4) == packed_size(count)


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("count", COUNTS)
def test_unpacking_undoes_packing_wherever_the_bytes_lie(count, kind, shift):
    numbers, pairs = some(count), np.full((2, 4096), 77, dtype=np.uint32)
    unpack(memoryview(kind(bytes(shift) + written(numbers)))[shift:], count, pairs)
    assert numbers_of(pairs, count) == numbers
    assert (pairs[:, padded(count) :] == 77).all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("first", "second"), [(PRIMES[0], 0), (0, PRIMES[1]), (2**25 - 1, 0), (0, 2**25 - 1)])
def test_residues_that_are_not_reduced_are_refused(count, first, second):
    pairs = pairs_of([0] * count)
    pairs[:, count - 1] = first, second
    out = np.empty(packed_size(count), dtype=np.uint8)
    pack(pairs, count, out)
    with pytest.raises(CryptoError, match=r"residues below 33550337 and 33538049.*damaged or of another kind"):
        unpack(out, count, np.empty((2, 4096), dtype=np.uint32))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 2049])
def test_unused_bits_must_be_zero(count):
    for bit in range(2 * (count % 4), 8):
        octets = bytearray(written(some(count)))
        octets[-1] |= 1 << bit
        with pytest.raises(CryptoError, match="unused bits zero"):
            unpack(octets, count, np.empty((2, 4096), dtype=np.uint32))


@pytest.mark.parametrize("count", [*COUNTS, 300])
def test_sums_and_differences_are_reduced(count):
    first, second = some(count), some(count, seed=1)[::-1]
    totals, space = pairs_of(first), np.full((2, 4096), 77, dtype=np.uint32)
    totals[:, count:] = 0
    add(totals, written(second), count, space)
    assert numbers_of(totals, count) == [(a + b) % MODULUS for a, b in zip(first, second, strict=True)]
    add(totals, written(second), count, space, subtract=True)
    assert numbers_of(totals, count) == first
    assert (totals < np.array(PRIMES)[:, None]).all()
    assert not totals[:, count:].any()
    assert (space[:, padded(count) :] == 77).all()


def test_zero_can_be_subtracted_from_zero():
    totals = np.zeros((2, 8), dtype=np.uint32)
    add(totals, written([0] * 5), 5, np.empty((2, 8), dtype=np.uint32), subtract=True)
    assert not totals.any()


@pytest.mark.parametrize("subtract", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 2049])
def test_a_refused_addition_changes_nothing(count, subtract):
    totals = pairs_of(some(count))
    before, octets = totals.copy(), bytearray(written(some(count, seed=1)))
    octets[-1] |= 128  # an unused bit
    with pytest.raises(CryptoError, match="unused bits zero"):
        add(totals, octets, count, np.empty((2, 4096), dtype=np.uint32), subtract)
    for prime in PRIMES:
        bad = pairs_of(some(count))
        bad[PRIMES.index(prime), count - 1] = prime
        with pytest.raises(CryptoError, match=f"got residues up to .*{prime}"):
            add(totals, packed_pairs(bad, count), count, np.empty((2, 4096), dtype=np.uint32), subtract)
    np.testing.assert_array_equal(totals, before)


EXTREME = st.tuples(
    *(st.sampled_from([0, prime - 1, prime, LAZY * prime - 1]) | st.integers(0, LAZY * prime - 1) for prime in PRIMES)
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            EXTREME,
            st.sampled_from([0, 2**30 + 2**10 - 1]) | st.integers(0, 2**30 + 2**10 - 1),
            st.sampled_from([0, 2**20 - 1]) | st.integers(0, 2**20 - 1),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0, 2**49 + 21, 2**49 + 2**29 + 21]),
)
def test_a_masked_message_is_what_integers_give(drawn, offset):
    products = np.array([product for product, _, _ in drawn], dtype=np.uint32).T.copy()
    low, high = (np.array([each[i] for each in drawn], dtype=np.uint32) for i in (1, 2))
    added = [int(a) + 2**30 * int(b) - offset for a, b in zip(low, high, strict=True)]
    rows = zip(PRIMES, products.tolist(), strict=True)
    expected = [[(x + one) % p for x, one in zip(row, added, strict=True)] for p, row in rows]
    out = np.empty(packed_size(low.size), dtype=np.uint8)
    encode(np.pad(products, ((0, 0), (0, padded(low.size) - low.size))), low, high, offset, out)
    unpack(out, low.size, pairs := np.empty((2, padded(low.size)), dtype=np.uint32))
    assert pairs[:, : low.size].tolist() == expected


@settings(deadline=None)
@given(
    st.lists(st.tuples(EXTREME, st.integers(-(MODULUS // 2), MODULUS // 2)), min_size=1, max_size=40),
    st.sampled_from([0, MODULUS // 2, -(MODULUS // 2), 511, 512, -512, -513]),
)
def test_lifting_splits_the_centred_difference_into_message_and_error(drawn, first):
    wholes = [first, *(whole for _, whole in drawn)]
    products = np.array([[0, 0], *(product for product, _ in drawn)], dtype=np.uint32).T.copy()
    rows = zip(PRIMES, products.tolist(), strict=True)
    sums = np.array([[(w + x) % p for w, x in zip(wholes, row, strict=True)] for p, row in rows], dtype=np.uint32)
    messages = np.empty(len(wholes), dtype=np.int64)
    worst, squares = lift(sums, products, messages)
    errors = [(whole + 512) % 1024 - 512 for whole in wholes]
    assert messages.tolist() == [(whole - error) // 1024 for whole, error in zip(wholes, errors, strict=True)]
    assert (worst, squares) == (max(map(abs, errors)), sum(error**2 for error in errors))


def test_an_error_counts_the_ones_of_42_bits():
    words = [0, 2**42 - 1, 2**64 - 1, 2**42, 2**64 - 2**42, 1, 0x5555555555555555, 0x3123456789ABCDEF]
    octets, pairs = b"".join(word.to_bytes(8, "little") for word in words), pairs_of([1000] * len(words))
    add_errors(lambda size: octets[:size], pairs)
    assert pairs.tolist() == [[1000 + bin(word % 2**42).count("1") for word in words]] * 2
