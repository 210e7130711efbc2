"""What the clients of a federation share and its server never sees, and how it lies on disk."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from paraaegis.errors import KeyFileError

KEY_BYTES = 32


@dataclass(frozen=True)
class FederationKeys:
    """The vote key, 32 bytes, and the serialised CKKS secret key with the name of its profile."""

    vote: bytes = field(repr=False)
    ckks: bytes = field(repr=False)
    profile: str

    @property
    def ckks_id(self) -> bytes:
        """A public fingerprint of the CKKS key; empty where there is none."""
        return ckks_key_id(self.ckks) if self.ckks else b""


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    profile: str
    vote: bytes
    ckks: bytes


_KIND = "paraaegis-federation-keys-1"


def derive(key: bytes, purpose: str, *parts: str | int, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 of `key`, bound to a purpose and to every part. Parts cannot run into each other."""
    info = msgspec.msgpack.encode([purpose, *parts])
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(key)


def tag(key: bytes, *parts: bytes) -> bytes:
    """A 16-byte keyed fingerprint (HMAC-SHA256) of the parts."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()[:16]


def ckks_key_id(key: bytes) -> bytes:
    """The public fingerprint of a CKKS key, 8 bytes, by which chunks and silos name it."""
    return tag(key, b"ckks key id")[:8]


def new_vote_key() -> bytes:
    """A fresh vote key from the system."""
    return secrets.token_bytes(KEY_BYTES)


def save_keys(path: Path, keys: FederationKeys) -> None:
    """Write a key file that only its owner can read; whole or not at all."""
    content = msgspec.msgpack.encode(_KeyFile(_KIND, keys.profile, keys.vote, keys.ckks))
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_keys(path: Path) -> FederationKeys:
    """Read a key file; refuses one that others can read."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise KeyFileError(f"no key file at {path}: {error.strerror}") from error
    if mode & 0o077:
        raise KeyFileError(f"{path} can be read by others (mode {mode:o}); run: chmod 600 {path}")
    try:
        content = msgspec.msgpack.decode(path.read_bytes(), type=_KeyFile)
    except msgspec.DecodeError as error:
        raise KeyFileError(f"{path} is not a key file of this program, or it is damaged") from error
    if content.kind != _KIND or len(content.vote) != KEY_BYTES:
        raise KeyFileError(f"{path} holds {content.kind!r} keys, expected {_KIND!r}")
    return FederationKeys(content.vote, content.ckks, content.profile)
