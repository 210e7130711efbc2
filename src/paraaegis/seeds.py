"""Named random streams for experiments: one a seed, purpose, client and round.

A stream depends on its name alone, so the order in which threads are scheduled changes nothing.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for. Numbers are part of the reproducibility promise: append (from 8), never reorder."""

    MODEL = 0
    SPLIT = 1
    BATCHES = 2
    NOISE = 3
    SELECT = 4
    SAMPLE = 5


def stream(seed: int, purpose: Purpose, client: int = 0, number: int = 0, attempt: int = 0) -> np.random.Generator:
    """The generator of this seed, purpose, client, round `number` and attempt at it."""
    return np.random.default_rng([seed, client, number, int(purpose), *([attempt] if attempt else [])])
