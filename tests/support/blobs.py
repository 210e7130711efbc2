"""A learner small enough for Flower's processes: softmax regression on points around a few centres, numpy alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

CLASSES, FEATURES, SAMPLES = 4, 30, 60


def points(seed: int, count: int):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(0, 0.4, (CLASSES, FEATURES))
    labels = rng.integers(0, CLASSES, count)
    return (centres[labels] + rng.normal(0, 1, (count, FEATURES))).astype(np.float32), labels


class Softmax:
    """Gradient steps with momentum, so that there is a state to keep. The first client also holds test points."""

    def __init__(self, index: int) -> None:
        self.x, self.labels = points(index, SAMPLES)
        self.samples = SAMPLES
        self.test = points(1000, 400) if index == 0 else None
        self.momentum = np.zeros((FEATURES, CLASSES), dtype=np.float32)

    def initial(self):
        return np.zeros(FEATURES * CLASSES, dtype=np.float32)

    def train(self, weights, number):
        matrix = weights.reshape(FEATURES, CLASSES).copy()
        for _ in range(5):
            scores = self.x @ matrix
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = odds / odds.sum(axis=1, keepdims=True) - np.eye(CLASSES)[self.labels]
            self.momentum = (0.5 * self.momentum + self.x.T @ error / SAMPLES).astype(np.float32)
            matrix -= 0.3 * self.momentum
        return matrix.astype(np.float32).reshape(-1), {}

    def apply(self, weights, delta):
        return weights + delta

    def evaluate(self, weights):
        if self.test is None:
            return {}
        x, labels = self.test
        scores = x @ weights.reshape(FEATURES, CLASSES)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        chosen = (odds / odds.sum(axis=1, keepdims=True))[np.arange(len(labels)), labels]
        return {"accuracy": float((scores.argmax(axis=1) == labels).mean()), "loss": float(-np.log(chosen).mean())}

    def state(self):
        return {"momentum": self.momentum}

    def load(self, state):
        self.momentum = state["momentum"].copy()


class Held(Softmax):
    """Waits in a round while a file named after client and round is there, so that a test can act in the middle."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index

    def train(self, weights, number):
        gate = Path(os.environ["BLOBS_GATES"]) / f"{self.index}-{number}"
        if gate.exists():
            gate.with_suffix(".waiting").touch()
            while gate.exists():
                time.sleep(0.1)
        return super().train(weights, number)


def make_learner(config, name):
    return Softmax(config.names.index(name))


def make_held(config, name):
    return Held(config.names.index(name))
