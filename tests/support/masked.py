"""Federations under `protect.cipher = "rlwe"`, and what a server that some clients help can compute."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from attacks import step_of
from hand import Hand, ended, federation, uploads
from paraaegis.crypto import rlwe
from paraaegis.crypto.residues import pack, packed_size, unpack
from paraaegis.crypto.ring import PRIMES
from paraaegis.crypto.shamir import rebuild
from paraaegis.protocol.messages import Aggregate
from paraaegis.protocol.rows import HOLDER_BYTES, open_row, seal_row
from paraaegis.protocol.sums import public_seed
from paraaegis.types import Blob, Payload

RLWE = "protect.cipher=rlwe"
METHODS = ("ckks-fedavg", "paraaegis-feedback", "paraaegis-static")
WIDE = rlwe.PROFILES["wide"]


def masked(method="ckks-fedavg", clients=5, length=60, *settings, **more):
    """Clients without noise in the encrypted values, and their updates."""
    ratio = ("protect.ratio=0.2",) if method.startswith("paraaegis") else ()
    return federation(method, clients, length, RLWE, *ratio, *settings, **more)


def step(playing: Hand, number: int, attempt: int = 0) -> bytes:
    """A round's key, which every client has, and so whoever one of them helps."""
    silo = playing.silos["client-0"]
    return silo.first_keys(silo.root).at(number, attempt).step if attempt else step_of(playing, number)


def secret_of(playing: Hand, rows: Mapping[int, Blob], number: int = 1, attempt: int = 0) -> np.ndarray:
    """The sum of secrets that these sealed rows give, with the clients' key."""
    key = step(playing, number, attempt)
    opened = {holder: open_row(bytes(row.view), key, holder, rlwe.SECRET, rlwe.FIELD) for holder, row in rows.items()}
    return rebuild(opened, playing.parameters.quorum)


def opened(playing: Hand, payload: Payload, secret: np.ndarray, clients: int, number: int = 1, attempt: int = 0):
    """The steps of a payload under this secret; a CryptoError if it is not the right one."""
    seed = public_seed(playing.parameters.round_id(number, attempt))
    return rlwe.decrypt(WIDE, payload.chunks, payload.length, secret, seed, clients)


def steps_of(update: np.ndarray, clients: int) -> np.ndarray:
    """What one of equally weighted clients adds to a sum."""
    return np.rint(update.astype(np.float64) / clients * 2**22).astype(np.int64)


def inside(payload: Payload) -> Payload:
    """The encrypted part of a payload."""
    return payload.parts[0] if payload.kind == "parallel" else payload


def changed(aggregate: Aggregate, **fields) -> Aggregate:
    """An aggregate whose encrypted part has other fields."""
    payload = aggregate.payload
    part = msgspec.structs.replace(inside(payload), **fields)
    if payload.kind == "parallel":
        part = msgspec.structs.replace(payload, parts=(part, *payload.parts[1:]))
    return msgspec.structs.replace(aggregate, payload=part)


def with_rows(aggregate: Aggregate, rows: Mapping[int, Blob] | list[tuple[int, Blob]]) -> Aggregate:
    """An aggregate with other rows, as they are passed on: in front of each, the number of its holder."""
    pairs = rows.items() if isinstance(rows, Mapping) else rows
    blobs = tuple(Blob(holder.to_bytes(HOLDER_BYTES, "little") + bytes(row.view)) for holder, row in pairs)
    return changed(aggregate, parts=(Payload("shares", len(blobs), blobs),))


def sealed(playing: Hand, row: np.ndarray, holder: int, number: int = 1) -> Blob:
    """A row that a colluder seals in the name of any holder."""
    return Blob(seal_row(row.astype(rlwe.FIELD.word), step(playing, number), holder))


class Round:
    """One round whose rows a server may meddle with."""

    def __init__(self, method: str = "ckks-fedavg", clients: int = 5, **more) -> None:
        self.playing, self.updates = masked(method, clients, 60, **more)
        self.sent, self.positions = uploads(self.playing, 1)
        self.rows = self.playing.rows(1, self.sent)
        self.honest = self.playing.sum(1, self.sent, self.positions, self.first(self.playing.parameters.quorum))

    def first(self, count: int) -> dict[int, Blob]:
        return {holder: self.rows[holder] for holder in sorted(self.rows)[:count]}

    def refused_by_all(self, aggregate: Aggregate) -> bool:
        """Every client ends the run over this aggregate and has changed nothing."""
        return all(ended(self.playing, self.playing.begin(2, aggregate), name) for name in self.playing.silos)


def flipped(blob: Blob, at: int = -1) -> Blob:
    data = bytearray(blob.view)
    data[at] ^= 1
    return Blob(data)


def lifted(payload: Payload, by: int, coefficient: int = 3) -> tuple[Blob, ...]:
    """The chunks of a payload with a number added to one coefficient, modulo both primes; no key is needed."""
    count = payload.length
    pairs = np.zeros((2, 1 << 17), dtype=np.uint32)
    unpack(payload.chunks[0].view, count, pairs)
    for row, prime in zip(pairs, PRIMES, strict=True):
        row[coefficient] = (int(row[coefficient]) + by) % prime
    out = np.empty(packed_size(count), dtype=np.uint8)
    pack(pairs, count, out)
    return (Blob(out.data),)
