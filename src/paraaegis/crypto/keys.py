"""The secrets that a federation's clients share and its server never sees, and their file format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from paraaegis.crypto.kdf import KEY_BYTES
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import new_pair, public_of
from paraaegis.errors import KeyFileError
from paraaegis.files import locked, write_whole


@dataclass(frozen=True)
class FederationKeys:
    """The root of the next run's keys, and the roster.

    The roster maps each client's name to its public identity key. It is not secret, but it comes from the lead or a
    courier and never from the server: clients recognise each other by it.
    """

    root: Root
    epoch: int = 1  # grows when root or roster is replaced; an older epoch is never accepted again
    roster: Mapping[str, bytes] = field(default_factory=dict)


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    root: bytes
    line: bytes
    index: int
    epoch: int
    roster: dict[str, bytes]


class _Retired(msgspec.Struct):
    """A key file of an older version: one vote key and one CKKS key that never change."""

    kind: str
    epoch: int = 1
    roster: dict[str, bytes] = {}


_KIND = "paraaegis-federation-keys-2"
_RETIRED = "paraaegis-federation-keys-1"


def save_keys(path: Path, keys: FederationKeys) -> None:
    """Write a key file that only its owner can read, atomically."""
    write_secret(path, encode_keys(keys))


def encode_keys(keys: FederationKeys) -> bytes:
    """A federation's secrets as bytes, to be sealed or written to a file."""
    root = keys.root
    file = _KeyFile(_KIND, root.secret, root.line, root.index, keys.epoch, dict(keys.roster))
    return msgspec.msgpack.encode(file)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, atomically."""
    write_whole(path, lambda file: file.write(content), mode=0o600)


def read_secret(path: Path) -> bytes:
    """Read a file that holds a secret; refuses one that others can read."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise KeyFileError(f"no key file at {path}: {error.strerror}; restore it from a copy") from error
    if mode & 0o077:
        raise KeyFileError(f"{path} can be read by others (mode {mode:o}); run: chmod 600 {shlex.quote(str(path))}")
    return path.read_bytes()


def load_keys(path: Path) -> FederationKeys:
    """Read a key file; refuses one that others can read."""
    return decode_keys(read_secret(path), str(path))


def decode_keys(content: bytes, where: str) -> FederationKeys:
    """The secrets that `encode_keys` encoded."""
    if (old := _retired(content)) is not None:
        raise KeyFileError(
            f"{where} holds keys of an older version, which never change (epoch {old.epoch}). If there is a lead, run "
            "`paraaegis keys rotate` there and the others get new keys when a run starts; otherwise make new keys with "
            "`paraaegis keys new` and bring them to every client"
        )
    try:
        file = msgspec.msgpack.decode(content, type=_KeyFile)
    except msgspec.DecodeError as error:
        raise KeyFileError(f"{where} is not a key file of this program, or it is damaged") from error
    if file.kind != _KIND:
        raise KeyFileError(f"{where} holds {file.kind!r} keys, expected {_KIND!r}")
    if len(file.root) != KEY_BYTES or min(file.index, file.epoch) < 0:
        raise KeyFileError(
            f"{where} should hold a root of {KEY_BYTES} bytes and an index and epoch of at least 0, "
            f"got {len(file.root)} bytes, index {file.index} and epoch {file.epoch}"
        )
    if odd := [name for name, public in file.roster.items() if len(public) != KEY_BYTES]:
        raise KeyFileError(
            f"{where} should hold identity keys of {KEY_BYTES} bytes, got {len(file.roster[odd[0]])} for {odd[0]}"
        )
    return FederationKeys(Root(file.root, file.line, file.index), file.epoch, file.roster)


def epoch_and_roster(path: Path) -> tuple[int, dict[str, bytes]]:
    """The epoch and roster in a key file, from which new keys continue; also reads older versions."""
    content = read_secret(path)
    if (old := _retired(content)) is not None:
        return old.epoch, old.roster
    keys = decode_keys(content, str(path))
    return keys.epoch, dict(keys.roster)


def holds_retired(path: Path) -> bool:
    """Whether this file holds keys of an older version, which can only be replaced."""
    return _retired(read_secret(path)) is not None


def _retired(content: bytes) -> _Retired | None:
    try:
        file = msgspec.msgpack.decode(content, type=_Retired)
    except msgspec.DecodeError:
        return None
    return file if file.kind == _RETIRED else None


def spend_root(path: Path, used: Root) -> None:
    """Erase the root of a run that has begun, and any earlier one; the next root of its line takes its place."""
    with locked(path):
        keys = load_keys(path)
        if keys.root.line == used.line and keys.root.index <= used.index:
            save_keys(path, replace(keys, root=used.forward(used.index + 1)))


def new_identity(path: Path) -> bytes:
    """Make a client's key pair: write the private key to a file and return the public key."""
    private, public = new_pair()
    write_secret(path, private)
    return public


def load_identity(path: Path) -> tuple[bytes, bytes]:
    """A client's private and public key."""
    private = read_secret(path)
    if len(private) != KEY_BYTES:
        raise KeyFileError(f"{path} should hold a private key of {KEY_BYTES} bytes, got {len(private)}")
    return private, public_of(private)
