"""What a lying server needs: ciphertexts made without a key, in SEAL's own format, and the key read out of a model."""

from __future__ import annotations

import struct

import msgspec
import numpy as np

from paraaegis.crypto.chunks import join, key_id_of, parse
from paraaegis.crypto.ckks_seal import ChunkSecret, _load, _save, _scratch, _tools
from paraaegis.crypto.profiles import PROFILES
from paraaegis.protocol.messages import Aggregate
from paraaegis.types import Blob, Payload

PROFILE = PROFILES["precise"]
N = PROFILE.degree
SHIFT = 2**31  # what c1 is raised by: the sum then decrypts to m + 2^31·s
_SEAL_HEADER = struct.Struct("<HBBBBHQ")  # magic, header size, version 4.3, no compression, reserved, whole size


def _seal_module():
    import tenseal.sealapi as seal

    return seal


def _framed(body: bytes) -> bytes:
    return _SEAL_HEADER.pack(0xA15E, 16, 4, 3, 0, 0, 16 + len(body)) + body


def ciphertext(c0: np.ndarray, c1: np.ndarray) -> bytes:
    """A ciphertext with these polynomials, as values in SEAL's transformed form."""
    parms = struct.pack("<4Q", *_tools(PROFILE).context.first_parms_id())
    words = np.concatenate([c0, c1]).astype("<u8").tobytes()
    fields = b"\x01" + struct.pack("<QQQdQ", 2, N, 1, 2.0**PROFILE.scale_bits, 1)
    return _framed(parms + fields + _framed(struct.pack("<Q", 2 * N) + words))


def encoded(values: np.ndarray) -> np.ndarray:
    """The polynomial that encodes N values, as c0 of a ciphertext that anyone decrypts to them."""
    plain = _seal_module().Plaintext()
    _tools(PROFILE).encoder.encode(values.astype(np.float64).view(np.complex128).tolist(), 2.0**37, plain)
    return np.array([int(plain.dyn_array().at(i)) for i in range(N)], dtype=np.uint64)


def added(row: bytes, c0: np.ndarray, c1: np.ndarray) -> bytes:
    """A ciphertext with (c0, c1) added to it; no key is needed."""
    loaded = []
    with _scratch() as scratch:
        for data in (row, ciphertext(c0, c1)):
            loaded.append(_seal_module().Ciphertext())
            _load(lambda path: loaded[-1].load(_tools(PROFILE).context, path), data, scratch)
        result = _seal_module().Ciphertext()
        _tools(PROFILE).evaluator.add(*loaded, result)
        return _save(result, scratch)


def tampered(aggregate: Aggregate, which: int, c0: np.ndarray, c1: np.ndarray) -> Aggregate:
    """An aggregate with (c0, c1) added to ciphertext number `which` of its encrypted part."""
    payload = aggregate.payload
    inside = payload.parts[0] if payload.parts else payload
    chunk = inside.chunks[0]
    key = key_id_of(PROFILE, chunk.view)
    rows = [bytes(row) for row in parse(PROFILE, chunk.view, 0, inside.length, key)]
    rows[which] = added(rows[which], c0, c1)
    changed = Payload("ckks", inside.length, (Blob(join(PROFILE, key, 0, inside.length, rows)),))
    if payload.parts:
        changed = msgspec.structs.replace(payload, parts=(changed, *payload.parts[1:]))
    return msgspec.structs.replace(aggregate, payload=changed)


def key_from(values: np.ndarray) -> ChunkSecret:
    """The CKKS key, from N model values that were raised by 2^31·s / 2^37."""
    powers = [pow(3, j, 2 * N) for j in range(N // 2)]
    slots = (values.astype(np.float64) / 2.0 ** (31 - PROFILE.scale_bits)).view(np.complex128)
    whole = np.zeros(2 * N, dtype=np.complex128)
    whole[powers], whole[[2 * N - power for power in powers]] = slots, slots.conj()
    secret = np.rint(np.fft.fft(whole)[:N].real / N)
    roots = np.exp(1j * np.pi * np.array(powers) / N)
    plain = _seal_module().Plaintext()
    _tools(PROFILE).encoder.encode([complex(np.polyval(secret[::-1], root)) for root in roots], 1.0, plain)
    with _scratch() as scratch:
        return ChunkSecret(PROFILE, _save(plain, scratch))
