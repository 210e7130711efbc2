"""The public parameters of a run, which both sides know before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.schedule import Schedule
from paraaegis.seeds import Purpose, stream


@dataclass(frozen=True)
class RunParameters:
    """A run's public parameters. `evaluators` report every round, even when they are not sampled."""

    run: str
    config: str  # digest
    method: str
    length: int
    rounds: int
    clients: tuple[str, ...]
    sampled: int
    quorum: int
    uniform: bool
    min_samples: int
    schedule: Schedule
    strategy: str
    history: int
    seed: int
    attempts: int = 3  # answers per client for one state of the model
    participations: int = 0  # most rounds for which a client is drawn; 0: no limit
    evaluators: tuple[str, ...] = ()

    def round_id(self, number: int, attempt: int = 0) -> RoundId:
        """The RoundId that this round's messages carry."""
        return RoundId(self.run, self.method, self.length, number, attempt)

    def k(self, number: int) -> int:
        """How many values are elected in this round."""
        return self.schedule.elected_at(number, self.length)

    def members(self, number: int) -> tuple[str, ...]:
        """Line 3 of Algorithm 1: the clients of this round, drawn from a public seed."""
        if self.sampled >= len(self.clients):
            return self.clients
        return tuple(self.clients[index] for index in sorted(self._draws[number - 1]))

    @cached_property
    def _draws(self) -> list[list[int]]:
        """The clients drawn in each round. If participation is capped, those drawn least often go first."""
        draws, counts = [], np.zeros(len(self.clients), dtype=np.int64)
        for number in range(1, self.rounds + 1):
            rng = stream(self.seed, Purpose.SAMPLE, number=number)
            if self.participations:
                shuffled = rng.permutation(len(self.clients))
                drawn = shuffled[np.argsort(counts[shuffled], kind="stable")][: self.sampled]
            else:
                drawn = rng.choice(len(self.clients), size=self.sampled, replace=False)
            counts[drawn] += 1
            draws.append(drawn.tolist())
        return draws

    def weight(self, samples: int) -> int:
        """A client's weight before normalisation: its samples, or 1."""
        return 1 if self.uniform else samples
