"""What an ε means without its formula: how well an attacker who knows everything else can guess at best."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from paraaegis.privacy.record_guarantee import guarantees
from paraaegis.runs.guarantees import Account

ALARMS = 0.01  # the share of false alarms for which `caught` is given
USELESS = 0.9  # `caught` from which on noise is called too weak
_DELTAS = (0.003, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The most that any attack can reach: shares between 0 and 1.

    `guess`: of right answers to "was it used?", if a fair coin decided. `caught`: of those used that it finds, if it
    accuses wrongly in 1% of the other cases.
    """

    guess: float
    caught: float

    @property
    def useless(self) -> bool:
        """Whether this limits practically nothing."""
        return self.caught >= USELESS


def reading_of(pairs: Iterable[tuple[float, float]]) -> Reading:
    """The limits that follow from (ε, δ) pairs, all of which hold for the same noise."""
    limits = [(_guess(*pair), _caught(*pair)) for pair in pairs]
    return Reading(guess=min(guess for guess, _ in limits), caught=min(caught for _, caught in limits))


def _guess(epsilon: float, delta: float) -> float:
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def _caught(epsilon: float, delta: float) -> float:
    rising = math.exp(min(epsilon, 700.0)) * ALARMS + delta
    return min(1.0, rising, 1 - math.exp(-epsilon) * (1 - delta - ALARMS))


def readings(account: Account) -> dict[tuple[str, str], Reading]:
    """By adversary and unit: the reading of each ε, from the same noise accounted at many δ."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    privacy = account.config.privacy
    for delta in (privacy.delta, *_DELTAS):
        for row in guarantees(account.releases, msgspec.structs.replace(privacy, delta=delta)):
            if row.epsilon is not None:
                pairs[row.adversary, row.unit].append((row.epsilon, delta))
    return {key: reading_of(values) for key, values in pairs.items()}
