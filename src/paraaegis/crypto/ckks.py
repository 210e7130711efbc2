"""CKKS sums: clients encrypt whole grid steps, a keyless server adds, clients decrypt the same integers.

Nothing is ever multiplied, so one prime is enough and there are no evaluation keys. Ciphertexts are symmetric and
seeded, which halves what goes up; two reals share one complex slot, which halves it again.
A ciphertext holds `degree` values; a chunk holds up to CIPHERTEXTS of them, behind a header that names
profile, key, place and count, so that foreign, cut or reordered bytes are refused.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.keys import tag
from paraaegis.errors import ConfigError, CryptoError, UpdateError
from paraaegis.grid import STEP, chunk_counts
from paraaegis.types import Blob, Buffer, Grid

CIPHERTEXTS = 16  # in a chunk
_HEADER = struct.Struct("<4s8s8sIII")  # magic, profile, key id, index of the chunk, values in it, ciphertexts in it
_MAGIC = b"PAc1"
_ERROR_STD = 3.2  # of SEAL's encryption error, in coefficient units
_MARGIN = 10  # standard deviations between the error and half a grid step


@dataclass(frozen=True)
class Profile:
    """Parameters of one CKKS setting; all reach 128-bit security, which SEAL checks."""

    name: str
    degree: int
    bits: int
    scale_bits: int
    step: float  # the grid that this profile carries exactly

    @property
    def reach(self) -> float:
        """The largest |value| of a normalised sum: its coefficients, up to √2 larger, must stay under q/2."""
        return float(2.0 ** (self.bits - 1 - self.scale_bits) / math.sqrt(2) * (1 - 2.0**-10))

    @property
    def max_clients(self) -> int:
        """Up to how many clients a sum comes back exactly: half a step is ten deviations of the summed error."""
        one = math.sqrt(self.degree / 2 * (_ERROR_STD**2 + 1 / 12)) / 2.0**self.scale_bits
        return int((self.step / 2 / (_MARGIN * one)) ** 2)

    @property
    def chunk(self) -> int:
        """Values in a full chunk."""
        return self.degree * CIPHERTEXTS


PROFILES = {"precise": Profile("precise", degree=4096, bits=54, scale_bits=37, step=STEP)}


def profile(name: str) -> Profile:
    """The profile of this name."""
    if name not in PROFILES:
        raise ConfigError(f"protect.profile must be one of {', '.join(PROFILES)}, got {name!r}")
    return PROFILES[name]


@cache
def _seal() -> Any:
    """SEAL, loaded by the first who needs it: half a second that plain methods do not pay."""
    import tenseal.sealapi

    return tenseal.sealapi


@dataclass(frozen=True)
class _Tools:
    context: Any
    encoder: Any
    evaluator: Any


@cache
def _tools(profile: Profile) -> _Tools:
    parms = _seal().EncryptionParameters(_seal().SCHEME_TYPE.CKKS)
    parms.set_poly_modulus_degree(profile.degree)
    parms.set_coeff_modulus(_seal().CoeffModulus.Create(profile.degree, [profile.bits]))
    context = _seal().SEALContext(parms, True, _seal().SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise CryptoError(f"profile {profile.name} is not secure: {context.parameter_error_message()}")
    return _Tools(context, _seal().CKKSEncoder(context), _seal().Evaluator(context))


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """A file that SEAL can save to and load from, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ciphertext")
        path = f"/proc/self/fd/{descriptor}"
        try:
            yield descriptor, path
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            yield file.fileno(), file.name


def _save(item: Any, scratch: tuple[int, str]) -> bytes:
    descriptor, path = scratch
    item.save(path)
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _load(load: Callable[[str], None], data: Buffer, scratch: tuple[int, str]) -> None:
    descriptor, path = scratch
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    try:
        load(path)
    except (RuntimeError, ValueError) as error:
        raise CryptoError("these bytes are not a ciphertext or key of this profile, or they are damaged") from error


def new_key(profile: Profile) -> bytes:
    """A fresh secret key, from SEAL's own generator, which is never given a seed."""
    with _scratch() as scratch:
        return _save(_seal().KeyGenerator(_tools(profile).context).secret_key(), scratch)


