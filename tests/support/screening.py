"""A learner that reports what a screening study does: AUC, recall by class and the loss, and no accuracy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from paraaegis.runs.check import resolve

FEATURES, SAMPLES = 200, 40


class Screening:
    """Logistic regression with numpy on two classes; with `single`, the test data of this site has one class."""

    def __init__(self, index: int, single: bool = False) -> None:
        rng = np.random.default_rng(index)
        self.samples = SAMPLES + 10 * index
        self.labels = np.arange(self.samples) % 2
        self.x = rng.normal(0, 1, (self.samples, FEATURES)) + np.where(self.labels, 0.1, -0.1)[:, None]
        self.tested = self.labels == 1 if single else np.ones(self.samples, dtype=bool)

    def initial(self):
        return np.zeros(FEATURES, dtype=np.float32)

    def train(self, weights, number):
        error = self._odds(weights) - self.labels
        return (weights - 0.02 * self.x.T @ error / self.samples).astype(np.float32), {}

    def apply(self, weights, delta):
        return weights + delta

    def evaluate(self, weights):
        odds, labels = self._odds(weights)[self.tested], self.labels[self.tested]
        right = np.clip(np.where(labels, odds, 1 - odds), 1e-9, 1)
        said = odds > 0.5
        recalls = {f"recall_{one}": float(np.mean(said[labels == one] == one)) for one in (0, 1) if one in labels}
        return {"auc": auc(odds, labels), **recalls, "loss": float(-np.log(right).mean())}

    def state(self):
        return {}

    def load(self, state):
        pass

    def _odds(self, weights):
        return 1 / (1 + np.exp(-self.x @ weights))


def auc(odds, labels):
    """The probability that a positive scores above a negative; NaN without one of each."""
    positives, negatives = odds[labels == 1], odds[labels == 0]
    if not (positives.size and negatives.size):
        return float("nan")
    return float(np.mean(positives[:, None] > negatives) + np.mean(positives[:, None] == negatives) / 2)


def screening_experiment(config, only=None):
    """In place of `torch_experiment`: as many sites as clients, the last of which tests on one class."""
    names = config.names
    learners = {name: Screening(index, single=index == len(names) - 1) for index, name in enumerate(names)}
    resolved = resolve(config, [learner.samples for learner in learners.values()])
    return SimpleNamespace(config=resolved, learners=learners, gpu="", save_model=lambda path, weights: path.touch())
