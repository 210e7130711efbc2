"""A row: one holder's share of every number of a client's secret, or the sum of several clients' shares."""

from __future__ import annotations

import numpy as np

from paraaegis.crypto.group_box import OVERHEAD, open_for_all, seal_for_all
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.shamir import Field, Shares
from paraaegis.errors import CryptoError

HOLDER_BYTES = 2  # in front of a row that is passed on, for the number of its holder
SEALED_MORE = OVERHEAD  # bytes that a sealed row is longer


def row_size(size: int, field: Field) -> int:
    """The number of bytes of a row of this many shares."""
    return size * field.word.itemsize


def unpack_row(packed: bytes | memoryview, size: int, field: Field) -> Shares:
    """The row that has these bytes, if it has this many numbers."""
    if len(packed) != row_size(size, field):
        raise CryptoError(f"a row of {size} shares has {row_size(size, field)} bytes, got {len(packed)}")
    return np.frombuffer(packed, field.word)


def seal_row(row: Shares, step: bytes, holder: int) -> bytes:
    """A holder's row, readable only by the clients, who have the key of its round and attempt."""
    return seal_for_all(derive(step, "sums of shares"), row.tobytes(), holder.to_bytes(HOLDER_BYTES, "little"))


def open_row(sealed: bytes, step: bytes, holder: int, size: int, field: Field) -> Shares:
    """What `seal_row` sealed."""
    context = holder.to_bytes(HOLDER_BYTES, "little")
    return unpack_row(open_for_all(derive(step, "sums of shares"), sealed, context), size, field)
