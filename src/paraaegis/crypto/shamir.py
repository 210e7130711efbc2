"""Shamir shares over the integers modulo a prime q, one secret per polynomial.

A polynomial of degree quorum − 1 takes the secret as its value at 0; holder j gets its value at j + 1. Fewer shares
than the quorum are uniform and reveal nothing; packing several small secrets into one polynomial would not be safe.
Shares are linear: the sum of shares is a share of the sum, so clients add the shares they hold before they reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import CryptoError

Shares: TypeAlias = NDArray[np.unsignedinteger[Any]]  # in the words of their field, so that these name the field


class Field(NamedTuple):
    """A prime q, and the words that hold its residues."""

    prime: int
    word: np.dtype[Any]


NARROW = Field(65_521, np.dtype("<u2"))  # for secrets whose sum is small
WIDE = Field(2**31 - 1, np.dtype("<u4"))


def field_of(row: Shares) -> Field:
    """The field that shares are from."""
    if row.dtype not in (NARROW.word, WIDE.word):
        raise CryptoError(
            f"shares have the type {NARROW.word.name} or {WIDE.word.name}, got {row.dtype.name}; another version of "
            "paraaegis made them"
        )
    return NARROW if row.dtype == NARROW.word else WIDE


def share(secrets: NDArray[np.int64], holders: int, quorum: int, rng: np.random.Generator, field: Field) -> Shares:
    """Share `secrets` (integers, taken mod q) so that any `quorum` of `holders` rebuild them: row j is for holder j.

    `rng` must be cryptographic if the secrets matter. The first quorum − 1 rows are its uniform draws; the polynomials
    through these and the secrets give the other rows.
    """
    if not 2 <= quorum <= holders < field.prime:
        raise CryptoError(
            f"shares need a quorum of 2 or more, at most the holders, and at most {field.prime - 1} holders, got a "
            f"quorum of {quorum} and {holders} holders"
        )
    known = np.empty((quorum, secrets.size), dtype=np.int64)
    known[0] = secrets % field.prime
    known[1:] = rng.integers(0, field.prime, size=(quorum - 1, secrets.size))
    rest = _interpolate(tuple(range(quorum)), tuple(range(quorum, holders + 1)), known, field.prime)
    return np.concatenate([known[1:], rest]).astype(field.word)


def add(rows: Iterable[Shares]) -> Shares:
    """One holder's share of the sum of secrets."""
    stacked = np.stack(list(rows))
    field = field_of(stacked)
    return np.asarray(stacked.sum(axis=0, dtype=np.int64) % field.prime, dtype=field.word)


def rebuild(shares: Mapping[int, Shares], quorum: int) -> NDArray[np.int64]:
    """Rebuild the secrets, centred, from the shares of at least `quorum` holders, by row number.

    Shares beyond the quorum must lie on the same polynomials; otherwise at least one is wrong and all are refused.
    """
    holders = sorted(shares)
    if len(holders) < quorum:
        raise CryptoError(f"{quorum} shares are needed to rebuild, got {len(holders)}")
    if len({(shares[holder].shape, shares[holder].dtype) for holder in holders}) > 1:
        raise CryptoError(
            "shares must all have the same length and type, got "
            f"{[(shares[holder].size, shares[holder].dtype.name) for holder in holders]}"
        )
    prime = field_of(shares[holders[0]]).prime
    if not 0 <= holders[0] <= holders[-1] < prime - 1:  # whoever is beyond has the point of another holder
        raise CryptoError(f"holders are numbered 0 to {prime - 2}, got {holders}")
    rows = np.stack([shares[holder] for holder in holders]).astype(np.int64) % prime
    points = tuple(holder + 1 for holder in holders)
    values = _interpolate(points[:quorum], (0, *points[quorum:]), rows[:quorum], prime)
    if not np.array_equal(values[1:], rows[quorum:]):
        raise CryptoError(f"the shares of holders {holders} contradict each other; at least one is wrong")
    return centre(values[0], prime)


def centre(values: NDArray[np.int64], prime: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the residue of each value modulo q that is nearest to zero, in (−q/2, q/2)."""
    return (values + prime // 2) % prime - prime // 2


def _interpolate(
    points: tuple[int, ...], targets: tuple[int, ...], values: NDArray[np.int64], prime: int
) -> NDArray[np.int64]:
    """Evaluate, at `targets`, the polynomials that take `values` (points × columns, in [0, q)) at `points`."""
    weights = _lagrange(points, targets, prime)
    result = np.zeros((len(targets), values.shape[1]), dtype=np.int64)
    for column, row in zip(weights.T, values, strict=True):
        result += np.outer(column, row)  # below 2^62, added to a reduced sum below 2^31
        result %= prime
    return result


@lru_cache(maxsize=256)
def _lagrange(points: tuple[int, ...], targets: tuple[int, ...], prime: int) -> NDArray[np.int64]:
    """weights[i, j] = Π_{m≠j} (target_i − point_m) / (point_j − point_m) mod q; no target is a point."""
    bottoms = [prod(point - other for other in points if other != point) for point in points]
    tops = [prod(target - point for point in points) for target in targets]
    rows = [
        [top * pow(bottom * (target - point), -1, prime) % prime for point, bottom in zip(points, bottoms, strict=True)]
        for target, top in zip(targets, tops, strict=True)
    ]
    weights = np.array(rows, dtype=np.int64).reshape(len(targets), len(points))
    weights.flags.writeable = False
    return weights
