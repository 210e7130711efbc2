"""One chunk of a vector under RLWE: masking, unpacking and opening up to 64 polynomials, in the memory of a thread."""

from __future__ import annotations

import threading
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.kdf import derive
from paraaegis.crypto.residues import add, add_errors, encode, lift, padded, readonly, unpack
from paraaegis.crypto.ring import DEGREE, SPARE, Factors, Words, draw, fields, multiply
from paraaegis.crypto.rlwe_profiles import COEFFICIENTS, Profile, read_values, write_digits
from paraaegis.crypto.streams import SLACK, reusing
from paraaegis.types import Blob, FixedPoint

Transform: TypeAlias = tuple[Factors, ...]  # of a secret, modulo each prime


class _Space(threading.local):
    """A thread's arrays for one chunk after another: fresh memory would cost more than the arithmetic."""

    def __init__(self) -> None:
        self.products = np.empty((2, COEFFICIENTS), dtype=np.uint32)
        self.pairs = np.empty((2, COEFFICIENTS), dtype=np.uint32)
        self.digits = np.empty((2, COEFFICIENTS), dtype=np.uint32)
        self.stream = np.empty(8 * COEFFICIENTS + 4 * SPARE + SLACK, dtype=np.uint8)
        self.messages = np.empty(COEFFICIENTS, dtype=np.int64)


_space = _Space()


def products(seed: bytes, index: int, count: int, transformed: Transform) -> Words:
    """The polynomials a·s for chunk `index`, modulo both primes, not reduced, until the thread's next call.

    A chunk takes the fewest polynomials that have its `count` coefficients. Its coefficient i is number i div n of
    polynomial i mod n, where n is their number. The polynomials a are drawn as transforms, in that order, all modulo p1
    and then all modulo p2, from one AES-256-CTR stream. Its key is HKDF of the seed, bound to the chunk's index and the
    number of polynomials. See `ring.draw` and `ring.transform`.
    """
    polynomials = -(-count // DEGREE)
    size, start = polynomials * DEGREE, 0
    stream = reusing(derive(seed, "rlwe public", index, polynomials), _space.stream)
    words = readonly(np.frombuffer(stream(4 * (2 * size + SPARE)), dtype="<u4"))
    result = _space.products[:, :size]
    for values, by, field in zip(result, transformed, fields(), strict=True):
        start = draw(words, start, values, field.prime)
        multiply(values, by, field)
    return result


def mask_chunk(seed: bytes, index: int, count: int, transformed: Transform, errors: bytes) -> Words:
    """The polynomials a·s + e of chunk `index`, with errors drawn under a key, until the thread's next call."""
    result = products(seed, index, count, transformed)[:, : padded(count)]
    add_errors(reusing(errors, _space.stream), result[:, :count])
    return result


def encrypt_chunk(profile: Profile, steps: FixedPoint, masks: Words, out: NDArray[np.uint8]) -> None:
    """Add a chunk's messages to its masks and write the sums to `out`. `masks` is used as work space."""
    count = profile.coefficients(steps.size)
    low, high = _space.digits[:, :count]
    write_digits(profile, steps, low, high)
    encode(masks, low, high, profile.offset, out)


def unpacked(blob: Blob, count: int) -> Words:
    """A chunk's coefficients, until the thread's next call. Residues that are not reduced are refused."""
    unpack(blob.view, count, _space.pairs)
    return _space.pairs[:, :count]


def add_chunk(totals: Words, blob: Blob, count: int, subtract: bool = False) -> None:
    """Add a chunk's coefficients to totals, or subtract them. Residues that are not reduced are refused before that."""
    add(totals, blob.view, count, _space.pairs, subtract)


def open_chunk(profile: Profile, sums: Words, masks: Words, steps: NDArray[np.int64]) -> tuple[int, int]:
    """Write the grid steps of a chunk to `steps`; return the largest |error| and the sum of squared errors."""
    count = sums.shape[1]
    errors = lift(sums, masks[:, :count], _space.messages[:count])
    read_values(profile, _space.messages[:count], steps)
    return errors
