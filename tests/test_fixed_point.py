"""Values travel as whole steps of 2^-22."""

import numpy as np
import pytest

from paraaegis.errors import CryptoError, UpdateError
from paraaegis.fixed_point import (
    CHUNK,
    LIMIT,
    STEP,
    from_fixed_point,
    iterate_fixed_point,
    pack_fixed_point,
    to_fixed_point,
    unpack_fixed_point,
)
from paraaegis.types import Blob

INT32 = 2**31 - 1


def test_values_are_rounded_to_the_nearest_step():
    values = np.array([0.0, 0.4, 0.6, -0.6, 1.0, 7.49]) * STEP
    np.testing.assert_array_equal(to_fixed_point(values), [0, 0, 1, -1, 1, 7])


def test_steps_come_back_as_the_values_they_were():
    steps = np.array([0, 1, -1, 2**40, -(2**53), 2**53])  # exact in float32 too
    np.testing.assert_array_equal(to_fixed_point(from_fixed_point(steps)), steps)


def test_float32_values_are_rounded_in_float64():
    value = np.float32(1000.0001)  # 2^-22 is far below its own precision, and 1/STEP of it beyond float32's
    assert to_fixed_point(np.array([value])) == [round(float(value) / STEP)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(UpdateError, match="finite"):
        to_fixed_point(np.array([0.0, bad, 1.0]))


@pytest.mark.parametrize("sign", [1, -1])
def test_values_beyond_the_limit_are_refused_with_the_limit(sign):
    assert to_fixed_point(np.array([sign * LIMIT])) == [sign * 2**53]
    with pytest.raises(UpdateError, match=r"±2147483648, got 2\.15e\+09"):
        to_fixed_point(np.array([0.0, sign * (LIMIT + 1)]))


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_packing_is_lossless_for_any_length(length):
    steps = np.random.default_rng(length).integers(-(2**53), 2**53, length)
    np.testing.assert_array_equal(unpack_fixed_point(pack_fixed_point(steps), length), steps)


@pytest.mark.parametrize(
    ("step", "width"), [(0, 4), (INT32, 4), (-INT32, 4), (INT32 + 1, 8), (-INT32 - 1, 8), (2**53, 8)]
)
def test_a_chunk_takes_four_bytes_a_value_where_they_fit(step, width):
    (blob,) = pack_fixed_point(np.array([1, step]))
    assert len(blob) == 2 * width
    np.testing.assert_array_equal(unpack_fixed_point([blob], 2), [1, step])


def test_a_large_value_widens_its_own_chunk_only():
    steps = np.ones(CHUNK + 10, dtype=np.int64)
    steps[-1] = 2**40
    assert [len(blob) for blob in pack_fixed_point(steps)] == [4 * CHUNK, 8 * 10]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda chunks: chunks[:1],
        lambda chunks: [*chunks, chunks[0]],
        lambda chunks: [chunks[0], Blob(bytes(chunks[1].view)[:-1])],
        lambda chunks: [chunks[0], Blob(b"")],
        lambda chunks: [chunks[1], chunks[0]],
    ],
    ids=["missing", "surplus", "cut", "empty", "swapped"],
)
def test_wrong_chunks_are_refused_before_the_first_is_given_out(spoil):
    chunks = list(pack_fixed_point(np.arange(CHUNK + 5)))
    with pytest.raises(CryptoError, match="grid values"):
        next(iterate_fixed_point(spoil(chunks), CHUNK + 5))
