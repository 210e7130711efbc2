"""Measure record-level DP almost without noise, where an observer can read which records a step drew.

steps        of a round: as many as configured.
rate         of draws: as configured.
turns        how often a record is drawn in a round: varies as much as independent draws do. Shuffled records are all
             drawn equally often.
batches      how many records a step draws: varies as much as independent draws do. A fixed batch size does not vary.
repeats      correlation of how often each record is drawn in two rounds, or after a restart: none.
norm         of the clipped gradient of one record, in the worst step: at most the clip. It varies from step to step if
             sums are divided by the number of records drawn.
deviation    of the noise: at least as claimed.
correlation  of the noise of two steps, rounds, starts or parameters: none.
unexplained  part of an update beyond its steps: none.

Each may be off by at most LIMIT = 7 standard deviations of what chance gives an honest mechanism, as in noise.py.
Sums of squares are compared after their cube root, which makes them close to normal (Wilson and Hilferty). An audit
takes up to a few thousand such measurements, each with a probability of at most 2.6e-12 to be off by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.audit.noise import LIMIT
from paraaegis.audit.record_setup import Step, Training, along_canaries, audited_records, training_of
from paraaegis.config import Config
from paraaegis.types import RecordPrivacy

PEOPLE = 1_000
STARTS = 2
MOST_ROUNDS = 3
LEAST_STEPS = 25  # per round, to see batch sizes vary
MULTIPLIER = 1 / 20  # so that a draw is ten standard deviations from the threshold halfway
KEPT = 8  # steps of each round whose noise is compared
ROUNDING = 1e-3  # of float32 sums over a round
KINDS = ("starts", "rounds", "steps", "parameters")  # in which two pieces of noise can differ

Values = NDArray[np.float64]


class Measurement(msgspec.Struct, kw_only=True):
    """A measured value, and the range in which an honest mechanism's is; None where that is open."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None


class RecordCheck(msgspec.Struct, kw_only=True):
    """The measurements of one configuration's training. `repeats` and `correlations`: the largest one by kind."""

    people: int
    trainings: int
    measurements: list[Measurement]
    repeats: dict[str, float]  # in standard deviations of the correlation of independent draws
    correlations: dict[str, float]  # the same for noise
    correlation_limit: float = LIMIT
    passed: bool


@dataclass
class Reading:
    """What can be read off one training of several rounds."""

    turns: list[Values] = field(default_factory=list)  # by round: how often each person was drawn
    steps: list[int] = field(default_factory=list)  # by round
    batches: list[int] = field(default_factory=list)  # by step: how many were drawn
    norms: list[float] = field(default_factory=list)  # by step: the mean norm of those who were drawn, 0 if none were
    squares: float = 0.0  # of the noise, with deviation 1 as claimed
    freedom: int = 0
    noise: list[Values] = field(default_factory=list)  # of the first steps of each round, parameters × people
    labels: list[tuple[int, int]] = field(default_factory=list)  # the round and step of each of these

    def watch(self, index: int, number: int, step: Step) -> None:
        """Read one step."""
        along = along_canaries(step)
        drawn = along > 1 / 2
        if not number:
            self.turns.append(np.zeros(drawn.size))
            self.steps.append(0)
        self.turns[index] += drawn
        self.steps[index] += 1
        self.batches.append(int(drawn.sum()))
        self.norms.append(float(along[drawn].mean()) if drawn.any() else 0.0)
        noise = (step - drawn * self.norms[-1] / math.sqrt(len(step))) / MULTIPLIER
        self.squares += float(np.square(noise).sum())
        self.freedom += noise.size - 1
        if number < KEPT:
            self.noise.append(noise)
            self.labels.append((index, number))


