"""From a configuration to its noise and budget; every client derives both itself."""

from __future__ import annotations

import math

from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.privacy.calibrate import (
    mu_of,
    remark_limit,
    remark_multiplier,
    remark_sensitivity,
    tight_multiplier,
    varying,
)
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.guarantee import sensitivity
from paraaegis.privacy.ledger import REMARK, Budget

LARGEST_SIGMA = 1e6
SMALLEST_NOISE = 1e-6  # relative to the clip: less could not be accounted for


def noise(config: Config, parts: int = 1) -> Gaussian:
    """Clipping and noise of the values outside, or of all; the `parts` noised parts of an update share the budget."""
    privacy, releases = config.privacy, config.federation.rounds
    sigma = _sigma(config, privacy.clip, parts)
    if config.protect.method != "varying-dp" or sigma == 0.0:
        return Gaussian(privacy.clip, (sigma,) * releases)
    ratio = math.sqrt(privacy.vary) if privacy.vary_scale == "variance" else privacy.vary
    series = varying(sigma, releases, ratio)
    if max(series) > LARGEST_SIGMA:
        raise ConfigError(
            f"privacy.vary = {privacy.vary} over {releases} rounds needs noise of up to σ = {max(series):.3g}, but the "
            f"most that can be sent is {LARGEST_SIGMA:.0e}; move privacy.vary closer to 1"
        )
    return Gaussian(privacy.clip, series if privacy.vary_direction == "down" else series[::-1])


def inside_noise(config: Config, parts: int) -> Gaussian | None:
    """Clipping of the encrypted values and the noise of their sum, if the configuration asks for it."""
    clip = config.privacy.inside_clip
    if not clip:
        return None
    return Gaussian(clip, (_sigma(config, clip, parts),) * config.federation.rounds)


def budget(config: Config) -> Budget | None:
    """What a client may spend in total; None if no noise is calibrated to a budget."""
    privacy, federation = config.privacy, config.federation
    if math.isinf(privacy.epsilon) or (privacy.calibration == "paper" and federation.min_samples < 1):
        return None
    if privacy.calibration == "tight":
        limit = mu_of(privacy.epsilon, privacy.delta) ** 2
        return Budget(sensitivity(1.0, privacy.unit), limit, privacy.epsilon, privacy.delta, f"unit: {privacy.unit}")
    return Budget(
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
        releases = parts * (privacy.participations or federation.rounds)
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
