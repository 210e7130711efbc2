"""Packed Shamir shares over the integers modulo the prime q = 2^31 − 1.

One polynomial of degree t + k − 1 carries k secrets, its values at −1 … −k; holder j has its value at j + 1.
Any t shares are uniform and say nothing; t + k rebuild everything; between the two, shares leak by degrees.
Shares are linear: the sum of shares is a share of the sum, so clients add what they hold before they answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import CryptoError

Q = 2**31 - 1


@dataclass(frozen=True)
class Packing:
    """How secrets are shared: `privacy` (t) shares say nothing, `needed` = t + `packing` (k) rebuild."""

    holders: int
    privacy: int
    packing: int

    def __post_init__(self) -> None:
        if self.privacy < 1 or self.packing < 1 or self.needed > self.holders:
            raise CryptoError(
                "shares need privacy ≥ 1, packing ≥ 1 and privacy + packing ≤ holders, "
                f"got {self.privacy}, {self.packing} and {self.holders}"
            )

    @property
    def needed(self) -> int:
        """The number of shares that rebuild the secrets."""
        return self.privacy + self.packing

    def columns(self, length: int) -> int:
        """How many values each holder gets for `length` secrets."""
        return -(-length // self.packing)


def thresholds(clients: int, quorum: int) -> Packing:
    """Choose the packing for a round of `clients` of which `quorum` suffice.

    Half of the clients learn nothing (t = ⌊clients/2⌋, so more than half, and at least 2, must join to learn
    anything), and the quorum rebuilds (t + k = quorum): the largest packing, hence the smallest shares.
    """
    if clients < 2 or not clients // 2 < quorum <= clients:
        raise CryptoError(
            "secret shares need at least 2 clients and a quorum of more than half of them, "
            f"got {clients} clients and quorum {quorum}; a quorum of {max(2, clients // 2 + 1)} is the least"
        )
    privacy = clients // 2
    return Packing(holders=clients, privacy=privacy, packing=quorum - privacy)


def share(secrets: NDArray[np.int64], packing: Packing, rng: np.random.Generator) -> NDArray[np.int64]:
    """Share `secrets` (L integers, taken mod q) in [0, q): row j, of ⌈L/k⌉ values, is for holder j.

    `rng` must be cryptographic where the secrets matter. The first t rows are its uniform draws as they come;
    the polynomial through them and the secrets gives the other rows.
    """
    k, t = packing.packing, packing.privacy
    columns = packing.columns(secrets.size)
    known = np.zeros((k + t, columns), dtype=np.int64)
    known[:k].reshape(-1)[: secrets.size] = secrets % Q
    known[k:] = rng.integers(0, Q, size=(t, columns))
    points = (*_secret_points(packing), *range(1, t + 1))
    rest = _interpolate(points, tuple(range(t + 1, packing.holders + 1)), known)
    return np.concatenate([known[k:], rest])


def rebuild(shares: Mapping[int, NDArray[np.int64]], length: int, packing: Packing) -> NDArray[np.int64]:
    """Return the `length` secrets, centred, from the shares of at least `needed` holders, by row number.

    Shares beyond the needed ones must lie on the same polynomials, else one is wrong and all are refused.
    """
    holders = sorted(shares)
    if len(holders) < packing.needed:
        raise CryptoError(f"{packing.needed} shares are needed to rebuild, got {len(holders)}")
    if holders[0] < 0 or holders[-1] >= packing.holders:
        raise CryptoError(f"holders are numbered 0 to {packing.holders - 1}, got {holders}")
    if any(shares[holder].shape != (packing.columns(length),) for holder in holders):
        shapes = {holder: shares[holder].shape for holder in holders}
        raise CryptoError(f"a share has {packing.columns(length)} values, got shapes {shapes}")
    rows = np.stack([shares[holder] for holder in holders]).astype(np.int64) % Q
    used, surplus = rows[: packing.needed], rows[packing.needed :]
    points = tuple(holder + 1 for holder in holders)
    targets = (*_secret_points(packing), *points[packing.needed :])
    found = _interpolate(points[: packing.needed], targets, used)
    if not np.array_equal(found[packing.packing :], surplus):
        raise CryptoError(f"the shares of holders {holders} contradict each other; at least one is wrong")
    return centre(found[: packing.packing].reshape(-1)[:length])


def centre(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the residues of `values` modulo q nearest to zero, in (−q/2, q/2)."""
    return (values + Q // 2) % Q - Q // 2


def _secret_points(packing: Packing) -> tuple[int, ...]:
    return tuple(-(index + 1) for index in range(packing.packing))


def _interpolate(points: tuple[int, ...], targets: tuple[int, ...], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, at `targets`, the polynomials with `values` (points × columns, in [0, q)) at `points`."""
    weights = _lagrange(points, targets)
    result = np.zeros((len(targets), values.shape[1]), dtype=np.int64)
    for column, row in zip(weights.T, values, strict=True):
        result += np.outer(column, row)  # below 2^62, plus what is left of the sum so far, below 2^31
        result %= Q
    return result


@lru_cache(maxsize=256)
def _lagrange(points: tuple[int, ...], targets: tuple[int, ...]) -> NDArray[np.int64]:
    """weights[i, j] = Π_{m≠j} (target_i − point_m) / (point_j − point_m) mod q; no target is a point."""
    bottoms = [prod(point - other for other in points if other != point) for point in points]
    tops = [prod(target - point for point in points) for target in targets]
    rows = [
        [top * pow(bottom * (target - point), -1, Q) % Q for point, bottom in zip(points, bottoms, strict=True)]
        for target, top in zip(targets, tops, strict=True)
    ]
    weights = np.array(rows, dtype=np.int64).reshape(len(targets), len(points))
    weights.flags.writeable = False
    return weights
