"""Use your own model and data: any class with these methods is a Learner. No torch needed.

Four clients fit one linear model, y = x·w, to data that never leaves them.
"""

import tempfile
from pathlib import Path

import numpy as np

from paraaegis.config import make_config
from paraaegis.runs.run import federate

TRUTH = np.linspace(-1, 1, 200, dtype=np.float32)


class Linear:
    """One client's data and its gradient steps."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(300, TRUTH.size)).astype(np.float32)
        self.y = self.x @ TRUTH
        self.samples = len(self.x)

    def initial(self):
        return np.zeros_like(TRUTH)

    def train(self, weights, number):
        for _ in range(5):
            weights = weights - 0.05 * self.x.T @ (self.x @ weights - self.y) / self.samples
        return weights.astype(np.float32), {}

    def apply(self, weights, delta):
        return weights + delta

    def evaluate(self, weights):
        return {"error": float(np.abs(weights - TRUTH).max())}

    def state(self):
        return {}

    def load(self, state):
        pass


if __name__ == "__main__":
    config = make_config(
        {"federation": {"clients": 4, "rounds": 60}, "protect": {"method": "paraaegis-feedback", "ratio": 0.3}}
    )
    learners = {f"client-{index}": Linear(index) for index in range(4)}
    result = federate(config, learners, out=Path(tempfile.mkdtemp()) / "run")
    print(f"largest weight error after {result.rounds} rounds: {result.metrics['error']:.4f}")
