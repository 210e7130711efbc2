"""The paper's Eq. 1: clip an update to θ in L2, add Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paraaegis.errors import ConfigError
from paraaegis.types import Vector


@dataclass(frozen=True)
class Gaussian:
    """Clipping to `clip` and noise of standard deviation `sigmas[t-1]` in round t; both may be switched off."""

    clip: float
    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ConfigError(f"the clipping threshold must be positive, got {self.clip}")
        if any(not (0 <= sigma < math.inf) for sigma in self.sigmas):
            raise ConfigError(f"noise needs a finite standard deviation of at least 0, got {self.sigmas}")

    def perturb(self, values: Vector, number: int, rng: np.random.Generator) -> np.ndarray:
        """Clipped and noised values in float64. Noise is drawn in the order of `values`."""
        noised = np.multiply(values, self.shrink(values), dtype=np.float64)
        sigma = self.sigmas[number - 1]
        if sigma > 0:
            noise = rng.standard_normal(values.size)
            noise *= sigma
            noised += noise
        return noised

    def shrink(self, values: Vector) -> float:
        """The factor that clipping applies: 1 / max(1, ‖u‖ / θ)."""
        return 1.0 / max(1.0, norm(values) / self.clip)


def norm(values: Vector) -> float:
    """The L2 norm, summed pairwise in float64, so that it does not depend on threads."""
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))
