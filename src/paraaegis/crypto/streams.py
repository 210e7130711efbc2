"""AES-counter streams: bytes that all who hold a key draw alike, and generators for noise and secrets."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from randomgen import AESCounter


def keystream(key: bytes) -> Callable[[int], bytes]:
    """The next so many bytes of standard AES-256-CTR under a 32-byte key: the same with any version of any library."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda size: cipher.update(bytes(size))


def keyed(key: bytes) -> np.random.Generator:
    """The generator of a 16-byte key: the same draws wherever the key is the same."""
    if len(key) != 16:
        raise ValueError(f"an AES-counter key has 16 bytes, got {len(key)}")
    # `key=` sets the cipher's key as it is; `seed=` would pass it through a generator that is not cryptographic.
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def branches(rng: np.random.Generator) -> Callable[[int], np.random.Generator]:
    """Generators by number that share no draw, all keyed by the next 16 bytes of `rng`; for work in several threads."""
    trunk = AESCounter(key=int.from_bytes(rng.bytes(16), "little"))
    return lambda index: np.random.Generator(trunk.jumped(index))  # a jump is 2^64 blocks


def system() -> np.random.Generator:
    """A fresh generator that nobody can replay, for noise that protects someone."""
    return keyed(secrets.token_bytes(16))
