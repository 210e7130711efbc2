"""The paper's Eq. 1: clip an update to θ in L2, add Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import ConfigError
from paraaegis.grid import slices
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

    def perturb(self, values: Vector, number: int, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
        """Clipped and noised values, chunk by chunk. Noise is drawn in the order of `values`."""
        shrink, sigma = self.shrink(values), self.sigmas[number - 1]
        for where in slices(values.size):
            noised = np.multiply(values[where], shrink, dtype=np.float64)
            if sigma > 0:
                noise = rng.standard_normal(noised.size)
                noise *= sigma
                noised += noise
            yield noised

    def shrink(self, values: Vector) -> float:
        """The factor that clipping applies: 1 / max(1, ‖u‖ / θ)."""
        return 1.0 / max(1.0, norm(values) / self.clip)


def norm(values: Vector) -> float:
    """The L2 norm, summed chunk by chunk in float64, so that it does not depend on threads."""
    return math.sqrt(sum(float(np.square(values[where], dtype=np.float64).sum()) for where in slices(values.size)))
