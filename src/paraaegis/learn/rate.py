"""The learning rate of each round."""

from __future__ import annotations

import math
from typing import Protocol

LAST = 0.01  # of the first rate, unless the last one is given


class Schedule(Protocol):
    """The keys of the table `train` that say how the rate changes."""

    @property
    def schedule(self) -> str:
        """`constant`, `linear` or `cosine`."""

    @property
    def lr(self) -> float:
        """The rate of the first round."""

    @property
    def last_lr(self) -> float:
        """The rate of the last round; 0: a hundredth of the first."""


def rate(train: Schedule, rounds: int, number: int) -> float:
    """The learning rate of round `number` of `rounds`, both counted from 1. A round has one rate."""
    if train.schedule == "constant" or rounds == 1:
        return train.lr
    last, done = train.last_lr or LAST * train.lr, (number - 1) / (rounds - 1)
    left = (1 + math.cos(math.pi * done)) / 2 if train.schedule == "cosine" else 1 - done
    return last + (train.lr - last) * left
