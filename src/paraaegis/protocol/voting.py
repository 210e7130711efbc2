"""The vote: each client votes for k values, the server counts and elects k (Algorithm 1, lines 7 to 11).

Clients select by parameter index; everything after that works on positions in the round's secret order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.compiled import compiled
from paraaegis.errors import UpdateError
from paraaegis.fixed_point import slices
from paraaegis.parallel import parallel_map
from paraaegis.protocol.gaps import decode, encode, positions_of
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
    votes[places[positions_of(mask)]] = True
    return pack_positions(votes)


def pack_positions(positions: Mask) -> Blob:
    """A set of positions as the code of its gaps or, if it has more than half of them, of the others' gaps."""
    k, length = int(np.count_nonzero(positions)), positions.size
    return encode(positions_of(~positions if _by_the_others(k, length) else positions), length)


def unpack_positions(blob: Blob, k: int, length: int) -> Mask:
    """The set that `pack_positions` packed; refuses any bytes that it does not return for k of `length` positions."""
    others = _by_the_others(k, length)
    coded = decode(blob, length - k if others else k, length)
    positions = np.full(length, others)
    positions[coded] = not others
    return positions


def _by_the_others(k: int, length: int) -> bool:
    """Whether k of `length` positions are sent as the positions that are not among them."""
    return 2 * k > length


def _add(counts: Any, positions: Any, vote: Any) -> None:
    for position in positions:
        counts[position] = np.uint16(np.int64(counts[position]) + vote)


class Tally:
    """The server's count of votes by position."""

    def __init__(self, k: int, length: int) -> None:
        self.k, self.length, self.ballots = k, length, 0
        self.counts = np.zeros(length, dtype=np.uint16)

    def add(self, ballot: Blob) -> None:
        """Count one client's ballot; refuses one without exactly k votes."""
        others = _by_the_others(self.k, self.length)
        coded = decode(ballot, self.length - self.k if others else self.k, self.length)
        if others:
            self.counts += 1
        compiled(_add)(self.counts, coded, -1 if others else 1)
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