def check_records(config: Config, rounds: int) -> RecordCheck:
    """Measure sampling, clipping and noise of a configuration's training, with the audit's own budget."""
    epochs = math.ceil(LEAST_STEPS * config.privacy.sample_rate)
    config = audited_records(config, min(rounds, MOST_ROUNDS), math.inf, epochs)
    privacy = replace(training_of(config), multiplier=MULTIPLIER)
    readings = [Reading() for _ in range(STARTS)]
    unexplained = [Training(config, privacy, np.ones(PEOPLE, np.bool_)).run(one.watch) for one in readings]
    measurements = [
        Measurement(what="steps", value=max(max(one.steps) for one in readings), most=privacy.steps),
        *_sampling(readings, privacy),
        _worst_norm(readings),
        _deviation(readings),
        Measurement(what="unexplained", value=max(unexplained), most=ROUNDING),
    ]
    repeats, correlations = _repeats(readings, privacy), _correlations(readings)
    return RecordCheck(
        people=PEOPLE,
        trainings=STARTS * config.federation.rounds,
        measurements=measurements,
        repeats=repeats,
        correlations=correlations,
        passed=all(map(as_claimed, measurements)) and max([*repeats.values(), *correlations.values()]) <= LIMIT,
    )


def as_claimed(one: Measurement) -> bool:
    """Whether a value is where an honest mechanism's is."""
    return (one.least is None or one.least <= one.value) and (one.most is None or one.value <= one.most)


def _sampling(readings: list[Reading], privacy: RecordPrivacy) -> list[Measurement]:
    """How often records are drawn, and how independently; nothing about the latter if each step draws all."""
    turns = np.concatenate([turns for one in readings for turns in one.turns])
    batches = np.concatenate([one.batches for one in readings])
    rate, draws = privacy.sample_rate, batches.size * PEOPLE
    slack = LIMIT * math.sqrt(rate * (1 - rate) / draws)
    measured = Measurement(what="rate", value=float(batches.sum() / draws), least=rate - slack, most=rate + slack)
    if rate == 1:
        return [measured]
    return [measured, _spread("turns", turns, privacy.steps, rate), _spread("batches", batches, PEOPLE, rate)]


def _spread(what: str, counts: Values, trials: int, rate: float) -> Measurement:
    """The variance of counts, relative to that of binomial ones."""
    variance = trials * rate * (1 - rate)
    excess = (1 - 6 * rate * (1 - rate)) / variance  # kurtosis
    freedom = 2 * counts.size / (2 + excess)  # of the χ² with the same mean and variance
    width = 2 / (9 * freedom)
    least, most = (max(0.0, 1 - width + sign * LIMIT * math.sqrt(width)) ** 3 for sign in (-1, 1))
    value = float(np.square(counts - trials * rate).mean() / variance)
    return Measurement(what=what, value=value, least=least, most=most)


def _worst_norm(readings: list[Reading]) -> Measurement:
    norms, batches = (np.concatenate([getattr(one, name) for one in readings]) for name in ("norms", "batches"))
    worst = int(((norms - 1) * np.sqrt(batches)).argmax())
    return Measurement(
        what="norm", value=float(norms[worst]), most=1 + LIMIT * MULTIPLIER / math.sqrt(max(1, batches[worst]))
    )


def _deviation(readings: list[Reading]) -> Measurement:
    freedom = sum(one.freedom for one in readings)
    value = math.sqrt(sum(one.squares for one in readings) / freedom)
    return Measurement(what="deviation", value=value, least=1 - LIMIT / math.sqrt(2 * freedom))


def _repeats(readings: list[Reading], privacy: RecordPrivacy) -> dict[str, float]:
    rate, steps = privacy.sample_rate, privacy.steps
    if rate == 1:
        return {}
    rows = [(turns - steps * rate) / math.sqrt(steps * rate * (1 - rate)) for one in readings for turns in one.turns]
    labels = [(start, index) for start, one in enumerate(readings) for index in range(len(one.turns))]
    return _largest(rows, labels)


def _correlations(readings: list[Reading]) -> dict[str, float]:
    rows = [row for one in readings for noise in one.noise for row in noise]
    labels = [
        (start, *label, index)
        for start, one in enumerate(readings)
        for label, noise in zip(one.labels, one.noise, strict=True)
        for index in range(len(noise))
    ]
    return _largest(rows, labels)


def _largest(rows: list[Values], labels: Sequence[tuple[int, ...]]) -> dict[str, float]:
    """The largest correlation of two rows, by the first of KINDS in which their labels differ."""
    sizes = np.abs(np.array(rows) @ np.array(rows).T) / math.sqrt(PEOPLE)
    named = np.array(labels)
    differs = (named[:, None] != named[None]).argmax(axis=2)
    np.fill_diagonal(differs, -1)
    return {kind: float(sizes[differs == i].max()) for i, kind in enumerate(KINDS) if (differs == i).any()}
