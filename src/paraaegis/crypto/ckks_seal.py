"""SEAL, one chunk at a time: symmetric, seeded ciphertexts with two reals per complex slot. Only this imports tenseal.

SEAL's own generator is never seeded by us: two encryptions of the same vector must differ.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.chunks import join, parse
from paraaegis.crypto.kdf import ckks_key_id, derive
from paraaegis.crypto.profiles import Profile
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError
from paraaegis.fixed_point import STEP
from paraaegis.types import Buffer, FixedPoint

Scratch = tuple[int, str]


@cache
def _seal() -> Any:
    """SEAL, loaded on first use: methods without CKKS skip the half second it takes."""
    import tenseal.sealapi

    return tenseal.sealapi


@dataclass(frozen=True)
class _Tools:
    context: Any
    encoder: Any
    evaluator: Any


@cache
def _tools(profile: Profile) -> _Tools:
    seal = _seal()
    parms = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    parms.set_poly_modulus_degree(profile.degree)
    parms.set_coeff_modulus(seal.CoeffModulus.Create(profile.degree, [profile.bits]))
    context = seal.SEALContext(parms, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise CryptoError(f"profile {profile.name} is not secure: {context.parameters_error_message()}")
    return _Tools(context, seal.CKKSEncoder(context), seal.Evaluator(context))


@contextmanager
def _scratch() -> Iterator[Scratch]:
    """A file that SEAL can save to and load from, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ciphertext")
        try:
            yield descriptor, f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            yield file.fileno(), file.name


def _save(item: Any, scratch: Scratch) -> bytes:
    descriptor, path = scratch
    item.save(path)
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _load(load: Callable[[str], None], data: Buffer, scratch: Scratch) -> None:
    descriptor, path = scratch
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    try:
        load(path)
    except (RuntimeError, ValueError) as error:
        raise CryptoError("these bytes are not a ciphertext or key of this profile, or they are damaged") from error


def _ciphertext(profile: Profile, data: Buffer, scratch: Scratch) -> Any:
    ciphertext = _seal().Ciphertext()
    _load(lambda path: ciphertext.load(_tools(profile).context, path), data, scratch)
    if ciphertext.size() != 2 or ciphertext.scale != 2.0**profile.scale_bits:
        raise CryptoError(f"a ciphertext's shape or scale does not match profile {profile.name!r}")
    return ciphertext


def secret_key(profile: Profile, seed: bytes) -> bytes:
    """The secret key derived from a 32-byte seed, in SEAL's file format: coefficients uniform in {−1, 0, 1}."""
    values = _transformed(profile, _ternary(seed, profile.degree))
    context = _tools(profile).context
    data = _framed(struct.pack("<Q", profile.degree) + values.astype("<u8").tobytes())
    return _framed(struct.pack("<4QQd", *context.key_parms_id(), profile.degree, 1.0) + data)


def _framed(content: bytes) -> bytes:
    """Prepend the header of a SEAL 4 file: magic number, sizes, version, no compression."""
    return struct.pack("<HBBBBHQ", 0xA15E, 16, *_seal_version(), 0, 0, 16 + len(content)) + content


@cache
def _seal_version() -> tuple[int, int]:
    """The version that SEAL writes into its files and requires when it reads one."""
    with _scratch() as scratch:
        saved = _save(_seal().Plaintext("1"), scratch)
    return saved[3], saved[4]


def _ternary(seed: bytes, count: int) -> FixedPoint:
    """Numbers uniform in {−1, 0, 1}: key stream bytes modulo 3, with 255 rejected to avoid bias."""
    stream, drawn = keystream(derive(seed, "ternary")), np.empty(0, np.uint8)
    while drawn.size < count:
        fresh = np.frombuffer(stream(count), np.uint8)
        drawn = np.concatenate([drawn, fresh[fresh < 255]])
    return drawn[:count].astype(np.int64) % 3 - 1


def _transformed(profile: Profile, coefficients: FixedPoint) -> FixedPoint:
    """The number-theoretic transform in which SEAL stores keys: values at odd powers of the smallest primitive root."""
    modulus, roots = _roots(profile)
    values = (coefficients % modulus).astype(object)  # Python integers: a product has 108 bits
    blocks = 1
    while blocks < profile.degree:
        low, high = np.split(values.reshape(blocks, -1), 2, axis=1)
        high = high * roots[blocks : 2 * blocks, None] % modulus
        values = np.concatenate([(low + high) % modulus, (low - high) % modulus], axis=1)
        blocks *= 2
    return values.reshape(-1).astype(np.int64)


