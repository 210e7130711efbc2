"""The server's half of every method: one running sum, built from public parameters alone.

It cannot hold a key, because none of its types has a place for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.ckks import CipherSum, Profile
from paraaegis.crypto.pool import Pool
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.fixed_point import LIMIT, LIMIT_STEPS, iterate_fixed_point, pack_fixed_point
from paraaegis.parallel import parallel_map
from paraaegis.types import Payload


class Sum(Protocol):
    """One running sum, never n uploads."""

    def add(self, upload: Payload) -> None:
        """Add one client's upload: all of it or, with an error, none."""

    def remove(self, upload: Payload) -> None:
        """Take back an upload that was added."""

    def close(self) -> Payload:
        """The sum; the object is spent afterwards."""


@dataclass(frozen=True)
class ServerHalf:
    """The server's side of a method: whether clients vote, and a new sum of `length` values, k of them inside.

    `shares` names the LWE form of a method that sums by secret shares; its rounds are those of lwe_round.py.
    """

    votes: bool
    open: Callable[[int, int], Sum]
    shares: str = ""
    keyed: bool = True  # whether its clients share keys and authenticate what they send


class FixedPointSum:
    """A sum of whole numbers that travel as grid steps do; `kind` tells what they are."""

    def __init__(self, length: int, kind: str = "grid") -> None:
        self.values, self._kind = np.zeros(length, dtype=np.int64), kind

    def add(self, upload: Payload) -> None:
        """See Sum."""
        self._merge(upload, np.add)

    def remove(self, upload: Payload) -> None:
        """See Sum."""
        self._merge(upload, np.subtract)

    def _merge(self, upload: Payload, operation: np.ufunc) -> None:
        expect_kind(upload, self._kind)
        expect_length(upload, self.values.size)
        chunks = list(iterate_fixed_point(upload.chunks, upload.length))
        for _, steps in chunks:  # a thousand uploads within the limit cannot overflow a sum
            if steps.itemsize == 8 and not -LIMIT_STEPS <= steps.min() <= steps.max() <= LIMIT_STEPS:
                raise ProtocolError(f"an upload's values must lie within ±{LIMIT:.0f}, got larger ones")

        def merge(_: int, chunk: tuple[slice, NDArray[np.signedinteger]]) -> None:
            span, steps = chunk
            operation(self.values[span], steps, out=self.values[span])

        parallel_map(merge, chunks)

    def close(self) -> Payload:
        """See Sum."""
        return Payload(self._kind, self.values.size, pack_fixed_point(self.values))


class CkksSum:
    """A sum of ciphertexts."""

    def __init__(self, profile: Profile, length: int, pool: Pool | None = None) -> None:
        self._sum = CipherSum(profile, length, pool)

    def add(self, upload: Payload) -> None:
        """See Sum."""
        self._check(upload)
        self._sum.add(upload.chunks)

    def remove(self, upload: Payload) -> None:
        """See Sum."""
        self._check(upload)
        self._sum.subtract(upload.chunks)

    def _check(self, upload: Payload) -> None:
        expect_kind(upload, "ckks")
        expect_length(upload, self._sum.length)

    def close(self) -> Payload:
        """See Sum."""
        return Payload("ckks", self._sum.length, self._sum.close())


class ParallelSum:
    """Sums of both parts, always over the same clients."""

    def __init__(self, length: int, *parts: Sum) -> None:
        self._length, self._parts = length, parts

    def add(self, upload: Payload) -> None:
        """See Sum: both parts at a time; where one is refused, the other is taken back."""
        self._check(upload)
        pairs = list(zip(self._parts, upload.parts, strict=True))
        errors = parallel_map(_refusal, pairs)
        if (error := next((error for error in errors if error is not None), None)) is not None:
            for (total, part), failed in zip(pairs, errors, strict=True):
                if failed is None:
                    total.remove(part)
            raise error

    def remove(self, upload: Payload) -> None:
        """See Sum."""
        self._check(upload)
        for total, part in zip(self._parts, upload.parts, strict=True):
            total.remove(part)

    def _check(self, upload: Payload) -> None:
        expect_kind(upload, "parallel", len(self._parts))
        expect_length(upload, self._length)

    def close(self) -> Payload:
        """See Sum."""
        return Payload("parallel", self._length, parts=tuple(part.close() for part in self._parts))


def _refusal(_: int, pair: tuple[Sum, Payload]) -> Exception | None:
    """Add a part to its sum; why it is refused, if it is."""
    total, part = pair
    try:
        total.add(part)
    except (CryptoError, ProtocolError) as error:
        return error
    return None


def expect_kind(payload: Payload, kind: str, parts: int = 0) -> None:
    """Refuse a payload of another kind or number of parts."""
    if (payload.kind, len(payload.parts)) != (kind, parts):
        raise ProtocolError(
            f"a {kind!r} payload of {parts} parts was expected, got {payload.kind!r} of {len(payload.parts)}"
        )


def expect_length(payload: Payload, length: int) -> None:
    """Refuse a payload of another number of values."""
    if payload.length != length:
        raise ProtocolError(f"a {payload.kind!r} payload of {length} values was expected, got {payload.length}")
