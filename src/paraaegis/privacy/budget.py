"""From a configuration to its noise and budget; every client derives both itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.privacy.calibrate import (
    epsilon_of,
    mu_of,
    remark_epsilon,
    remark_limit,
    remark_multiplier,
    remark_sensitivity,
    tight_multiplier,
    varying,
)
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.guarantee import sensitivity
from paraaegis.privacy.ledger import TRAINING, Budget, Release
from paraaegis.privacy.record_budget import record_budget
from paraaegis.privacy.records import record_privacy

Series: TypeAlias = Callable[[Config, float], tuple[float, ...]]  # σ of each round, from the σ of equal rounds
REMARK = "the paper's Remark"
LARGEST_SIGMA = 1e6
SMALLEST_NOISE = 1e-6  # relative to the clip: less could not be accounted for
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class UpdateBudget:
    """What a client may spend: Σ (Δ/σ)² up to `limit`, with Δ = `factor`·θ, in the reading that set its noise."""

    factor: float
    limit: float
    epsilon: float
    delta: float
    reading: str  # the unit of exact accounting, or the Remark
    fraction: float = 1.0
    nothing: float = 0.0

    def cost(self, release: Release) -> float:
        """What one release uses of the limit."""
        counts = release.sigma > 0 and release.what != TRAINING
        return (self.factor * release.clip / release.sigma) ** 2 if counts else 0.0

    def text(self, spent: float) -> str:
        """The ε of this much spending, with its unit; the Remark's ε is never given without the exact one."""
        if self.reading != REMARK:
            return f"ε = {self.epsilon_at(spent):.4g} at δ = {self.delta:g} ({self.reading})"
        exact = epsilon_of(spent**0.5 / self.factor, self.delta)
        return (
            f"ε = {self.epsilon_at(spent):.4g} at δ = {self.delta:g} ({REMARK}, which has no unit of privacy; by exact "
            f"accounting, unit: client, ε = {exact:.4g})"
        )

    def epsilon_at(self, spent: float) -> float:
        """The ε of this much spending, in this budget's reading."""
        if self.reading == REMARK:
            return remark_epsilon(spent, self.delta, self.fraction)
        return epsilon_of(spent**0.5, self.delta)

    def fits(self, spent: float) -> bool:
        """See Budget."""
        return spent <= self.limit * _ROUNDING

    def share(self, spent: float) -> float:
        """See Budget."""
        return spent / self.limit

    def refusal(self, spent: float, cost: float, new: Sequence[Release]) -> str:
        """See Budget."""
        after, left = spent + cost, self.limit - spent
        text = (
            f"the privacy budget of {new[0].client} is spent: {self.text(spent)} of {self.epsilon:g}, against "
            f"everyone who reads its noised values; round {new[0].round} would make it {self.text(after)}. "
            f"A later run that adds to this ledger needs a budget of ε ≥ {self.epsilon_at(after):.4g}"
        )
        if left <= self.limit * 1e-9:
            return text
        more = (cost / left) ** 0.5
        sigma = more * max(release.sigma for release in new)
        return f"{text}, or noise {more:.3g} times as large (σ = {sigma:.4g}) for one more round"


def constant(config: Config, sigma: float) -> tuple[float, ...]:
    """The same σ in every round."""
    return (sigma,) * config.federation.rounds


def geometric(config: Config, sigma: float) -> tuple[float, ...]:
    """A σ that falls or grows by the same factor every round, and spends what the constant one would."""
    privacy, rounds = config.privacy, config.federation.rounds
    if sigma == 0.0:
        return constant(config, sigma)
    ratio = math.sqrt(privacy.vary) if privacy.vary_scale == "variance" else privacy.vary
    series = varying(sigma, rounds, ratio)
    if max(series) > LARGEST_SIGMA:
        raise ConfigError(
            f"privacy.vary = {privacy.vary} over {rounds} rounds needs noise of up to σ = {max(series):.3g}, but "
            f"the most that can be sent is {LARGEST_SIGMA:.0e}; move privacy.vary closer to 1"
        )
    return series if privacy.vary_direction == "down" else series[::-1]


def noise(config: Config, parts: int = 1, series: Series = constant) -> Gaussian:
    """Clipping and noise of the values in the clear, or of all; `parts` noised parts of an update share the budget."""
    clip = config.privacy.clip
    return Gaussian(clip, series(config, _sigma(config, clip, parts)))


def shared_noise(config: Config, parts: int) -> Gaussian | None:
    """Clipping of the encrypted values and the noise of their sum, if the configuration asks for it."""
    clip = config.privacy.inside_clip
    if not clip:
        return None
    return Gaussian(clip, constant(config, _sigma(config, clip, parts)))


def budget(config: Config) -> Budget | None:
    """What a client may spend in total; None if no noise is calibrated to a budget."""
    privacy, federation = config.privacy, config.federation
    if (training := record_privacy(config)) is not None:
        return record_budget(config, training)
    if math.isinf(privacy.epsilon) or (privacy.calibration == "paper" and federation.min_samples < 1):
        return None
    if privacy.calibration == "tight":
        limit = mu_of(privacy.epsilon, privacy.delta) ** 2
        return UpdateBudget(
            sensitivity(1.0, privacy.unit), limit, privacy.epsilon, privacy.delta, f"unit: {privacy.unit}"
        )
    return UpdateBudget(
        remark_sensitivity(1.0, federation.min_samples),
        remark_limit(privacy.epsilon, privacy.delta, federation.fraction),
        privacy.epsilon,
        privacy.delta,
        REMARK,
        federation.fraction,
    )


def _sigma(config: Config, clip: float, parts: int) -> float:
    """σ per coordinate for values clipped to `clip`."""
    privacy, federation = config.privacy, config.federation
    if math.isinf(privacy.epsilon):
        return 0.0
    if privacy.calibration == "paper" and federation.min_samples < 1:
        raise ConfigError(
            "calibration 'paper' needs federation.min_samples of at least 1, the smallest client's number of samples"
        )
    if privacy.sigma:
        sigma = privacy.sigma * clip / privacy.clip
    elif privacy.calibration == "tight":
        releases = parts * config.participations
        sigma = sensitivity(clip, privacy.unit) * tight_multiplier(privacy.epsilon, privacy.delta, releases)
    else:
        multiplier = remark_multiplier(privacy.epsilon, privacy.delta, parts * federation.rounds, federation.fraction)
        sigma = remark_sensitivity(clip, federation.min_samples) * multiplier
    if sigma < SMALLEST_NOISE * clip:
        raise ConfigError(
            f"noise of σ = {sigma:.3g} is negligible next to a clip of {clip:g}; set epsilon = inf to switch noise off"
        )
    if sigma > LARGEST_SIGMA:
        raise ConfigError(
            f"this budget needs noise of σ = {sigma:.3g}, but the most that can be sent is {LARGEST_SIGMA:.0e}; raise "
            "epsilon or lower the clip"
        )
    return sigma
