"""Key derivation and keyed hashes."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32


def derive(key: bytes, purpose: str, *parts: str | int) -> bytes:
    """HKDF-SHA256 of `key`, bound to a purpose and to every part. The encoding of the parts is unambiguous."""
    info = msgspec.msgpack.encode([purpose, *parts])
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(key)


def prf(key: bytes, *parts: bytes) -> bytes:
    """32 bytes that look random without the key: HMAC-SHA256 of the parts, each preceded by its length."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()


def tag(key: bytes, *parts: bytes) -> bytes:
    """A 16-byte keyed fingerprint of the parts."""
    return prf(key, *parts)[:16]


def ckks_key_id(key: bytes) -> bytes:
    """The 8-byte public fingerprint of a CKKS key, by which chunks and clients refer to it."""
    return tag(key, b"ckks key id")[:8]
