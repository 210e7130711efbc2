"""The wire format of ciphertexts: up to sixteen per chunk, after a header with profile, key id, index and counts.

Foreign, truncated, damaged, reordered or mixed-up chunks are refused with a specific error before any byte reaches
SEAL. The checksum detects accidents; authenticity is the transport's job.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from paraaegis.crypto.profiles import Profile
from paraaegis.errors import CryptoError
from paraaegis.fixed_point import chunk_counts
from paraaegis.types import Blob, Buffer

_HEADER = struct.Struct("<4sI8s8sIII")  # magic, checksum of the rest, profile, key id, index, values, rows
_CHECKED = 8  # offset of the first byte that the checksum covers
_MAGIC = b"PAc1"


def join(profile: Profile, key_id: bytes, index: int, count: int, saved: Sequence[bytes]) -> bytes:
    """Join saved ciphertexts into one chunk."""
    header = _HEADER.pack(_MAGIC, 0, profile.name.encode()[:8], key_id, index, count, len(saved))
    chunk = bytearray(b"".join([header, struct.pack(f"<{len(saved)}I", *map(len, saved)), *saved]))
    struct.pack_into("<I", chunk, 4, zlib.crc32(memoryview(chunk)[_CHECKED:]))
    return bytes(chunk)


def check_whole(data: Buffer) -> None:
    """Refuse a chunk that was damaged in transit."""
    view = memoryview(data)
    if view.nbytes < _HEADER.size:
        raise CryptoError(f"a chunk of {view.nbytes} bytes is too short for its header")
    magic, checksum, *_ = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise CryptoError("these bytes are not a chunk of ciphertexts")
    if zlib.crc32(view[_CHECKED:]) != checksum:
        raise CryptoError("a chunk of ciphertexts is truncated or damaged: its checksum does not match")


def key_id_of(profile: Profile, data: Buffer) -> bytes:
    """The id of the key that a chunk claims to be encrypted under."""
    return _header(profile, memoryview(data))[1]


def parse(profile: Profile, data: Buffer, index: int, count: int, key_id: bytes) -> Iterator[memoryview]:
    """Check a chunk's header against the expected values, then yield the bytes of each ciphertext."""
    view = memoryview(data)
    header_index, header_key, header_count, rows = _header(profile, view)
    if (header_index, header_count) != (index, count):
        raise CryptoError(
            f"expected chunk {index} with {count} values, got chunk {header_index} with {header_count} values"
        )
    if header_key != key_id:
        raise CryptoError("got a chunk under another CKKS key; all clients must hold the same federation keys")
    if rows != -(-count // profile.degree) or view.nbytes < _HEADER.size + 4 * rows:
        raise CryptoError(f"chunk {index} is truncated or damaged: {rows} ciphertexts for {count} values")
    sizes = struct.unpack_from(f"<{rows}I", view, _HEADER.size)
    start = _HEADER.size + 4 * rows
    if start + sum(sizes) != view.nbytes:
        raise CryptoError(f"chunk {index} should have {start + sum(sizes)} bytes, got {view.nbytes}")
    for size in sizes:
        yield view[start : start + size]
        start += size


def paired(profile: Profile, chunks: Sequence[Blob], length: int) -> list[tuple[Blob, int]]:
    """Each chunk with the number of values it must hold; refuses missing or surplus chunks."""
    counts = chunk_counts(length, profile.chunk)
    if len(chunks) != len(counts):
        raise CryptoError(f"{length} values need {len(counts)} chunks, got {len(chunks)}")
    return list(zip(chunks, counts, strict=True))


def _header(profile: Profile, view: memoryview) -> tuple[int, bytes, int, int]:
    """The index, key id, number of values and number of ciphertexts in a chunk's header."""
    check_whole(view)
    _, _, name, key_id, index, count, rows = _HEADER.unpack_from(view)
    if name.rstrip(b"\0") != profile.name.encode()[:8]:
        raise CryptoError(
            f"expected a chunk of profile {profile.name!r}, got {name.rstrip(bytes(1)).decode(errors='replace')!r}"
        )
    return index, key_id, count, rows
