"""The paper's Eq. 1: clip an update to L2 norm θ and add Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.streams import branches
from paraaegis.errors import ConfigError, CryptoError
from paraaegis.fixed_point import Chunks, slices
from paraaegis.parallel import parallel_map
from paraaegis.types import Vector


class Noise:
    """Standard normal noise for one vector, single-use: two similar vectors with the same noise would reveal it.

    Each chunk has its own stream, so its noise does not depend on which thread draws it, or when.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._streams = branches(rng)
        self._drawn: dict[int, NDArray[np.float64]] = {}
        self._given: set[int] = set()

    def draw(self, length: int) -> None:
        """Draw the noise ahead of its use."""
        self._drawn = dict(enumerate(parallel_map(self._fresh, slices(length))))

    def __call__(self, index: int, span: slice) -> NDArray[np.float64]:
        """The noise of a chunk."""
        if index in self._given:
            raise CryptoError("noise already used; noise is for one vector only")
        self._given.add(index)
        drawn = self._drawn.pop(index, None)
        return self._fresh(index, span) if drawn is None else drawn

    def _fresh(self, index: int, span: slice) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = self._streams(index).standard_normal(span.stop - span.start)
        return drawn


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

    def perturb(self, values: Vector, number: int, noise: Noise, share: float = 1.0) -> Chunks:
        """Clipped values with noise of std `share`·σ, chunk by chunk."""
        shrink, sigma = self.shrink(values), share * self.sigmas[number - 1]

        def noised(index: int, span: slice) -> NDArray[np.float64]:
            chunk = np.multiply(values[span], shrink, dtype=np.float64)
            if sigma > 0:
                drawn = noise(index, span)
                drawn *= sigma
                chunk += drawn
            return chunk

        return noised

    def shrink(self, values: Vector) -> float:
        """The factor that clipping applies: 1 / max(1, ‖u‖ / θ)."""
        return 1.0 / max(1.0, norm(values) / self.clip)


def norm(values: Vector) -> float:
    """The L2 norm, summed chunk by chunk in float64, so that it does not depend on the number of threads."""
    squares = parallel_map(lambda _, span: float(np.square(values[span], dtype=np.float64).sum()), slices(values.size))
    return math.sqrt(sum(squares))
