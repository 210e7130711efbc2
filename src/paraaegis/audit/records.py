"""Attack record-level DP: through real training, a record must be no more detectable than the claim allows.

Canaries are records whose clipped gradients are orthogonal, one coordinate for each person. Each person is in the
training or out of it (zero gradients) by a fair coin, so one training plays as many games as there are persons, in the
spirit of Steinke, Nasr and Jagielski, 2023 (arXiv:2305.08846). The observer sees every noised step, as the accounting
assumes, and guesses from the likelihood of what it saw along a person's coordinate.

In the mechanism that is claimed, what is seen of one person is independent of all others: coins, sampling and noise
are. So exact (Clopper–Pearson) bounds hold for the error rates of its guesses, as for that many separate trainings.
What such guesses cannot test (sampling that is not Poisson, repeated noise) is measured in record_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from paraaegis.audit.games import LEAST_TRIALS, TARGET_MU, TRIALS
from paraaegis.audit.record_checks import RecordCheck, check_records
from paraaegis.audit.record_setup import Step, Training, along_canaries, audited_records, training_of
from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.privacy.record_audit import Curve, Guess, multiplier_bound
from paraaegis.privacy.records import Step as Accounted
from paraaegis.privacy.records import multiplier_for, record_unit

LABEL = "record-level DP"
ROUNDS = 2
PER_TRIAL = 10  # persons for each trial: one training plays thousands of games
PEOPLE = 2_500  # in one training
SUSPECTED = (1.0, 0.7, 0.5)  # the noise that each guess is best for, in claimed multipliers


class RecordFinding(msgspec.Struct, kw_only=True):
    """What guesses prove: the noise multiplier and ε of the most private accounted mechanism that could be this one."""

    adversary: str
    unit: str
    multiplier_claimed: float
    multiplier_bound: float | None  # None if nothing is proved
    epsilon_claimed: float
    epsilon_bound: float
    delta: float
    false_alarms: float
    misses: float


class RecordAudit(msgspec.Struct, kw_only=True):
    """The games and measurements of one configuration's training."""

    name: str
    rounds: int
    steps: int  # per round
    sample_rate: float
    people: int
    findings: list[RecordFinding]
    training: RecordCheck
    passed: bool  # whether no claim is contradicted


def everything() -> dict[str, Config]:
    """Record-level DP with its default sampling."""
    base = Config()
    privacy = msgspec.structs.replace(base.privacy, unit="record", calibration="tight")
    return {LABEL: msgspec.structs.replace(base, privacy=privacy)}


def audit(
    config: Config,
    name: str = "",
    trials: int = TRIALS,
    rounds: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> RecordAudit:
    """Audit the training of a configuration with unit `record`: its sampling rate, group, clip and δ.

    The budget is replaced by the ε that μ = 1 has at this δ, spent in `rounds` rounds (0: two) of one epoch each. What
    follows the training, such as votes and encryption, is post-processing, which cannot reveal more.
    """
    rounds = rounds or ROUNDS
    game = Game(config, rounds)
    finding = play_games(game, trials, progress)
    training = check_records(config, rounds)
    return RecordAudit(
        name=name or LABEL,
        rounds=rounds,
        steps=game.privacy.steps,
        sample_rate=config.privacy.sample_rate,
        people=PER_TRIAL * trials,
        findings=[finding],
        training=training,
        passed=stands(finding) and training.passed,
    )


def stands(finding: RecordFinding) -> bool:
    """Whether a claim stands: what is proved is below it, and above 0, so the attack did detect something."""
    bound = finding.multiplier_bound
    return bound is not None and bound > finding.multiplier_claimed


def play_games(game: Game, trials: int = TRIALS, progress: Callable[[], None] = lambda: None) -> RecordFinding:
    """Play PER_TRIAL games for each trial, at most PEOPLE in one training."""
    if trials < LEAST_TRIALS:
        raise ConfigError(f"an audit needs at least {LEAST_TRIALS} trials, got {trials}")
    people = PER_TRIAL * trials
    scores = [game.play(min(PEOPLE, people - done), progress) for done in range(0, people, PEOPLE)]
    there, absent = (np.concatenate(world, axis=1) for world in zip(*scores, strict=True))
    return game.finding(there, absent)


class Game:
    """What is claimed of a training, and the observer who tests it."""

    def __init__(self, config: Config, rounds: int = ROUNDS) -> None:
        self._config = audited_records(config, rounds, TARGET_MU)
        privacy = self._config.privacy
        self.privacy, self._group = training_of(self._config), privacy.group
        self._count = self.privacy.steps * rounds
        # What the budget asks for, whatever the training does.
        multiplier = multiplier_for(privacy.epsilon, privacy.delta, privacy.sample_rate, self._count, privacy.group)
        self._claimed = Accounted(privacy.sample_rate, multiplier)
        chances = binom.pmf(np.arange(privacy.group + 1), privacy.group, privacy.sample_rate)
        self._draws, self._chances = np.flatnonzero(chances), chances[chances > 0]

    def play(self, people: int, progress: Callable[[], None]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """One training; the scores of those who are in and out of it, guesses × people."""
        present = np.random.default_rng().random(people) < 1 / 2
        scores = np.zeros((len(SUSPECTED), people))

        def watch(_round: int, _number: int, step: Step) -> None:
            scores[:] += self._evidence(along_canaries(step))

        Training(self._config, self.privacy, present, self._group).run(watch)
        for _ in range(people):
            progress()
        return scores[:, present], scores[:, ~present]

    def finding(self, there: NDArray[np.float64], absent: NDArray[np.float64]) -> RecordFinding:
        """What is proved by guessing whatever is more likely."""
        guesses = [
            Guess.of(scores_in, scores_out, len(SUSPECTED)) for scores_in, scores_out in zip(there, absent, strict=True)
        ]
        claimed, count, group, delta = self._claimed, self._count, self._group, self._config.privacy.delta
        bound, best = multiplier_bound(guesses, claimed, count, group)
        return RecordFinding(
            adversary="everyone",
            unit=record_unit(group),
            multiplier_claimed=claimed.multiplier,
            multiplier_bound=bound,
            epsilon_claimed=self._config.privacy.epsilon,
            epsilon_bound=Curve(Accounted(claimed.sample_rate, bound), count, group).epsilon(delta) if bound else 0.0,
            delta=delta,
            false_alarms=best.alarms / best.absent,
            misses=best.misses / best.there,
        )

    def _evidence(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """By guess and person: the log-likelihood ratio of one step, in against out.

        A step draws k of the person's records with chance p_k and adds noise z: ln Σ p_k·exp((k·y − k²/2) / z²).
        """
        draws = self._draws[:, None]
        exponents = draws * seen - draws**2 / 2
        largest = exponents.max(axis=0)
        noises = [share * self._claimed.multiplier for share in SUSPECTED]
        return np.array(
            [largest / noise**2 + np.log(self._chances @ np.exp((exponents - largest) / noise**2)) for noise in noises]
        )
