"""How ciphertexts travel: up to sixteen in a chunk, behind a header that names profile, key, place and counts.

Foreign, cut, damaged, reordered or mixed-up bytes are refused by name before any of them reaches SEAL. The checksum is
against accidents; authenticity is the transport's work.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from paraaegis.crypto.profiles import Profile
from paraaegis.errors import CryptoError
from paraaegis.fixed_point import chunk_counts
from paraaegis.types import Blob, Buffer

_HEADER = struct.Struct("<4sI8s8sIII")  # magic, checksum of all that follows, profile, key id, index, values, rows
_CHECKED = 8  # where that which the checksum covers begins
_MAGIC = b"PAc1"


def join(profile: Profile, key_id: bytes, index: int, count: int, saved: Sequence[bytes]) -> bytes:
    """A chunk of saved ciphertexts."""
    header = _HEADER.pack(_MAGIC, 0, profile.name.encode()[:8], key_id, index, count, len(saved))
    chunk = bytearray(b"".join([header, struct.pack(f"<{len(saved)}I", *map(len, saved)), *saved]))
    struct.pack_into("<I", chunk, 4, zlib.crc32(memoryview(chunk)[_CHECKED:]))
    return bytes(chunk)


def check_whole(data: Buffer) -> None:
    """Refuse a chunk that was damaged on its way."""
    view = memoryview(data)
    if view.nbytes < _HEADER.size:
        raise CryptoError(f"a chunk of {view.nbytes} bytes is too short for its header")
    magic, checksum, *_ = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise CryptoError("these bytes are not a chunk of ciphertexts")
    if zlib.crc32(view[_CHECKED:]) != checksum:
        raise CryptoError("a chunk of ciphertexts is cut or damaged: its checksum differs")


def key_id_of(profile: Profile, data: Buffer) -> bytes:
    """The key that a chunk claims to be under."""
    return _header(profile, memoryview(data))[1]


def parse(profile: Profile, data: Buffer, index: int, count: int, key_id: bytes) -> Iterator[memoryview]:
    """The ciphertexts' bytes of one chunk, after its header was checked against what is expected."""
    view = memoryview(data)
    came, came_key, came_count, rows = _header(profile, view)
    if (came, came_count) != (index, count):
        raise CryptoError(f"chunk {index} of {count} values expected, got chunk {came} of {came_count} values")
    if came_key != key_id:
        raise CryptoError("a chunk under another CKKS key came; all clients must hold the same federation keys")
    if rows != -(-count // profile.degree) or view.nbytes < _HEADER.size + 4 * rows:
        raise CryptoError(f"chunk {index} is cut or damaged: {rows} ciphertexts for {count} values")
    sizes = struct.unpack_from(f"<{rows}I", view, _HEADER.size)
    start = _HEADER.size + 4 * rows
    if start + sum(sizes) != view.nbytes:
        raise CryptoError(f"chunk {index} should have {start + sum(sizes)} bytes, got {view.nbytes}")
    for size in sizes:
        yield view[start : start + size]
        start += size


def paired(profile: Profile, chunks: Sequence[Blob], length: int) -> list[tuple[Blob, int]]:
    """Each chunk with the number of values that it must hold; refuses missing or surplus ones."""
    counts = chunk_counts(length, profile.chunk)
    if len(chunks) != len(counts):
        raise CryptoError(f"{length} values come in {len(counts)} chunks, got {len(chunks)}")
    return list(zip(chunks, counts, strict=True))


def _header(profile: Profile, view: memoryview) -> tuple[int, bytes, int, int]:
    """Index, key id, values and ciphertexts that a chunk claims to hold."""
    check_whole(view)
    _, _, name, key_id, index, count, rows = _HEADER.unpack_from(view)
    if name.rstrip(b"\0") != profile.name.encode()[:8]:
        raise CryptoError(f"a chunk of profile {name.rstrip(bytes(1)).decode(errors='replace')!r} came, "
                          f"expected {profile.name!r}")  # fmt: skip
    return index, key_id, count, rows
