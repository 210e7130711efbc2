"""Record-level accounting: the ε of DP-SGD in a client's training, and the noise for a target ε.

Neighbours differ in one record of one client, whose gradient is zeroed out; the number of samples is public. A step
that draws each record with rate q and adds noise of z times the clip is a Poisson-sampled Gaussian; steps compose by
their privacy loss distributions. If a person has up to g records in a client, a step draws a binomial number of them,
whose gradients add up: a mixture of Gaussians (Ganesh 2024). All of it assumes that nobody learns which records, or how
many, a step drew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeAlias

from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.plural import plural
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.types import RecordPrivacy

LARGEST_EPSILON = 50.0
LARGEST_MULTIPLIER = 1e4
_INTERVAL = 1e-3  # of the privacy loss; the distributions are rounded up, so ε is never too small
_INTERVAL_OF_GROUPS = 5e-3  # mixtures take three times as long to compute; ε grows by less than a thousandth
_DIGITS = 4  # of the noise multiplier, rounded up
_HUGE = 1e3  # an ε that protects nobody


@dataclass(frozen=True, order=True)
class Step:
    """One kind of accounted step: noise of `multiplier` times what one record changes, at a sampling rate."""

    sample_rate: float
    multiplier: float


Spent: TypeAlias = "Counter[Step]"


def steps_per_round(config: Config) -> int:
    """Steps of a round: as many as draw `train.epochs` times the number of samples, on average."""
    return max(1, round(config.train.epochs / config.privacy.sample_rate))


def record_privacy(config: Config) -> RecordPrivacy | None:
    """The DP-SGD that a configuration asks for, with the noise that its budget allows; None for other units."""
    privacy = config.privacy
    if privacy.unit != "record":
        return None
    steps = steps_per_round(config)
    total = steps * config.participations
    multiplier = 0.0
    if not math.isinf(privacy.epsilon):
        multiplier = multiplier_for(privacy.epsilon, privacy.delta, privacy.sample_rate, total, privacy.group)
    return RecordPrivacy(privacy.sample_rate, steps, privacy.clip, multiplier)


@cache
def multiplier_for(epsilon: float, delta: float, sample_rate: float, steps: int, group: int = 1) -> float:
    """The least noise multiplier, to four digits, with which this many steps are (ε, δ)-private."""
    if epsilon > LARGEST_EPSILON:
        raise ConfigError(
            f'privacy.epsilon must be at most {LARGEST_EPSILON:g} with privacy.unit = "record", got {epsilon:g}; more '
            "protects nobody. Set privacy.epsilon = inf to train without noise"
        )

    from scipy.optimize import brentq

    def excess(multiplier: float) -> float:
        return min(epsilon_of_steps([(Step(sample_rate, multiplier), steps)], delta, group), _HUGE) - epsilon

    def fits(multiplier: float) -> bool:
        return excess(multiplier) <= 0

    high = float(group)
    while not fits(high):
        high *= 2
        if high > LARGEST_MULTIPLIER:
            raise ConfigError(
                f"ε = {epsilon:g} at δ = {delta:g} for {plural(steps, 'step')} at privacy.sample_rate = "
                f"{sample_rate:g} needs a noise multiplier above {LARGEST_MULTIPLIER:g}; raise privacy.epsilon, or "
                "lower privacy.sample_rate, train.epochs or federation.rounds"
            )
    low = high / 2
    while fits(low):
        low, high = low / 2, low
    root = brentq(excess, low, high, xtol=1e-12, rtol=10.0 ** -(_DIGITS + 1))
    unit = 10.0 ** (math.floor(math.log10(root)) + 1 - _DIGITS)
    rounded = (float(f"{units * unit:.{_DIGITS}g}") for units in count(math.ceil(root / unit)))
    return next(filter(fits, rounded))


def epsilon_of_steps(steps: Iterable[tuple[Step, int]], delta: float, group: int = 1) -> float:
    """The ε at `delta` of all these steps together, each with how often it was taken; infinite without noise."""
    return _epsilon(tuple(sorted(steps)), delta, group)


@cache
def _epsilon(steps: Sequence[tuple[Step, int]], delta: float, group: int) -> float:
    if any(step.multiplier <= 0 for step, _ in steps):
        return math.inf
    mu, sampled = _apart(steps, group)
    if not sampled:
        return epsilon_of(mu, delta)
    if epsilon_of(mu, delta) > _HUGE:  # no distribution of that width fits in memory, so the two are added instead
        return epsilon_of(mu, delta / 2) + epsilon_of_steps(sampled, delta / 2, group)
    return float(accountant_of(steps, group).get_epsilon(delta))


def _apart(steps: Sequence[tuple[Step, int]], group: int) -> tuple[float, list[tuple[Step, int]]]:
    """μ of the steps that draw every record, and the other steps."""
    whole = sum(times * (group / step.multiplier) ** 2 for step, times in steps if step.sample_rate == 1)
    return math.sqrt(whole), [(step, times) for step, times in steps if step.sample_rate < 1]


def accountant_of(steps: Sequence[tuple[Step, int]], group: int = 1, interval: float = 0.0) -> Any:
    """A PLDAccountant of all these steps; the larger the interval, the faster, and the larger its ε and δ."""
    interval = interval or (_INTERVAL if group == 1 else _INTERVAL_OF_GROUPS)
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    mu, sampled = _apart(steps, group)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval)
    if mu:
        accountant.compose(GaussianDpEvent(1 / mu))
    for step, times in sampled:
        accountant.compose(SelfComposedDpEvent(_event(step, group), times))
    return accountant


def _event(step: Step, group: int) -> Any:
    """A step that draws each record of a person with the same probability, so a binomial number of them."""
    from dp_accounting.dp_event import GaussianDpEvent, MixtureOfGaussiansDpEvent, PoissonSampledDpEvent
    from scipy.stats import binom

    if group == 1:
        return PoissonSampledDpEvent(step.sample_rate, GaussianDpEvent(step.multiplier))
    drawn = list(range(group + 1))
    return MixtureOfGaussiansDpEvent(step.multiplier, drawn, binom.pmf(drawn, group, step.sample_rate).tolist())


def record_unit(group: int) -> str:
    """The unit of privacy in words."""
    return "record" if group == 1 else f"person with up to {group} records"
