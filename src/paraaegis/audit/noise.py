"""Measure fresh noise: clipping over whole vectors, the standard deviation of the noise, and whether any noise repeats.

The real protector makes a few uploads of several chunks with secret noise, each of a canary of ten times the clip.
Since the audit knows the canary, it can separate the clipped canary from the noise.

norm         of the clipped canary, measured along the canary in every chunk: at most θ.
deviation    of one client's noise or, if shared, of what a quorum without its colluders adds: at least as claimed.
correlation  of any two chunks of noise over the same positions: none. The two may differ in client, round, attempt at a
             round, part of the update or position in the vector, or come from a restarted run.

Each is expressed in standard deviations of the same measurement of an honest mechanism, which is normal to a good
approximation, and rejected beyond LIMIT = 7. By chance, that has probability 2.6e-12 for a correlation and 1.3e-12 for
the others, which are one-sided. A default audit of one method takes at most 2,000 such measurements, so a false alarm
has probability below 1e-8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.audit.setup import Mechanism, audited
from paraaegis.config import Config
from paraaegis.fixed_point import CHUNK
from paraaegis.methods import method_of
from paraaegis.privacy.ledger import ELECTED

LENGTH = 3 * CHUNK
SHORT = 1 << 14  # for LWE masks in matrix form, which need 710 multiplications per value
MU = 200.0  # of the whole game: so little noise that the norm after clipping is measured to within a few percent
MOST_ROUNDS = 3
LIMIT = 7.0  # standard deviations
KINDS = ("starts", "clients", "rounds", "attempts", "parts", "chunks")  # in which two pieces of noise can differ

Rows = NDArray[np.float32]  # chunks × CHUNK


class PartCheck(msgspec.Struct, kw_only=True):
    """The worst of all uploads, for one noised part of the update."""

    part: str
    norm: float  # after clipping, in clips
    norm_limit: float
    deviation: float  # of the noise, in claimed deviations
    deviation_limit: float  # the least that is compatible with the claim


class NoiseCheck(msgspec.Struct, kw_only=True):
    """The measurements of one method's noise. `correlations`: the largest one by what the two chunks differ in."""

    uploads: int
    values: int
    parts: list[PartCheck]
    correlations: dict[str, float]  # in standard deviations of the correlation of independent noise
    correlation_limit: float = LIMIT
    passed: bool


@dataclass(frozen=True)
class Piece:
    """One part of one upload."""

    client: int
    number: int
    norm: float
    norm_limit: float
    deviation: float  # of the noise, in units of the sum
    rows: Rows  # the noise with deviation 1, zero where the part has no values
    labels: list[tuple[int, ...]]  # of the rows, in the order of KINDS


def check_noise(config: Config, rounds: int) -> NoiseCheck:
    """Measure the noise of a configuration's method, with the audit's own budget."""
    short = "lwe" in method_of(config).ciphers(config) and config.protect.lwe == "matrix"
    length = SHORT if short else LENGTH
    mechanism = Mechanism(audited(config, min(rounds, MOST_ROUNDS), MU, length), length)
    uploads = _uploads(mechanism)
    parts = [_part_check(mechanism, what, uploads) for what in mechanism.noised]
    correlations = _correlations(mechanism, uploads)
    return NoiseCheck(
        uploads=len(uploads),
        values=length,
        parts=parts,
        correlations=correlations,
        passed=all(map(as_claimed, parts)) and max(correlations.values()) <= LIMIT,
    )


def as_claimed(part: PartCheck) -> bool:
    """Whether the norm after clipping is no larger, and the noise no smaller, than claimed."""
    return part.norm <= part.norm_limit and part.deviation >= part.deviation_limit


def _uploads(mechanism: Mechanism) -> list[dict[str, Piece]]:
    """Uploads of every client in every round, then of the first client again: a second attempt, and after a restart."""
    clients, rounds = len(mechanism.names), mechanism.config.federation.rounds
    plays = [(0, index, number, 0) for index in range(clients) for number in range(1, rounds + 1)]
    uploads = [_upload(mechanism, *play) for play in [*plays, (0, 0, 1, 1)]]
    mechanism.start()
    return [*uploads, _upload(mechanism, 1, 0, 1, 0)]


