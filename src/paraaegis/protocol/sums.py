"""The server's half of every method: one running sum, built from public parameters alone.

It cannot hold a key, because none of its types has a field for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto import lwe, rlwe, sealed_box
from paraaegis.crypto.ckks import CipherSum, Profile
from paraaegis.crypto.pool import Pool
from paraaegis.crypto.shamir import Field, rebuild
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.fixed_point import LIMIT, LIMIT_STEPS, iterate_fixed_point, pack_fixed_point
from paraaegis.parallel import parallel_map
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.rows import HOLDER_BYTES, SEALED_MORE, row_size, unpack_row
from paraaegis.types import Blob, FixedPoint, Payload

ROWS = "shares"  # the kind of payload with what opens a sum


class Sum(Protocol):
    """One running sum; the uploads in it are not kept."""

    row_bytes: int = 0  # size of a client's sum of shares, if such rows open the sum; see shares.py
    share_bytes: int = 0  # size of a share as it is sealed to a fellow member

    opened: FixedPoint | None = None  # the summed steps, if the server opened them, of the update or its elected part

    def add(self, upload: Payload) -> None:
        """Add one client's upload: all of it or, with an error, none."""

    def remove(self, upload: Payload) -> None:
        """Subtract an upload that was added."""

    def open(self, rows: Mapping[int, Blob], quorum: int, clients: int) -> None:
        """Take what opens a sum over this many clients: their sums of shares, by holder; a `quorum` is enough."""
        raise ProtocolError(
            f"a {type(self).__name__} needs no shares to be opened, got {len(rows)} rows, {quorum=}, {clients=}"
        )

    def close(self) -> Payload:
        """The sum; the object cannot be used afterwards."""


@dataclass(frozen=True)
class ServerHalf:
    """The server's side of a method: whether clients vote, and how to start a sum for a round with k elected values."""

    votes: bool
    new_sum: Callable[[RoundId, int], Sum]
    keyed: bool = True  # whether its clients share keys and authenticate what they send


class FixedPointSum(Sum):
    """A sum of integers in the clear; `kind` is the kind of payload that it accepts."""

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


class MatrixSum(FixedPointSum):
    """A sum of values masked by learning with errors in matrix form; the sum of the masks' secrets opens it."""

    row_bytes = row_size(lwe.MATRIX.size, lwe.MATRIX.field)
    share_bytes = row_bytes + sealed_box.OVERHEAD

    def __init__(self, length: int, round_id: RoundId) -> None:
        super().__init__(length, "lwe")
        self._seed = public_seed(round_id)

    def open(self, rows: Mapping[int, Blob], quorum: int, clients: int) -> None:
        """See Sum: rebuild the sum of the clients' secrets and remove its mask."""
        secret = _secret_sum(rows, lwe.MATRIX.size, lwe.MATRIX.field, quorum)
        self.values = lwe.unmask(self.values, lwe.MATRIX, self._seed, secret, clients)


def public_seed(round_id: RoundId) -> bytes:
    """The seed of the public numbers of a round and attempt: anyone can compute it, nobody chose it."""
    return lwe.public_seed(round_id.run, round_id.number, round_id.attempt)


class HiddenSum(Sum):
    """A sum of chunks that the server cannot read; `kind` is the kind of payload."""

    kind: ClassVar[str]
    _sum: CipherSum | rlwe.RlweSum

    def add(self, upload: Payload) -> None:
        """See Sum."""
        self._check(upload)
        self._sum.add(upload.chunks)

    def remove(self, upload: Payload) -> None:
        """See Sum."""
        self._check(upload)
        self._sum.subtract(upload.chunks)

    def _check(self, upload: Payload) -> None:
        expect_kind(upload, self.kind)
        expect_length(upload, self._sum.length)


class CkksSum(HiddenSum):
    """A sum of ciphertexts."""

    kind = "ckks"

    def __init__(self, profile: Profile, length: int, pool: Pool | None = None) -> None:
        self._sum = CipherSum(profile, length, pool)

    def close(self) -> Payload:
        """See Sum."""
        return Payload(self.kind, self._sum.length, self._sum.close())


