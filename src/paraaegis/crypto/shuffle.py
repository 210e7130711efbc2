"""The secret order of a round: a permutation that every client can compute and the server cannot.

The server sees positions only in this order. It stands for the paper's "encrypted indices, counted as unique
ciphertexts": equal indices map to equal positions, of which a set costs less than one bit per value.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.sorting import sorted_indices
from paraaegis.crypto.streams import keystream
from paraaegis.types import Order

_MOST_INDEX_BITS = 26  # beyond 67 million values the random part would be too short
_SAMPLED = 4096  # entries of an order that its fingerprint covers


def secret_order(step: bytes, length: int) -> Order:
    """order[position] = parameter index, from the key of one round and attempt.

    Indices are sorted by a random number drawn for each, which takes a third of a shuffle's time and gives the same
    result on every machine. Number and index share a word; among d = 11 million, some 60 pairs draw equal numbers and
    keep their order.
    """
    key = derive(step, "order")
    bits = max(1, (length - 1).bit_length())
    if bits > _MOST_INDEX_BITS:
        return np.argsort(np.frombuffer(keystream(key)(8 * length), dtype="<u8"), kind="stable")
    return sorted_indices(key, length, bits)


def fingerprint(step: bytes, order: Order | None, view: bytes) -> str:
    """A keyed fingerprint, as hex, of the order (if one was drawn) and of the client's view of the round.

    Clients whose values may be aggregated have equal fingerprints; without the key it reveals nothing about either.
    """
    sample = b"" if order is None else order[:: max(1, order.size // _SAMPLED)].tobytes()
    return tag(derive(step, "fingerprint"), sample, view).hex()


def digest(array: NDArray[Any]) -> bytes:
    """A 32-byte digest of an array's exact bits, for example a model's."""
    return hashlib.sha256(np.ascontiguousarray(array).data).digest()
