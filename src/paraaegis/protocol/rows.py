"""A row: one holder's share of every number of a client's secret, or the sum of several clients' shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.group_box import OVERHEAD, open_for_all, seal_for_all
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.shamir import Q
from paraaegis.errors import CryptoError

Shares: TypeAlias = NDArray[np.int64]
SHARE_BYTES = 4
HOLDER_BYTES = 2  # in front of a row that is passed on, for the number of its holder
SEALED_MORE = OVERHEAD  # bytes that a sealed row is longer


def add_rows(rows: Iterable[Shares]) -> Shares:
    """The holder's share of the sum of the clients' secrets."""
    total, *others = rows
    for row in others:
        total = (total + row) % Q
    return total


def pack_row(row: Shares) -> bytes:
    """A row in its wire format."""
    return row.astype("<u4").tobytes()


def unpack_row(packed: bytes | memoryview, size: int) -> Shares:
    """What `pack_row` packed, if it has this many numbers."""
    if len(packed) != SHARE_BYTES * size:
        raise CryptoError(f"a row of {size} shares has {SHARE_BYTES * size} bytes, got {len(packed)}")
    return np.frombuffer(packed, "<u4").astype(np.int64)


def seal_row(row: Shares, step: bytes, holder: int) -> bytes:
    """A holder's row, readable only by the clients, who have the key of its round and attempt."""
    return seal_for_all(derive(step, "sums of shares"), pack_row(row), holder.to_bytes(HOLDER_BYTES, "little"))


def open_row(sealed: bytes, step: bytes, holder: int, size: int) -> Shares:
    """What `seal_row` sealed."""
    return unpack_row(
        open_for_all(derive(step, "sums of shares"), sealed, holder.to_bytes(HOLDER_BYTES, "little")), size
    )
