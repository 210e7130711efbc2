"""The vote: each client votes for k values, the server counts and elects k (Algorithm 1, lines 7 to 11).

Clients select by parameter index; everything after that works on positions in the round's secret order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import ProtocolError, UpdateError
from paraaegis.fixed_point import slices
from paraaegis.parallel import parallel_map
from paraaegis.types import Blob, Mask, Places, Vector

Strategy = Callable[[Vector, int, np.random.Generator], Mask]


def select_max(update: Vector, k: int, _rng: np.random.Generator) -> Mask:
    """The k values of largest magnitude: the paper's choice."""
    return _largest(np.abs(update), k)


def select_min(update: Vector, k: int, _rng: np.random.Generator) -> Mask:
    """The k values of smallest magnitude, for the paper's ablation."""
    return _largest(-np.abs(update), k)


def select_rand(update: Vector, k: int, rng: np.random.Generator) -> Mask:
    """k random values, for the paper's ablation."""
    mask = np.zeros(update.size, dtype=np.bool_)
    mask[rng.choice(update.size, size=k, replace=False)] = True
    return mask


STRATEGIES: dict[str, Strategy] = {"max": select_max, "min": select_min, "rand": select_rand}


def select(strategy: str, update: Vector, k: int, rng: np.random.Generator) -> Mask:
    """Exactly k votes of one client, as a mask over parameters."""
    if not 0 <= k <= update.size:
        raise UpdateError(f"k must be between 0 and the {update.size} values of the update, got {k}")
    if k in (0, update.size):
        return np.full(update.size, k > 0)
    return STRATEGIES[strategy](update, k, rng)


def _largest(scores: NDArray[np.float32], k: int) -> Mask:
    """Exactly k True; ties go to the first, so that the choice does not depend on the sort's internals."""
    cut = np.partition(scores, scores.size - k)[scores.size - k]
    return _above(scores, float(cut), k)


def _above(scores: NDArray[Any], cut: float, k: int) -> Mask:
    mask: Mask = np.empty(scores.size, dtype=np.bool_)

    def compare(_: int, span: slice) -> NDArray[np.intp]:
        np.greater(scores[span], cut, out=mask[span])
        equal: NDArray[np.intp] = np.flatnonzero(scores[span] == cut)
        equal += span.start
        return equal

    ties = np.concatenate(parallel_map(compare, slices(scores.size)))
    mask[ties[: k - int(np.count_nonzero(mask))]] = True
    return mask


def cast(mask: Mask, places: Places) -> Blob:
    """A ballot: the client's votes by position in the secret order."""
    votes = np.zeros_like(mask)
    votes[places[np.flatnonzero(mask)]] = True
    return pack_positions(votes)


def pack_positions(positions: Mask) -> Blob:
    """A set of positions as one bit each, or as a list of 4-byte positions if that is shorter."""
    if 4 * int(np.count_nonzero(positions)) < (positions.size + 7) // 8:
        return Blob(np.flatnonzero(positions).astype("<u4").data)
    return Blob(np.packbits(positions).data)


def unpack_positions(blob: Blob, k: int, length: int) -> Mask:
    """The set that `pack_positions` packed; refuses one that is not exactly k of `length` positions."""
    if _listed(blob, k, length):
        positions = np.zeros(length, dtype=np.bool_)
        positions[_positions(blob, length)] = True
        return positions
    return _mask(blob, k, length)


def _listed(blob: Blob, k: int, length: int) -> bool:
    """Whether k of `length` positions are sent as a list rather than as bits; refuses bytes of any other size."""
    bits = (length + 7) // 8
    if len(blob) != min(4 * k, bits):
        raise ProtocolError(f"{k} of {length} positions take {min(4 * k, bits)} bytes, got {len(blob)}")
    return 4 * k < bits


def _positions(blob: Blob, length: int) -> NDArray[np.uint32]:
    positions = np.frombuffer(blob.view, dtype="<u4")
    if positions.size and (positions[-1] >= length or not (positions[:-1] < positions[1:]).all()):
        raise ProtocolError(f"positions must ascend and be below {length}, got others, with maximum {positions.max()}")
    return positions


def _mask(blob: Blob, k: int, length: int) -> Mask:
    unpacked = np.unpackbits(np.frombuffer(blob.view, dtype=np.uint8))
    if unpacked[length:].any():
        raise ProtocolError(f"got votes beyond the {length} positions")
    positions: Mask = unpacked[:length].view(np.bool_)
    if (count := int(np.count_nonzero(positions))) != k:
        raise ProtocolError(f"expected exactly {k} positions, got {count}")
    return positions


class Tally:
    """The server's count of votes by position."""

    def __init__(self, k: int, length: int) -> None:
        self.k, self.length, self.ballots = k, length, 0
        self.counts = np.zeros(length, dtype=np.uint16)

    def add(self, ballot: Blob) -> None:
        """Count one client's ballot; refuses one without exactly k votes."""
        if _listed(ballot, self.k, self.length):
            self.counts[_positions(ballot, self.length)] += 1
        else:
            votes = _mask(ballot, self.k, self.length)

            def count(_: int, span: slice) -> None:
                self.counts[span] += votes[span]

            parallel_map(count, slices(self.length))
        self.ballots += 1

    def elect(self) -> Mask:
        """The k positions with the most votes. Ties go to the lower position, which is fair: the order is random."""
        if self.k in (0, self.length):
            return np.full(self.length, self.k > 0)
        parts = parallel_map(
            lambda _, span: np.bincount(self.counts[span], minlength=self.ballots + 1), slices(self.length)
        )
        least = np.sum(parts, axis=0)[::-1].cumsum()[::-1]  # least[c]: positions with ≥ c votes
        cut = int(np.flatnonzero(least >= self.k)[-1])
        return _above(self.counts, cut, self.k)

    def agreement(self, elected: Mask) -> float:
        """The share of votes that fell on elected positions: 1 if all clients voted alike."""
        fell = parallel_map(
            lambda _, span: int(self.counts[span][elected[span]].sum(dtype=np.int64)), slices(self.length)
        )
        return sum(fell) / max(1, self.k * self.ballots)
