"""What the clients of a federation share and its server never sees, and how it lies on disk."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from paraaegis.crypto.sealing import new_pair, public_of
from paraaegis.errors import KeyFileError
from paraaegis.files import write_whole

KEY_BYTES = 32


@dataclass(frozen=True)
class FederationKeys:
    """The vote key, 32 bytes, the serialised CKKS secret key with the name of its profile, and the roster.

    The roster holds the public identity key of each client by name. It is no secret, but comes from the lead or a
    courier and never from the server: by it clients know each other.
    """

    vote: bytes = field(repr=False)
    ckks: bytes = field(repr=False)
    profile: str
    epoch: int = 1  # grows when keys or roster change; older ones are not taken back
    roster: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def ckks_id(self) -> bytes:
        """A public fingerprint of the CKKS key; empty where there is none."""
        return ckks_key_id(self.ckks) if self.ckks else b""


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    profile: str
    vote: bytes
    ckks: bytes
    epoch: int = 1
    roster: dict[str, bytes] = {}


_KIND = "paraaegis-federation-keys-1"


def derive(key: bytes, purpose: str, *parts: str | int) -> bytes:
    """HKDF-SHA256 of `key`, bound to a purpose and to every part. Parts cannot run into each other."""
    info = msgspec.msgpack.encode([purpose, *parts])
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(key)


def prf(key: bytes, *parts: bytes) -> bytes:
    """32 bytes that look random without the key: HMAC-SHA256 of the parts, which cannot run into each other."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()


def tag(key: bytes, *parts: bytes) -> bytes:
    """A 16-byte keyed fingerprint of the parts."""
    return prf(key, *parts)[:16]


def ckks_key_id(key: bytes) -> bytes:
    """The public fingerprint of a CKKS key, 8 bytes, by which chunks and silos name it."""
    return tag(key, b"ckks key id")[:8]


def new_vote_key() -> bytes:
    """A fresh vote key from the system."""
    return secrets.token_bytes(KEY_BYTES)


def save_keys(path: Path, keys: FederationKeys) -> None:
    """Write a key file that only its owner can read; whole or not at all."""
    write_secret(path, encode_keys(keys))


def encode_keys(keys: FederationKeys) -> bytes:
    """A federation's secrets as bytes, to be sealed or put into a file."""
    return msgspec.msgpack.encode(_KeyFile(_KIND, keys.profile, keys.vote, keys.ckks, keys.epoch, dict(keys.roster)))


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; whole or not at all."""
    write_whole(path, lambda file: file.write(content), mode=0o600)


def read_secret(path: Path) -> bytes:
    """Read a file with a secret; refuses one that others can read."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise KeyFileError(f"no key file at {path}: {error.strerror}; bring back a copy") from error
    if mode & 0o077:
        raise KeyFileError(f"{path} can be read by others (mode {mode:o}); run: chmod 600 {shlex.quote(str(path))}")
    return path.read_bytes()


def load_keys(path: Path) -> FederationKeys:
    """Read a key file; refuses one that others can read."""
    return decode_keys(read_secret(path), str(path))


def decode_keys(content: bytes, where: str) -> FederationKeys:
    """The secrets that `encode_keys` encoded."""
    try:
        found = msgspec.msgpack.decode(content, type=_KeyFile)
    except msgspec.DecodeError as error:
        raise KeyFileError(f"{where} is not a key file of this program, or it is damaged") from error
    if found.kind != _KIND or len(found.vote) != KEY_BYTES:
        raise KeyFileError(f"{where} holds {found.kind!r} keys, expected {_KIND!r}")
    if odd := [name for name, public in found.roster.items() if len(public) != KEY_BYTES]:
        raise KeyFileError(f"{where} should hold identity keys of {KEY_BYTES} bytes, that of {odd[0]} is another")
    return FederationKeys(found.vote, found.ckks, found.profile, found.epoch, found.roster)


def new_identity(path: Path) -> bytes:
    """Make a silo's pair; its private key goes into a file, its public key is returned."""
    private, public = new_pair()
    write_secret(path, private)
    return public


def load_identity(path: Path) -> tuple[bytes, bytes]:
    """A silo's private and public key."""
    private = read_secret(path)
    if len(private) != KEY_BYTES:
        raise KeyFileError(f"{path} should hold a private key of {KEY_BYTES} bytes, got {len(private)}")
    return private, public_of(private)
