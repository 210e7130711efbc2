"""AES-counter streams: the same bytes for everyone who holds the key, and generators for noise and secrets."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from randomgen import AESCounter

SLACK = 15  # bytes that a cipher wants beyond its output


def keystream(key: bytes, block: int = 0) -> Callable[[int], bytes]:
    """A function that returns the next `size` bytes of standard AES-256-CTR under a 32-byte key.

    The bytes do not depend on the version of any library. They start at block number `block`, of 16 bytes.
    """
    cipher = _cipher(key, block)
    return lambda size: cipher.update(bytes(size))


def reusing(key: bytes, memory: NDArray[np.uint8]) -> Callable[[int], memoryview]:
    """Like `keystream`, but every result is in the same memory, and valid until the next one.

    Fresh memory for each would take longer than the cipher. `memory` needs `SLACK` bytes more than a result.
    """
    cipher, room = _cipher(key), memory.data

    def take(size: int) -> memoryview:
        cipher.update_into(_zeros(memory.size)[:size], room[: size + SLACK])
        return room[:size]

    return take


def _cipher(key: bytes, block: int = 0) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(16, "big"))).encryptor()


@cache
def _zeros(size: int) -> memoryview:
    return memoryview(bytes(size))


def keyed(key: bytes) -> np.random.Generator:
    """A generator under a 16-byte key: the same key gives the same draws."""
    if len(key) != 16:
        raise ValueError(f"an AES-counter key has 16 bytes, got {len(key)}")
    # `key=` sets the cipher's key directly; `seed=` would pass it through a generator that is not cryptographic.
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def branches(rng: np.random.Generator) -> Callable[[int], np.random.Generator]:
    """Generators by number whose streams do not overlap, keyed by the next 16 bytes of `rng`; for use in threads."""
    trunk = AESCounter(key=int.from_bytes(rng.bytes(16), "little"))
    return lambda index: np.random.Generator(trunk.jumped(index))  # a jump is 2^64 blocks


def system() -> np.random.Generator:
    """A generator seeded by the system, which nobody can replay; for noise in deployment."""
    return keyed(secrets.token_bytes(16))
