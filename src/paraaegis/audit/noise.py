"""Measurements of fresh noise: clipping over whole vectors, the noise's deviation, and whether any noise repeats.

A few uploads of several chunks, each of a canary of ten times the clip, are made by the real protector with secret
noise. What is left of the canary and the noise itself are separated, since the audit knows the canary.

norm         of what clipping leaves, measured along the canary in every chunk: at most θ.
deviation    of one client's noise, or for shared noise of what a quorum without its colluders adds: at least the claim.
correlation  of any two chunks of noise, over the same places: none. The two may differ in their client, round, attempt
             at a round, part of the update, place in the vector, or come from a run that was started again.

All are expressed in standard deviations of the measurement of an honest mechanism, where each is normal to a good
approximation, and refused beyond LIMIT = 7. That happens by chance with probability 2.6e-12 for a correlation and
1.3e-12 for the others, one-sided. A default audit of one method measures at most 2,000 of them: a false alarm has
probability below 1e-8.
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
SHORT = 1 << 14  # for LWE masks in matrix form, which take 710 multiplications per value
MU = 200.0  # of the whole game: with so little noise the norm that clipping leaves is measured to a few percent
MOST_ROUNDS = 3
LIMIT = 7.0  # standard deviations
KINDS = ("starts", "clients", "rounds", "attempts", "parts", "chunks")  # what two pieces of noise can differ in

Rows = NDArray[np.float32]  # chunks × CHUNK


class PartCheck(msgspec.Struct, kw_only=True):
    """The least favourable of all uploads, for one noised part of the update."""

    part: str
    norm: float  # left by clipping, in clips
    norm_limit: float
    deviation: float  # of the noise, in claimed deviations
    deviation_limit: float  # the least that is compatible with the claim


class NoiseCheck(msgspec.Struct, kw_only=True):
    """What was measured of the noise of one method. `correlations`: the largest by what two chunks differ in."""

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
    """Measure the noise of a configuration's method, with a budget of its own."""
    short = "lwe" in method_of(config).ciphers and config.protect.lwe == "matrix"
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
    """Whether clipping leaves no more, and the noise is no less, than is claimed."""
    return part.norm <= part.norm_limit and part.deviation >= part.deviation_limit


def _uploads(mechanism: Mechanism) -> list[dict[str, Piece]]:
    """Every client in every round, then the first client again: at a second attempt, and after another start."""
    clients, rounds = len(mechanism.names), mechanism.config.federation.rounds
    plays = [(0, index, number, 0) for index in range(clients) for number in range(1, rounds + 1)]
    uploads = [_upload(mechanism, *play) for play in [*plays, (0, 0, 1, 1)]]
    mechanism.start()
    return [*uploads, _upload(mechanism, 1, 0, 1, 0)]


def _upload(mechanism: Mechanism, start: int, client: int, number: int, attempt: int) -> dict[str, Piece]:
    """One client's upload of the canary, taken apart."""
    steps = mechanism.steps(mechanism.protect(mechanism.canary, client, number, attempt))
    values = np.multiply(steps, mechanism.worth(number), dtype=np.float64)
    return {what: _piece(mechanism, what, values, (start, client, number, attempt)) for what in mechanism.noised}


def _piece(mechanism: Mechanism, what: str, values: NDArray[np.float64], play: tuple[int, int, int, int]) -> Piece:
    """Separate what is left of the canary, which may differ by chunk, from the noise."""
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
    """The values of a part at the places for which its noise was drawn, by chunk, filled up with zeros."""
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
    """The least deviation of the noise that protects a client, in claimed ones."""
    (part, noise), weights = mechanism.noised[what], mechanism.weights
    if not part.quorum:
        return min(one.deviation / (weights[one.client] * noise.sigmas[one.number - 1]) for one in pieces)
    sums = []
    for number, sigma in enumerate(noise.sigmas, start=1):  # the first start's first attempts come first
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
    """How many places two chunks of one upload have in common."""
    ones = np.ones(mechanism.length)
    masks = np.concatenate([_rows(mechanism, what, ones) for what in mechanism.noised]).astype(np.float32)
    return masks @ masks.T
