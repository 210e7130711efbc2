"""From guesses about records to the largest noise multiplier that they refute.

Under (ε, δ(ε))-privacy, every guess whether a record is in has error rates with 1 − β ≤ e^ε·α + δ(ε) and
1 − α ≤ e^ε·β + δ(ε). Accounting gives δ(ε) at every ε, so a mechanism is tested against its whole trade-off curve. One
(ε, δ) alone says little about the bulk of the curve, which is what a few thousand records can test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paraaegis.privacy.audit import CONFIDENCE, rate_bound
from paraaegis.privacy.records import Step, accountant_of

_INTERVAL = 1e-2  # of the privacy loss: ten times coarser than in a run's accounting, and never in the attack's favour
_POINTS = 60  # ε at which a curve is tested
_LEAST, _MOST = 1 / 4, 8.0  # the multipliers to test, in claimed ones
_HALVINGS = 8  # of the logarithm of that range


@dataclass(frozen=True)
class Guess:
    """The errors of one guess, and upper bounds on its error rates that hold together with those of other guesses."""

    alarms: int  # records that are out, guessed in
    misses: int  # records that are in, guessed out
    absent: int
    there: int
    guesses: int = 1

    @classmethod
    def of(cls, there: NDArray[np.float64], absent: NDArray[np.float64], guesses: int = 1) -> Guess:
        """Guess "in" where a score is above 0; one of this many guesses from the same data."""
        return cls(int((absent > 0).sum()), int((there <= 0).sum()), absent.size, there.size, guesses)

    @cached_property
    def rates(self) -> tuple[float, float]:
        """The bounds on the rates of false alarms and of misses, at CONFIDENCE for all guesses together."""
        confidence = 1 - (1 - CONFIDENCE) / (2 * self.guesses)
        return rate_bound(self.alarms, self.absent, confidence), rate_bound(self.misses, self.there, confidence)


class Curve:
    """The trade-off curve of some steps, by accounting."""

    def __init__(self, step: Step, count: int, group: int = 1) -> None:
        self._accountant = accountant_of([(step, count)], group, _INTERVAL)

    def epsilon(self, delta: float) -> float:
        """The ε at `delta`."""
        return float(self._accountant.get_epsilon(delta))

    def refuted_by(self, guess: Guess) -> bool:
        """Whether no mechanism with this curve has error rates as low as these bounds."""
        alpha, beta = guess.rates
        smallest = min(alpha, beta)
        if smallest >= 1:
            return False
        epsilons = np.linspace(0, -math.log(smallest), _POINTS)
        deltas = np.array([self._accountant.get_delta(epsilon) for epsilon in epsilons])
        worst = np.maximum(1 - beta - np.exp(epsilons) * alpha, 1 - alpha - np.exp(epsilons) * beta)
        return bool((worst > deltas).any())


def multiplier_bound(guesses: Sequence[Guess], claimed: Step, count: int, group: int = 1) -> tuple[float | None, Guess]:
    """The least noise multiplier that these guesses refute, and one of the guesses that refute it.

    It is searched from a fourth of the claimed multiplier to eight times; None if none of that range is refuted.
    """

    def refuting(share: float) -> list[Guess]:
        curve = Curve(Step(claimed.sample_rate, share * claimed.multiplier), count, group)
        return [guess for guess in guesses if curve.refuted_by(guess)]

    low, high = (_LEAST, 1.0) if refuting(1.0) else (1.0, _MOST)
    best = refuting(high)
    if not best:
        return None, guesses[0]
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if refuted := refuting(middle):
            high, best = middle, refuted
        else:
            low = middle
    return high * claimed.multiplier, best[0]