class Secret:
    """The client's side: encrypts its own values, decrypts sums."""

    def __init__(self, profile: Profile, key: bytes) -> None:
        self.profile = profile
        self.id = tag(key, b"ckks key id")[:8]
        tools = _tools(profile)
        secret = _seal().SecretKey()
        with _scratch() as scratch:
            _load(lambda path: secret.load(tools.context, path), key, scratch)
        self._encryptor = _seal().Encryptor(tools.context, secret)
        self._decryptor = _seal().Decryptor(tools.context, secret)

    def __repr__(self) -> str:
        return f"Secret({self.profile.name}, id={self.id.hex()})"

    def encrypt(self, steps: Grid, clients: int) -> tuple[Blob, ...]:
        """Chunks of ciphertexts of grid steps, of which up to `clients` will be summed."""
        check_reach(self.profile, steps, clients)
        size = self.profile.chunk
        starts = range(0, steps.size, size)
        return tuple(self._encrypt_chunk(i, steps[s : s + size]) for i, s in enumerate(starts))

    def _encrypt_chunk(self, index: int, steps: Grid) -> Blob:
        tools, degree = _tools(self.profile), self.profile.degree
        values = np.zeros(-(-steps.size // degree) * degree)
        np.multiply(steps, STEP, out=values[: steps.size])
        plain = _seal().Plaintext()
        saved = []
        with _scratch() as scratch:
            for row in values.reshape(-1, degree).view(np.complex128):
                tools.encoder.encode(row.tolist(), 2.0**self.profile.scale_bits, plain)
                saved.append(_save(self._encryptor.encrypt_symmetric(plain), scratch))
        return _join(self.profile, self.id, index, steps.size, saved)

    def decrypt(self, chunks: Sequence[Blob], length: int) -> Grid:
        """The grid steps of a sum of `length` values."""
        steps = np.empty(length, dtype=np.int64)
        start = 0
        for index, (blob, count) in enumerate(_pairs(self.profile, chunks, length)):
            steps[start : start + count] = self._decrypt_chunk(index, blob, count)
            start += count
        return steps

    def _decrypt_chunk(self, index: int, blob: Blob, count: int) -> NDArray[np.float64]:
        tools = _tools(self.profile)
        plain = _seal().Plaintext()
        rows = []
        with _scratch() as scratch:
            for data in _parse(self.profile, blob, index, count, self.id):
                self._decryptor.decrypt(_ciphertext(self.profile, data, scratch), plain)
                rows.append(tools.encoder.decode_complex(plain))
        values = np.array(rows, dtype=np.complex128).view(np.float64).reshape(-1)[:count]
        unit = round(self.profile.step / STEP)
        return np.rint(values / self.profile.step) * unit


class CipherSum:
    """The server's side: one running sum of ciphertexts. It holds no key."""

    def __init__(self, profile: Profile, length: int) -> None:
        self.profile, self.length = profile, length
        self._uploads = 0
        self._key_id = bytes(8)
        self._sum: list[list[Any]] = []

    def add(self, chunks: Sequence[Blob]) -> None:
        """Add one client's chunks, all or none: a bad one takes those before it back."""
        pairs = _pairs(self.profile, chunks, self.length)
        if self._uploads == 0 and pairs:
            self._key_id = _header(self.profile, pairs[0][0])[1]
        for index, (blob, count) in enumerate(pairs):
            try:
                self._merge(index, blob, count, _tools(self.profile).evaluator.add_inplace)
            except CryptoError:
                self._take_back(chunks[:index])
                raise
        self._uploads += 1

    def subtract(self, chunks: Sequence[Blob]) -> None:
        """Take back a client's chunks that were added."""
        self._uploads -= 1
        self._take_back(chunks)

    def _take_back(self, chunks: Sequence[Blob]) -> None:
        if self._uploads == 0:  # SEAL refuses a sum that would be zero; there is nothing left to keep
            self._sum.clear()
            return
        for index, (blob, count) in enumerate(zip(chunks, chunk_counts(self.length, self.profile.chunk), strict=False)):
            self._merge(index, blob, count, _tools(self.profile).evaluator.sub_inplace)

    def _merge(self, index: int, blob: Blob, count: int, operation: Callable[[Any, Any], None]) -> None:
        with _scratch() as scratch:
            parsed = _parse(self.profile, blob, index, count, self._key_id)
            loaded = [_ciphertext(self.profile, data, scratch) for data in parsed]
        if index == len(self._sum):
            self._sum.append(loaded)
        else:
            for total, one in zip(self._sum[index], loaded, strict=True):
                operation(total, one)

    def close(self) -> tuple[Blob, ...]:
        """The sum's chunks; this object is spent afterwards."""
        total, self._sum = self._sum, []
        counts = chunk_counts(self.length, self.profile.chunk)
        if len(total) != len(counts):
            raise CryptoError("a sum of no uploads has no ciphertext")
        with _scratch() as scratch:
            return tuple(
                _join(self.profile, self._key_id, index, count, [_save(one, scratch) for one in total[index]])
                for index, count in enumerate(counts)
            )


def check_reach(profile: Profile, steps: Grid, clients: int) -> None:
    """Refuse values whose sum over `clients` could wrap around the modulus, or not come back exactly."""
    if clients > profile.max_clients:
        raise UpdateError(
            f"profile {profile.name!r} sums up to {profile.max_clients} clients exactly, got {clients}; "
            "aggregate in groups or use fewer clients a round"
        )
    peak = float(np.abs(steps).max()) * STEP * clients if steps.size else 0.0
    if peak > profile.reach:
        raise UpdateError(
            f"profile {profile.name!r} carries sums within ±{profile.reach:.6g}, but {clients} clients with values "
            f"up to {peak / clients:.6g} could reach {peak:.6g}; clip the update or normalise its statistics"
        )


def _ciphertext(profile: Profile, data: Buffer, scratch: tuple[int, str]) -> Any:
    ciphertext = _seal().Ciphertext()
    _load(lambda path: ciphertext.load(_tools(profile).context, path), data, scratch)
    if ciphertext.size() != 2 or ciphertext.scale != 2.0**profile.scale_bits:
        raise CryptoError(f"a ciphertext of another shape or scale than profile {profile.name!r} makes")
    return ciphertext


def _join(profile: Profile, key_id: bytes, index: int, count: int, saved: list[bytes]) -> Blob:
    header = _HEADER.pack(_MAGIC, profile.name.encode()[:8], key_id, index, count, len(saved))
    sizes = struct.pack(f"<{len(saved)}I", *map(len, saved))
    return Blob(b"".join([header, sizes, *saved]))


def _header(profile: Profile, blob: Blob) -> tuple[int, bytes, int, int]:
    """Index, key id, values and ciphertexts that a chunk claims to hold."""
    if len(blob) < _HEADER.size:
        raise CryptoError(f"a chunk of {len(blob)} bytes is too short for its header")
    magic, name, key_id, index, count, rows = _HEADER.unpack_from(blob.view)
    if magic != _MAGIC:
        raise CryptoError("these bytes are not a chunk of ciphertexts")
    if name.rstrip(b"\0") != profile.name.encode()[:8]:
        raise CryptoError(f"a chunk of profile {name.rstrip(bytes(1))!r} came, expected {profile.name!r}")
    return index, key_id, count, rows


def _parse(profile: Profile, blob: Blob, index: int, count: int, key_id: bytes) -> Iterator[memoryview]:
    """The ciphertexts' bytes of one chunk, after its header was checked against what is expected."""
    came, came_key, came_count, rows = _header(profile, blob)
    if (came, came_count) != (index, count):
        raise CryptoError(f"chunk {index} of {count} values expected, got chunk {came} of {came_count} values")
    if came_key != key_id:
        raise CryptoError("a chunk under another CKKS key came; all clients must hold the same federation keys")
    if rows != -(-count // profile.degree) or len(blob) < _HEADER.size + 4 * rows:
        raise CryptoError(f"chunk {index} is cut or damaged: {rows} ciphertexts for {count} values")
    sizes = struct.unpack_from(f"<{rows}I", blob.view, _HEADER.size)
    start = _HEADER.size + 4 * rows
    if start + sum(sizes) != len(blob):
        raise CryptoError(f"chunk {index} should have {start + sum(sizes)} bytes, got {len(blob)}")
    for size in sizes:
        yield blob.view[start : start + size]
        start += size


def _pairs(profile: Profile, chunks: Sequence[Blob], length: int) -> list[tuple[Blob, int]]:
    counts = chunk_counts(length, profile.chunk)
    if len(chunks) != len(counts):
        raise CryptoError(f"{length} values come in {len(counts)} chunks, got {len(chunks)}")
    return list(zip(chunks, counts, strict=True))
