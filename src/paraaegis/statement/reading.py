"""What an ε means without its formula: how well an attacker who knows everything else can guess at best."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from paraaegis.privacy.record_guarantee import guarantees
from paraaegis.runs.guarantees import Account

ALARMS = 0.01  # the share of false alarms for which `caught` is given
USELESS = 0.5  # noise is called too weak if `caught` is at least this
_DELTAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.7)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The most that any attack can reach, as shares between 0 and 1.

    `guess`: of right answers to "was it used?", if a fair coin decided. `caught`: of those used that it finds, if it
    accuses wrongly in a share ALARMS of the other cases.
    """

    guess: float
    caught: float

    @property
    def useless(self) -> bool:
        """Whether this limits practically nothing."""
        return self.caught >= USELESS


def reading_of(pairs: Sequence[tuple[float, float]]) -> Reading:
    """The limits that follow from (ε, δ) pairs, all of which hold for the same noise.

    Of (ε, δ) alone: 1 − (1 − δ)/(1 + e^ε) right guesses, and min(e^ε·α + δ, 1 − e^−ε·(1 − δ − α)) found at α false
    alarms.
    """
    factors = [(math.exp(min(epsilon, 700.0)), delta) for epsilon, delta in pairs]
    guess = min(1 - (1 - delta) / (1 + factor) for factor, delta in factors)
    caught = (min(factor * ALARMS + delta, 1 - (1 - delta - ALARMS) / factor) for factor, delta in factors)
    return Reading(guess=guess, caught=min(1.0, *caught))


def readings(account: Account) -> dict[tuple[str, str], Reading]:
    """By adversary and unit: what each ε means, from the same noise accounted at many δ."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    privacy = account.config.privacy
    for delta in (privacy.delta, *_DELTAS):
        for row in guarantees(account.releases, msgspec.structs.replace(privacy, delta=delta)):
            if row.epsilon is not None:
                pairs[row.adversary, row.unit].append((row.epsilon, delta))
    return {key: reading_of(values) for key, values in pairs.items()}