class RlweSum(HiddenSum):
    """A sum of values under one-time secrets, passed on with what opens it: sums of shares, sealed for the clients."""

    row_bytes = row_size(rlwe.SECRET, rlwe.FIELD) + SEALED_MORE
    share_bytes = row_size(rlwe.SECRET, rlwe.FIELD) + sealed_box.OVERHEAD
    kind = "rlwe"

    def __init__(self, profile: rlwe.Profile, length: int) -> None:
        self._profile, self._sum, self._rows = profile, rlwe.RlweSum(profile, length), tuple[Blob, ...]()

    def open(self, rows: Mapping[int, Blob], quorum: int, clients: int) -> None:  # noqa: ARG002
        """See Sum. The server cannot read rows, so it passes on as many as are needed."""
        if len(rows) < quorum:
            raise CryptoError(f"{quorum} sums of shares are needed to open the sum, got {len(rows)}")
        self._rows = tuple(
            Blob(holder.to_bytes(HOLDER_BYTES, "little") + bytes(rows[holder].view)) for holder in sorted(rows)[:quorum]
        )

    def close(self) -> Payload:
        """See Sum."""
        rows = Payload(ROWS, len(self._rows), self._rows)
        return Payload(self.kind, self._sum.length, self._sum.close(), (rows,))


class OpenedRlweSum(RlweSum):
    """The same, opened by the server: it gets the sums of shares in the clear."""

    row_bytes = row_size(rlwe.SECRET, rlwe.FIELD)

    def __init__(self, profile: rlwe.Profile, length: int, round_id: RoundId) -> None:
        super().__init__(profile, length)
        self._seed = public_seed(round_id)

    def open(self, rows: Mapping[int, Blob], quorum: int, clients: int) -> None:
        """See Sum: rebuild the sum of the clients' secrets and open the sum."""
        secret, length = _secret_sum(rows, rlwe.SECRET, rlwe.FIELD, quorum), self._sum.length
        self.opened = rlwe.decrypt(self._profile, self._sum.close(), length, secret, self._seed, clients)

    def close(self) -> Payload:
        """See Sum."""
        if self.opened is None:
            raise ProtocolError("a sum is passed on once it is open, and this one is not")
        return Payload("grid", self._sum.length, pack_fixed_point(self.opened))


class RingSum(HiddenSum):
    """A sum of values masked by learning with errors in ring form; the server opens it like a `MatrixSum`."""

    row_bytes = row_size(lwe.RING.size, lwe.RING.field)
    share_bytes = row_bytes + sealed_box.OVERHEAD
    kind = "lwe"

    def __init__(self, length: int, round_id: RoundId) -> None:
        self._sum = rlwe.RlweSum(lwe.SHAPE, length)
        self._seed, self._values = public_seed(round_id), np.empty(0, dtype=np.int64)

    def open(self, rows: Mapping[int, Blob], quorum: int, clients: int) -> None:
        """See Sum: rebuild the sum of the clients' secrets and remove its mask."""
        secret = _secret_sum(rows, lwe.RING.size, lwe.RING.field, quorum)
        total = lwe.RING.unpack(self._sum.close(), self._sum.length)
        self._values = lwe.unmask(total, lwe.RING, self._seed, secret, clients)

    def close(self) -> Payload:
        """See Sum."""
        return Payload(self.kind, self._values.size, pack_fixed_point(self._values))


class ParallelSum(Sum):
    """The sums of both parts, always over the same clients. At most one of them needs to be opened."""

    def __init__(self, length: int, *parts: Sum) -> None:
        self._length, self._parts = length, parts
        self.row_bytes = sum(part.row_bytes for part in parts)
        self.share_bytes = sum(part.share_bytes for part in parts)

    def add(self, upload: Payload) -> None:
        """See Sum: both parts in parallel; if one is refused, the other is subtracted again."""
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

    def open(self, rows: Mapping[int, Blob], quorum: int, clients: int) -> None:
        """See Sum."""
        for part in self._parts:
            if part.row_bytes:
                part.open(rows, quorum, clients)
                self.opened = part.opened

    def _check(self, upload: Payload) -> None:
        expect_kind(upload, "parallel", len(self._parts))
        expect_length(upload, self._length)

    def close(self) -> Payload:
        """See Sum."""
        return Payload("parallel", self._length, parts=tuple(part.close() for part in self._parts))


def _secret_sum(rows: Mapping[int, Blob], size: int, field: Field, quorum: int) -> NDArray[np.int64]:
    """The sum of secrets whose shares were sent in the clear."""
    return rebuild({holder: unpack_row(row.view, size, field) for holder, row in rows.items()}, quorum)


def _refusal(_: int, pair: tuple[Sum, Payload]) -> Exception | None:
    """Add a part to its sum. Returns the error if it is refused."""
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
            f"expected a {kind!r} payload of {parts} parts, got a {payload.kind!r} payload of {len(payload.parts)}"
        )


def expect_length(payload: Payload, length: int) -> None:
    """Refuse a payload of another number of values."""
    if payload.length != length:
        raise ProtocolError(f"expected a {payload.kind!r} payload of {length} values, got {payload.length}")
