"""The secret order of a round: a permutation that all clients draw alike and the server cannot.

Everything that the server sees of positions is in this order. It is the paper's "encrypted indices, counted as
unique ciphertexts": equal indices meet at equal positions, at one bit an index.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.streams import keystream
from paraaegis.types import Order

_MOST_INDEX_BITS = 26  # beyond 67 million values the random part would get too short
_SAMPLED = 4096  # entries of an order that enter its fingerprint


def secret_order(step: bytes, length: int) -> Order:
    """order[position] = parameter index, by the key of one round and attempt.

    Each index draws a random number and they are sorted by it: a third of a shuffle's time, and the same on every
    machine. Number and index share a word; of d = 11 million, some 60 pairs draw equal numbers and keep their order.
    """
    draw = keystream(derive(step, "order"))
    numbers = np.frombuffer(draw(8 * length), dtype="<u8")
    bits = max(1, (length - 1).bit_length())
    if bits > _MOST_INDEX_BITS:
        return np.argsort(numbers, kind="stable")
    words = numbers << np.uint64(bits)
    words |= np.arange(length, dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << bits) - 1)
    return words.view(np.int64)


def fingerprint(step: bytes, order: Order | None, view: bytes) -> str:
    """A keyed fingerprint of the order (where one was drawn) and of what its client believes, as hex.

    Equal at every client that may be mixed with this one; without the key it tells nothing of either.
    """
    sample = b"" if order is None else order[:: max(1, order.size // _SAMPLED)].tobytes()
    return tag(derive(step, "fingerprint"), sample, view).hex()


def digest(array: NDArray[Any]) -> bytes:
    """A 32-byte digest of exact bits, as of a model."""
    return hashlib.sha256(np.ascontiguousarray(array).data).digest()
