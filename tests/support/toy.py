"""A federation small enough for laws: learners whose updates the test chooses, on the real protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paraaegis.config import Config, make_config
from paraaegis.crypto.keys import FederationKeys
from paraaegis.crypto.ratchet import Root
from paraaegis.engines.local import LocalTransport
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import Federation, assemble
from paraaegis.runs.check import resolve
from paraaegis.runs.run import federate

KEYS = FederationKeys(Root(bytes(range(32)), bytes(16)))


class ToyLearner:
    """Training adds a given update; the model is a plain vector. Its accuracy is its first value."""

    def __init__(self, updates: Sequence[np.ndarray], samples: int = 10) -> None:
        self.updates = [np.asarray(update, dtype=np.float32) for update in updates]
        self.samples = samples
        self.trained = 0

    def initial(self) -> np.ndarray:
        return np.zeros_like(self.updates[0])

    def train(self, weights, number):
        self.trained += 1
        return weights + self.updates[(number - 1) % len(self.updates)], {}

    def apply(self, weights, delta):
        return weights + delta

    def evaluate(self, weights):
        return {"accuracy": float(weights[0])} if weights.size else {}

    def state(self):
        return {"trained": np.asarray(self.trained)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self.trained = int(state["trained"])


def configure(*settings: str) -> Config:
    """A configuration without noise and clipping unless the settings ask for them."""
    return make_config({}, ["privacy.epsilon=inf", "privacy.clip=inf", *settings])


def learners_of(updates, samples: Sequence[int] | None = None) -> dict[str, ToyLearner]:
    """One learner a row of updates (clients × rounds × values, or clients × values)."""
    rows = [np.atleast_2d(row) for row in updates]
    counts = samples or [10] * len(rows)
    return {f"client-{i}": ToyLearner(row, counts[i]) for i, row in enumerate(rows)}


def federation_of(config: Config, learners: Mapping[str, ToyLearner]) -> Federation:
    config = resolve(config, [learner.samples for learner in learners.values()])
    return assemble(config, learners, KEYS, "client-0")


class Played:
    """What came out of a run: the engine with its states, and the lines."""

    def __init__(self, engine: LocalTransport, lines: list[RoundRecord], federation: Federation) -> None:
        self.engine, self.lines, self.federation = engine, lines, federation

    @property
    def model(self) -> np.ndarray:
        return self.engine.states["client-0"].weights

    def residual(self, client: str) -> np.ndarray | None:
        return self.engine.states[client].residual


def play(updates, *settings: str, rounds: int = 1, samples: Sequence[int] | None = None, workers: int = 2) -> Played:
    """Run updates (clients × values, or clients × rounds × values) through the whole protocol."""
    learners = learners_of(updates, samples)
    config = configure(f"federation.clients={len(learners)}", f"federation.rounds={rounds}", *settings)
    federation = federation_of(config, learners)
    lines: list[RoundRecord] = []
    engine = LocalTransport(federation.clients, workers=workers)
    engine.run(RoundServer(federation.parameters, federation.server, ServerState()), lines.append, lambda _: None)
    return Played(engine, lines, federation)


def compared(out, updates, methods: dict[str, Sequence[str]]) -> Path:
    """A comparison's folder with one complete run a method."""
    shape = (f"federation.clients={len(updates)}", f"federation.rounds={len(updates[0])}")
    for method, settings in methods.items():
        config = configure(*shape, f"protect.method={method}", *settings)
        federate(config, learners_of(updates), out / f"{method}--iid--seed0")
    return out
