"""The ratio of each round: constant, or r_t = r_0·λ^t with t counted from 0 in the first round."""

from __future__ import annotations

from dataclasses import dataclass

from paraaegis.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """Initial ratio r_0 and decay λ."""

    ratio: float
    decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio must be in [0, 1], got {self.ratio}")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay must be in (0, 1], got {self.decay}")

    def ratio_at(self, number: int) -> float:
        """The ratio in round `number`, which counts from 1."""
        return float(self.ratio * self.decay ** (number - 1))

    def elected_at(self, number: int, length: int) -> int:
        """k = round(r_t·d): how many of `length` values are elected in round `number`."""
        return round(self.ratio_at(number) * length)