def _upload(mechanism: Mechanism, start: int, client: int, number: int, attempt: int) -> dict[str, Piece]:
    """One client's upload of the canary, split by noised part."""
    steps = mechanism.steps(mechanism.protect(mechanism.canary, client, number, attempt))
    values = np.multiply(steps, mechanism.worth(number), dtype=np.float64)
    return {what: _piece(mechanism, what, values, (start, client, number, attempt)) for what in mechanism.noised}


def _piece(mechanism: Mechanism, what: str, values: NDArray[np.float64], play: tuple[int, int, int, int]) -> Piece:
    """Separate the clipped canary, which may differ by chunk, from the noise."""
    _, client, number, _ = play
    weight, clip = mechanism.weights[client], mechanism.noised[what][1].clip
    seen, direction = _rows(mechanism, what, values), _rows(mechanism, what, mechanism.directions[what])
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    along = np.einsum("ij,ij->i", seen, direction)
    noise = seen - along[:, None] * direction
    freedom = np.count_nonzero(mechanism.mask_of(what)) - along.size
    deviation = math.sqrt(float(np.square(noise).sum()) / freedom)
    return Piece(
        client=client,
        number=number,
        norm=float(np.linalg.norm(along)) / weight / clip,
        norm_limit=1 + LIMIT * deviation / weight / clip,
        deviation=deviation,
        rows=(noise / (deviation or 1.0)).astype(np.float32),
        labels=[(*play, list(mechanism.noised).index(what), chunk) for chunk in range(along.size)],
    )


def _rows(mechanism: Mechanism, what: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values of a part at the positions for which its noise was drawn, by chunk, padded with zeros."""
    mask_of = mechanism.mask_of(what)
    part = values[mask_of] if what == ELECTED else np.where(mask_of, values, 0.0)
    return np.pad(part, (0, -part.size % CHUNK)).reshape(-1, CHUNK)


def _part_check(mechanism: Mechanism, what: str, uploads: list[dict[str, Piece]]) -> PartCheck:
    pieces = [upload[what] for upload in uploads]
    worst = max(pieces, key=lambda piece: piece.norm - piece.norm_limit)
    return PartCheck(
        part=what,
        norm=worst.norm,
        norm_limit=worst.norm_limit,
        deviation=_deviation(mechanism, what, pieces),
        deviation_limit=1 - LIMIT / math.sqrt(2 * np.count_nonzero(mechanism.mask_of(what))),
    )


def _deviation(mechanism: Mechanism, what: str, pieces: list[Piece]) -> float:
    """The smallest standard deviation of the noise that protects a client, relative to the claimed one."""
    (part, noise), weights = mechanism.noised[what], mechanism.weights
    if not part.quorum:
        return min(one.deviation / (weights[one.client] * noise.sigmas[one.number - 1]) for one in pieces)
    sums = []
    for number, sigma in enumerate(noise.sigmas, start=1):  # the first attempts of the first start come first
        least = {one.client: one.deviation for one in reversed(pieces) if one.number == number}
        kept = sorted(least.values())[: part.quorum - part.colluders]
        sums.append(math.hypot(*kept) / (max(weights) * sigma))
    return min(sums)


def _correlations(mechanism: Mechanism, uploads: list[dict[str, Piece]]) -> dict[str, float]:
    """The largest correlation of two chunks of noise, by the first of KINDS in which they differ."""
    pieces = [piece for upload in uploads for piece in upload.values()]
    rows = np.concatenate([piece.rows for piece in pieces])
    labels = np.array([label for piece in pieces for label in piece.labels])
    shared = np.tile(_shared(mechanism), (len(uploads), len(uploads)))
    sizes = np.abs(rows @ rows.T) / np.sqrt(np.maximum(shared, 1))
    differs = (labels[:, None] != labels[None]).argmax(axis=2)
    np.fill_diagonal(differs, -1)
    return {kind: float(sizes[differs == i].max()) for i, kind in enumerate(KINDS) if (differs == i).any()}


def _shared(mechanism: Mechanism) -> NDArray[np.float32]:
    """How many positions any two chunks of one upload have in common."""
    ones = np.ones(mechanism.length)
    masks = np.concatenate([_rows(mechanism, what, ones) for what in mechanism.noised]).astype(np.float32)
    return masks @ masks.T
