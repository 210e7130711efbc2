"""The setup of a record-level audit: real DP-SGD through the library's loop, on records that are canaries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.audit.setup import CANARY, check_finite
from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.privacy.records import record_privacy
from paraaegis.protocol.learner import check_learners
from paraaegis.runs.assemble import record_draws
from paraaegis.types import RecordPrivacy

Step = NDArray[np.float64]  # what a step added to the model, parameters × people, in clips


def audited_records(config: Config, rounds: int, mu: float, epochs: int = 1) -> Config:
    """The same mechanism with secret sampling and noise, few rounds, and the ε that Gaussian noise has at this μ."""
    check_finite(config)
    epsilon = math.inf if math.isinf(mu) else epsilon_of(mu, config.privacy.delta)
    federation = msgspec.structs.replace(config.federation, rounds=rounds)
    privacy = msgspec.structs.replace(config.privacy, epsilon=epsilon, participations=0, noise="secret")
    train = msgspec.structs.replace(config.train, epochs=epochs)
    return msgspec.structs.replace(config, federation=federation, privacy=privacy, train=train)


def training_of(config: Config) -> RecordPrivacy:
    """The DP-SGD of a configuration, as a run makes it; refused if it has none."""
    privacy = record_privacy(config)
    if privacy is None:
        raise ConfigError(f'privacy.unit must be "record" to audit training, got {config.privacy.unit!r}')
    return privacy


@dataclass(frozen=True)
class Training:
    """A client's training, as a run wires it, whose steps can be watched."""

    config: Config
    privacy: RecordPrivacy
    present: NDArray[np.bool_]  # by person
    copies: int = 1  # records of each person

    def run(self, watch: Callable[[int, int, Step], None]) -> float:
        """Train from a fresh start in every round; `watch` receives the round, from 0, the step in it and its change.

        The result is the largest part of any round's update that its steps do not explain.
        """
        from paraaegis.learn.canaries import PARAMETERS, canary_learner
        from paraaegis.learn.threads import use_one_thread

        use_one_thread()
        steps: list[NDArray[np.float32]] = []
        norm = CANARY * self.privacy.clip
        learner = canary_learner(self.present, self.copies, norm, steps.append)
        client = check_learners({"canaries": learner}, self.privacy, record_draws(self.config))["canaries"]
        unit = self.privacy.clip / (self.privacy.sample_rate * client.samples)
        weights, unexplained = client.initial(), 0.0
        for index in range(self.config.federation.rounds):
            steps.clear()
            trained, _ = client.train(weights, index + 1)
            update = (trained - weights).reshape(PARAMETERS, -1)
            unexplained = max(unexplained, _share(update - np.sum(steps, axis=0), update))
            weights = trained
            for number, step in enumerate(steps):
                watch(index, number, step.astype(np.float64) / unit)
        return unexplained


def along_canaries(step: Step) -> NDArray[np.float64]:
    """What a step added along each person's canary, which lies in all parameters alike."""
    along: NDArray[np.float64] = step.sum(axis=0) / math.sqrt(len(step))
    return along


def _share(rest: NDArray[np.float32], whole: NDArray[np.float32]) -> float:
    largest = float(np.abs(whole).max())
    return float(np.abs(rest).max()) / largest if largest else 0.0
