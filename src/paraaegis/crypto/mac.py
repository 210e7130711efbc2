"""A linear MAC: the server adds tags as it adds values, and clients check the sum before they use it.

    tag_i = Σ_j k_j·x_ij + k_w·w_i + pad_i   mod p = 2^61 − 1

x_ij are the integers that client i sends, part by part in wire order, and w_i is its weight. Keys are fresh for each
run, round and attempt; the pad is fresh for each upload, so a tag by itself reveals nothing about values or keys.

k_j = a_l·r^b for position l in block b: one random key a_l per position in a block, and one random r for the blocks,
which are numbered through all parts.
Whoever changes a sum without knowing these keys passes the check with probability at most (blocks + 1)/p: the inner
products of a with the changes are the coefficients of a polynomial that would have to vanish at r. That is 2^-55 for
11 million values. It holds because sums outside ±(p − 1)/2 are refused first: no change inside that range is a
multiple of p.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.crypto.kdf import prf
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError
from paraaegis.fixed_point import CHUNK, slices
from paraaegis.parallel import parallel_map
from paraaegis.types import FixedPoint

PRIME = 2**61 - 1
LIMIT = (PRIME - 1) // 2
NONCE_BYTES = 16
TAG_BYTES = 8
_LOW = 2**31 - 1
_HALF = 2**32 - 1


def product(key: bytes, parts: Sequence[FixedPoint], weight: int) -> int:
    """Σ_j k_j·x_j + k_w·w mod p, a tag without its pad. Refuses values outside ±(p − 1)/2."""
    longest = max(part.size for part in parts)
    # 61 of 64 bits each; p itself, which is 0 mod p, is drawn once in 2^61.
    draws = np.frombuffer(keystream(key)(8 * (2 + min(longest, CHUNK))), dtype="<u8") >> np.uint64(3)
    for_blocks, for_weight, keys = int(draws[0]), int(draws[1]), draws[2:].view(np.int64)

    def block(_: int, steps: FixedPoint) -> int:
        if steps.itemsize == 8 and not -LIMIT <= steps.min() <= steps.max() <= LIMIT:
            raise CryptoError(f"values must lie within ±{LIMIT}, got {steps.min()} to {steps.max()}")
        return _dot(keys[: steps.size], steps)

    total = 0
    blocks = [part[span] for part in parts for span in slices(part.size)]
    for inner in reversed(parallel_map(block, blocks)):
        total = (total * for_blocks + inner) % PRIME
    return (total + for_weight * weight) % PRIME


@cache
def warm() -> None:
    """Load the compiled loop ahead of use, which takes half a second in a new process."""
    for kind in (np.int32, np.int64):
        _dot(np.zeros(1, np.int64), np.zeros(1, kind))


def pad(key: bytes, client: str, nonce: bytes, context: bytes) -> int:
    """The pad of one upload, pseudorandom for each client, nonce and context."""
    return int.from_bytes(prf(key, client.encode(), nonce, context), "little") % PRIME


def new_nonce() -> bytes:
    """A random nonce for one upload."""
    return secrets.token_bytes(NONCE_BYTES)


def pack_tag(tag: int) -> bytes:
    """A tag in its wire format."""
    return (tag % PRIME).to_bytes(TAG_BYTES, "little")


def add_tags(tags: Iterable[bytes]) -> bytes:
    """The sum of tags, which the server computes without a key. Empty if the uploads carry none."""
    whole = list(tags)
    return pack_tag(sum(int.from_bytes(tag, "little") for tag in whole)) if any(whole) else b""


def _dot(keys: NDArray[np.int64], steps: FixedPoint) -> int:
    """Σ keys·steps mod p."""
    low, low_carry, middle, middle_carry, high, high_carry = compiled(_sums)(keys, steps)
    parts = (low + (low_carry << 32), middle + (middle_carry << 32), high + (high_carry << 32))
    return int(sum(part << (31 * index) for index, part in enumerate(parts)) % PRIME)


def _sums(keys: Any, steps: Any) -> Any:
    """Sums of products of 31-bit halves, each split into its low 32 bits and the rest so that nothing overflows."""
    low = low_carry = middle = middle_carry = high = high_carry = np.int64(0)
    for j in range(keys.size):
        k, x = keys[j], np.int64(steps[j])
        k_low, k_high, x_low, x_high = k & _LOW, k >> 31, x & _LOW, x >> 31
        product_low, product_middle, product_high = k_low * x_low, k_low * x_high + k_high * x_low, k_high * x_high
        low += product_low & _HALF
        low_carry += product_low >> 32
        middle += product_middle & _HALF
        middle_carry += product_middle >> 32
        high += product_high & _HALF
        high_carry += product_high >> 32
    return low, low_carry, middle, middle_carry, high, high_carry