@cache
def _roots(profile: Profile) -> tuple[int, NDArray[Any]]:
    """The modulus, and the powers of its smallest primitive root of order 2·degree, in bit-reversed order."""
    modulus = int(_tools(profile).context.key_context_data().parms().coeff_modulus()[0].value())
    order, bits = 2 * profile.degree, profile.degree.bit_length() - 1
    candidates = (pow(base, (modulus - 1) // order, modulus) for base in range(2, modulus))
    root = next(candidate for candidate in candidates if pow(candidate, order // 2, modulus) == modulus - 1)
    root = min(pow(root, odd, modulus) for odd in range(1, order, 2))
    powers = [pow(root, int(f"{index:0{bits}b}"[::-1], 2), modulus) for index in range(profile.degree)]
    return modulus, np.array(powers, dtype=object)


class ChunkSecret:
    """Encrypts and decrypts chunks."""

    def __init__(self, profile: Profile, key: bytes) -> None:
        self.profile = profile
        self.id = ckks_key_id(key)
        tools, secret = _tools(profile), _seal().SecretKey()
        with _scratch() as scratch:
            _load(lambda path: secret.load(tools.context, path), key, scratch)
        self._encryptor = _seal().Encryptor(tools.context, secret)
        self._decryptor = _seal().Decryptor(tools.context, secret)

    def encrypt(self, index: int, steps: FixedPoint) -> bytes:
        """Encrypt these grid steps as chunk number `index`."""
        tools, degree = _tools(self.profile), self.profile.degree
        values = np.zeros(-(-steps.size // degree) * degree)
        np.multiply(steps, STEP, out=values[: steps.size])
        plain, saved = _seal().Plaintext(), []
        with _scratch() as scratch:
            for row in values.reshape(-1, degree).view(np.complex128):
                tools.encoder.encode(row.tolist(), 2.0**self.profile.scale_bits, plain)
                saved.append(_save(self._encryptor.encrypt_symmetric(plain), scratch))
        return join(self.profile, self.id, index, steps.size, saved)

    def decrypt(self, index: int, data: Buffer, count: int) -> FixedPoint:
        """Decrypt chunk number `index` to its `count` grid steps."""
        tools, plain, rows = _tools(self.profile), _seal().Plaintext(), []
        with _scratch() as scratch:
            for saved in parse(self.profile, data, index, count, self.id):
                self._decryptor.decrypt(_ciphertext(self.profile, saved, scratch), plain)
                rows.append(tools.encoder.decode_complex(plain))
        values = np.array(rows, dtype=np.complex128).view(np.float64).reshape(-1)[:count]
        values /= self.profile.step
        return np.rint(values, out=values).astype(np.int64) * self.profile.unit


class ChunkSums:
    """Running sums of chunks, by index. Holds no key."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._sums: dict[int, list[Any]] = {}

    def merge(self, index: int, data: Buffer, count: int, key_id: bytes, subtract: bool = False) -> None:
        """Add a chunk to its sum or subtract it: all of its ciphertexts or, with an error, none."""
        with _scratch() as scratch:
            parsed = parse(self.profile, data, index, count, key_id)
            loaded = [_ciphertext(self.profile, saved, scratch) for saved in parsed]
        if index not in self._sums:
            self._sums[index] = loaded
            return
        evaluator, merged = _tools(self.profile).evaluator, [_seal().Ciphertext() for _ in loaded]
        operation = evaluator.sub if subtract else evaluator.add
        try:
            for total, ciphertext, result in zip(self._sums[index], loaded, merged, strict=True):
                operation(total, ciphertext, result)
        except (RuntimeError, ValueError) as error:  # for example if the sum would be zero
            raise CryptoError(f"chunk {index} cannot be added: {error}") from error
        self._sums[index] = merged

    def close(self, index: int, count: int, key_id: bytes) -> bytes:
        """The sum's chunk number `index`; its ciphertexts are freed."""
        with _scratch() as scratch:
            saved = [_save(ciphertext, scratch) for ciphertext in self._sums.pop(index)]
        return join(self.profile, key_id, index, count, saved)
