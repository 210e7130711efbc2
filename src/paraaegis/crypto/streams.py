"""AES-counter generators: one keyed, for what clients must draw alike; one from the system, for secrets."""

from __future__ import annotations

import secrets

import numpy as np
from randomgen import AESCounter


def keyed(key: bytes) -> np.random.Generator:
    """The generator of a 16-byte key: the same draws wherever the key is the same."""
    if len(key) != 16:
        raise ValueError(f"an AES-counter key has 16 bytes, got {len(key)}")
    # `key=` sets the cipher's key as it is; `seed=` would pass it through a generator that is not cryptographic.
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


def system() -> np.random.Generator:
    """A fresh generator that nobody can replay, for noise that protects someone."""
    return keyed(secrets.token_bytes(16))
