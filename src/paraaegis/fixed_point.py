"""Numbers on a grid, so that sums are exact in any order and under any protection.

A value is sent as an integer number of steps of 2^-22. Integers add exactly, and a CKKS sum decrypts and rounds to the
same integer. So the result does not depend on the engine, the order of arrival or the randomness of encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import CryptoError, UpdateError
from paraaegis.parallel import parallel_map
from paraaegis.types import Blob, FixedPoint, Vector

STEP = 2.0**-22
LIMIT = 2.0**31  # 2^53 steps: beyond that a float64 cannot represent every step
LIMIT_STEPS = round(LIMIT / STEP)
CHUNK = 1 << 18  # values in one chunk of a grid payload
_NARROW = np.iinfo(np.int32).max

Chunks = Callable[[int, slice], NDArray[np.floating]]  # the values of chunk number i, at that slice


def to_fixed_point(values: NDArray[np.floating]) -> FixedPoint:
    """Round to whole steps. Refuses values that are not finite or lie beyond ±2^31."""
    return fixed_point_of(lambda _, span: values[span], values.size)


def fixed_point_of(chunks: Chunks, length: int, factor: float = 1.0) -> FixedPoint:
    """Round `factor` times the values, given in chunks, to whole steps; on all cores, with chunks that fit in cache.

    4 bytes per step if all fit, otherwise 8.
    """
    steps: FixedPoint = np.empty(length, dtype=np.int32)
    wide: dict[int, NDArray[np.float64]] = {}

    def fill(index: int, span: slice) -> None:
        scaled = np.multiply(chunks(index, span), factor / STEP, dtype=np.float64)
        peak = max(float(scaled.max()), -float(scaled.min()))
        if not peak <= LIMIT_STEPS:  # also true for NaN
            _refuse(peak * STEP)
        np.rint(scaled, out=scaled)
        if peak > _NARROW:
            wide[index] = scaled
        else:
            steps[span] = scaled

    parallel_map(fill, slices(length))
    if wide:
        steps = steps.astype(np.int64)
        for index, scaled in wide.items():
            steps[index * CHUNK : index * CHUNK + scaled.size] = scaled
    return steps


def _refuse(peak: float) -> None:
    if not np.isfinite(peak):
        raise UpdateError("an update must be finite, got NaN or infinity; lower the learning rate or clip")
    raise UpdateError(f"an update's values must lie within ±{LIMIT:.0f}, got {peak:.3g}")


def slices(length: int, chunk: int = CHUNK) -> Iterator[slice]:
    """The slices of a vector's chunks."""
    return (slice(start, min(start + chunk, length)) for start in range(0, length, chunk))


def from_fixed_point(steps: FixedPoint, factor: float = 1.0) -> Vector:
    """`factor` times the values of whole steps, multiplied in float64 and then rounded to float32."""
    values = np.empty(steps.size, dtype=np.float32)

    def fill(_: int, span: slice) -> None:
        values[span] = np.multiply(steps[span], STEP * factor, dtype=np.float64)

    parallel_map(fill, slices(steps.size))
    return values


def pack_fixed_point(steps: FixedPoint) -> tuple[Blob, ...]:
    """Steps as little-endian bytes: 4 per value in chunks where they fit, otherwise 8."""
    return tuple(parallel_map(lambda _, span: _pack_chunk(steps[span]), slices(steps.size)))


def _pack_chunk(steps: FixedPoint) -> Blob:
    small = steps.dtype == np.int32 or max(steps.max(), -steps.min()) <= _NARROW
    return Blob(np.ascontiguousarray(steps, dtype="<i4" if small else "<i8").data)


def chunk_counts(length: int, chunk: int) -> list[int]:
    """The number of values in each chunk of a vector."""
    return [min(chunk, length - start) for start in range(0, length, chunk)]


def iterate_fixed_point(chunks: Sequence[Blob], length: int) -> Iterator[tuple[slice, NDArray[np.signedinteger]]]:
    """Each chunk's slice and steps. Missing, surplus or truncated chunks are refused before the first is yielded."""
    counts = chunk_counts(length, CHUNK)
    if len(chunks) != len(counts):
        raise CryptoError(f"{length} grid values need {len(counts)} chunks, got {len(chunks)}")
    for blob, count in zip(chunks, counts, strict=True):
        if len(blob) not in (4 * count, 8 * count):
            raise CryptoError(f"{count} grid values must have {4 * count} or {8 * count} bytes, got {len(blob)}")
    for index, (blob, count) in enumerate(zip(chunks, counts, strict=True)):
        width = "<i4" if len(blob) == 4 * count else "<i8"
        yield slice(index * CHUNK, index * CHUNK + count), np.frombuffer(blob.view, dtype=width)


def unpack_fixed_point(chunks: Sequence[Blob], length: int) -> FixedPoint:
    """The steps that `pack_fixed_point` packed, in 4 bytes each if all chunks have 4, otherwise in 8."""
    wide = any(len(blob) == 8 * count for blob, count in zip(chunks, chunk_counts(length, CHUNK), strict=False))
    steps: FixedPoint = np.empty(length, dtype=np.int64 if wide else np.int32)

    def fill(_: int, chunk: tuple[slice, NDArray[np.signedinteger]]) -> None:
        steps[chunk[0]] = chunk[1]

    parallel_map(fill, iterate_fixed_point(chunks, length))
    return steps
