"""Named random streams for experiments: one for each seed, purpose, client and round.

A stream depends only on its name, so the order in which threads are scheduled changes nothing.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of a stream. Reproducibility depends on these numbers: append (from 9), never reorder."""

    MODEL = 0
    SPLIT = 1
    BATCHES = 2
    NOISE = 3
    SELECT = 4
    SAMPLE = 5
    RECORDS = 8


def stream(seed: int, purpose: Purpose, client: int = 0, number: int = 0, attempt: int = 0) -> np.random.Generator:
    """The generator for this seed, purpose, client, round `number` and attempt."""
    return np.random.default_rng([seed, client, number, int(purpose), *([attempt] if attempt else [])])
