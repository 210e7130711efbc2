"""What the clients of a federation share and its server never sees, and how it lies on disk."""

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

    The roster holds the public identity key of each client by name. It is no secret, but comes from the lead or a
    courier and never from the server: by it clients know each other.
    """

    root: Root
    epoch: int = 1  # grows when root or roster are replaced; older ones are not taken back
    roster: Mapping[str, bytes] = field(default_factory=dict)


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    root: bytes
    line: bytes
    index: int
    epoch: int
    roster: dict[str, bytes]


class _Retired(msgspec.Struct):
    """A key file of an older version: one vote key and one CKKS key for ever."""

    kind: str
    epoch: int = 1
    roster: dict[str, bytes] = {}


_KIND = "paraaegis-federation-keys-2"
_RETIRED = "paraaegis-federation-keys-1"


def save_keys(path: Path, keys: FederationKeys) -> None:
    """Write a key file that only its owner can read; whole or not at all."""
    write_secret(path, encode_keys(keys))


def encode_keys(keys: FederationKeys) -> bytes:
    """A federation's secrets as bytes, to be sealed or put into a file."""
    root = keys.root
    file = _KeyFile(_KIND, root.secret, root.line, root.index, keys.epoch, dict(keys.roster))
    return msgspec.msgpack.encode(file)


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
    if (old := _retired(content)) is not None:
        raise KeyFileError(
            f"{where} holds keys of an older version, which never change (epoch {old.epoch}). Under a lead, the lead "
            "runs `paraaegis keys rotate` and the others get new ones when a run starts; else carry new ones to all, "
            "made by `paraaegis keys new`"
        )
    try:
        found = msgspec.msgpack.decode(content, type=_KeyFile)
    except msgspec.DecodeError as error:
        raise KeyFileError(f"{where} is not a key file of this program, or it is damaged") from error
    if found.kind != _KIND:
        raise KeyFileError(f"{where} holds {found.kind!r} keys, expected {_KIND!r}")
    if len(found.root) != KEY_BYTES or min(found.index, found.epoch) < 0:
        raise KeyFileError(
            f"{where} should hold a root of {KEY_BYTES} bytes with its index and epoch, got {len(found.root)} bytes, "
            f"{found.index} and {found.epoch}"
        )
    if odd := [name for name, public in found.roster.items() if len(public) != KEY_BYTES]:
        raise KeyFileError(
            f"{where} should hold identity keys of {KEY_BYTES} bytes, that of {odd[0]} has {len(found.roster[odd[0]])}"
        )
    return FederationKeys(Root(found.root, found.line, found.index), found.epoch, found.roster)


def epoch_and_roster(path: Path) -> tuple[int, dict[str, bytes]]:
    """What new keys take over from old ones, also from those of an older version."""
    content = read_secret(path)
    if (old := _retired(content)) is not None:
        return old.epoch, old.roster
    keys = decode_keys(content, str(path))
    return keys.epoch, dict(keys.roster)


def holds_retired(path: Path) -> bool:
    """Whether keys of an older version lie here, which only new ones can follow."""
    return _retired(read_secret(path)) is not None


def _retired(content: bytes) -> _Retired | None:
    try:
        found = msgspec.msgpack.decode(content, type=_Retired)
    except msgspec.DecodeError:
        return None
    return found if found.kind == _RETIRED else None


def spend_root(path: Path, used: Root) -> None:
    """Erase a root whose run has begun, and those before it: the next one of its line takes their place."""
    with locked(path):
        keys = load_keys(path)
        if keys.root.line == used.line and keys.root.index <= used.index:
            save_keys(path, replace(keys, root=used.forward(used.index + 1)))


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
