"""Sorting by buckets gives what numpy's sort gives, for any length, division of the work and numbers."""

import os

import numpy as np
import pytest

from paraaegis.crypto import sorting
from paraaegis.crypto.sorting import sorted_indices
from paraaegis.crypto.streams import keystream

KEY = bytes(range(32))
LENGTHS = [0, 1, 2, 3, 7, 8, 8191, 8192, 8193, 16_385, 100_000, 2**19 - 1, 2**19, 2**19 + 1, 1_100_000]


def bits_of(length):
    return max(1, (length - 1).bit_length())


def by_numpy(octets, length, bits):
    words = (np.frombuffer(octets, dtype="<u8") << np.uint64(bits)) | np.arange(length, dtype=np.uint64)
    return np.sort(words) & np.uint64((1 << bits) - 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_indices_come_in_the_order_of_their_numbers(length):
    expected = by_numpy(keystream(KEY)(8 * length), length, bits_of(length))
    found = sorted_indices(KEY, length, bits_of(length))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bits", [13, 20, 26])
def test_more_bits_than_needed_change_the_words_and_nothing_else(bits):
    expected = by_numpy(keystream(KEY)(8 * 5000), 5000, bits)
    np.testing.assert_array_equal(sorted_indices(KEY, 5000, bits), expected)


@pytest.mark.parametrize("cores", [1, 2, 7])
def test_threads_and_the_division_of_the_work_change_nothing(monkeypatch, cores):
    expected = sorted_indices(KEY, 50_001, 16)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    for name, value in (("_SECTION", 1 << 10), ("_PIECE", 1 << 7), ("_GROUP", 3), ("_IN_BUCKET_BITS", 6)):
        monkeypatch.setattr(sorting, name, value)
        np.testing.assert_array_equal(sorted_indices(KEY, 50_001, 16), expected)


def few(seed, length):
    return np.random.default_rng(seed).choice(np.array([0, 1, 2**64 - 1, 2**40], dtype=np.uint64), length)


@pytest.mark.parametrize(
    "numbers",
    [np.zeros(700, np.uint64), np.full(700, 2**64 - 1, np.uint64), np.arange(700, dtype=np.uint64)[::-1], few(0, 700)],
    ids=["zeros", "ones", "descending", "few"],
)
def test_numbers_that_are_not_uniform_are_sorted_too_and_equal_ones_keep_their_order(monkeypatch, numbers):
    octets = numbers.tobytes()

    def stream(key, block):
        place = 16 * block

        def take(size):
            nonlocal place
            place += size
            return octets[place - size : place]

        return take

    monkeypatch.setattr(sorting, "keystream", stream)
    np.testing.assert_array_equal(sorted_indices(KEY, 700, 10), by_numpy(octets, 700, 10))


@pytest.mark.parametrize("block", [0, 1, 2, 1000])
def test_a_keystream_can_start_at_any_block(block):
    assert keystream(KEY, block)(100) == keystream(KEY)(16 * block + 100)[16 * block :]
