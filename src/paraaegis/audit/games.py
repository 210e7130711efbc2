"""Attack our own noise: through the real protector, a canary must be no more detectable than the claim allows.

A game is a run of a few rounds, in a world where one client's update is a canary of ten times the clip or in a world
where it is not. The observer knows everything except the noise, projects what it sees onto the canary and guesses the
world. Its error rates prove a lower bound on μ, which must not exceed the μ claimed by the ledger of the same run. What
many short games cannot test (long updates, repeated noise) is measured in noise.py.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.audit.noise import NoiseCheck, check_noise
from paraaegis.audit.setup import Mechanism, audited
from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.fixed_point import from_fixed_point
from paraaegis.methods import METHODS, method_of
from paraaegis.privacy.audit import mu_bound
from paraaegis.privacy.calibrate import epsilon_of
from paraaegis.privacy.guarantee import CLIENTS, NOISED, SERVER, mu_against, sensitivity, sight_of
from paraaegis.privacy.ledger import releases_of
from paraaegis.protocol.shares import row_of
from paraaegis.types import Vector

LENGTH = 16  # values of an update in a game: noise is independent from value to value
TARGET_MU = 1.0  # of a whole game; with 2,000 trials, much less cannot be detected
TRIALS = 2_000
LEAST_TRIALS = 500  # enough for a halved σ to prove μ = 1.6 if 1 is claimed


class Finding(msgspec.Struct, kw_only=True):
    """The result of one adversary's games: the μ that they prove, and the μ that the ledger of the same run claims."""

    adversary: str
    unit: str
    mu_claimed: float
    mu_bound: float
    epsilon_claimed: float
    epsilon_bound: float
    delta: float
    false_alarms: float
    misses: float


class Audit(msgspec.Struct, kw_only=True):
    """All games and measurements of one method."""

    name: str
    calibration: str
    rounds: int
    trials: int
    findings: list[Finding]
    noise: NoiseCheck
    passed: bool  # whether no claim is contradicted


def stands(finding: Finding) -> bool:
    """Whether a claim stands: the proved bound is not above it, and above 0, so the attack did detect the canary."""
    return 0 < finding.mu_bound <= finding.mu_claimed


def everything() -> dict[str, Config]:
    """Every noised method under exact accounting, and every method that sums clean values, with inside_clip."""
    base = Config()
    tight = msgspec.structs.replace(base.privacy, calibration="tight")
    shared = msgspec.structs.replace(tight, inside_clip=1.0)
    methods = [(name, name, tight) for name, method in METHODS.items() if method.noised]
    methods += [(f"{name}, shared noise", name, shared) for name, method in METHODS.items() if method.sums_clean_values]
    return {
        label: msgspec.structs.replace(
            base, protect=msgspec.structs.replace(base.protect, method=name), privacy=privacy
        )
        for label, name, privacy in methods
    }


def audit(
    config: Config,
    name: str = "",
    trials: int = TRIALS,
    rounds: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Audit:
    """Audit the method, calibration and unit of a configuration: `trials` games in each world, and noise measurements.

    The budget is replaced by one at which a game of `rounds` rounds claims μ = 1 (0: two rounds, or three if the noise
    varies by round).
    """
    rounds = _rounds(config, rounds)
    findings = play_games(config, trials, rounds, progress)
    noise = check_noise(config, rounds)
    return Audit(
        name=name or config.protect.method,
        calibration=config.privacy.calibration,
        rounds=rounds,
        trials=trials,
        findings=findings,
        noise=noise,
        passed=all(map(stands, findings)) and noise.passed,
    )


def check_noised(config: Config, rounds: int = 0) -> None:
    """Refuse a configuration without noise to audit, before any game is played."""
    Game(audited(config, _rounds(config, rounds), TARGET_MU, LENGTH))


def _rounds(config: Config, asked: int) -> int:
    return asked or (3 if method_of(config).varies else 2)


def play_games(
    config: Config, trials: int, rounds: int = 2, progress: Callable[[], None] = lambda: None
) -> list[Finding]:
    """Play `trials` games in each world for each adversary against whom noise is claimed."""
    if trials < LEAST_TRIALS:
        raise ConfigError(f"an audit needs at least {LEAST_TRIALS} trials, got {trials}")
    game = Game(audited(config, rounds, TARGET_MU, LENGTH))
    scores: dict[bool, list[list[float]]] = {True: [], False: []}
    for trial in range(trials):
        for present, evidence in scores.items():
            evidence.append(game.play(present, trial))
            progress()
    there, absent = np.array(scores[True]), np.array(scores[False])
    return [game.finding(index, there[:, index], absent[:, index]) for index in range(len(game.claims))]


class Game:
    """A mechanism and the adversaries who try to detect its canary."""

    def __init__(self, config: Config) -> None:
        self.mechanism = Mechanism(config, LENGTH)
        parts, unit = self.mechanism.half.exposures, config.privacy.unit
        releases = [one for number in range(1, config.federation.rounds + 1) for one in releases_of(parts, "0", number)]
        blind = [who for who in (SERVER, CLIENTS) if "clear" not in {sight_of(part, who) for part in parts}]
        claims = {who: mu_against(who, releases, unit) for who in blind}
        self.claims = {who: mu for who, mu in claims.items() if mu}
        if not self.claims:
            raise ConfigError(
                f"{config.protect.method} adds no noise in this configuration, so there is nothing to audit; choose a "
                "noised method or, if values are encrypted, set privacy.inside_clip"
            )
        canary = self.mechanism.canary
        self._updates = {True: canary, False: -canary if unit == "client-replace" else np.zeros_like(canary)}

    def play(self, present: bool, trial: int) -> list[float]:
        """Each adversary's evidence, summed over all rounds: means μ apart in the two worlds, standard deviation 1."""
        evidence, config = dict.fromkeys(self.claims, 0.0), self.mechanism.config
        for number in range(1, config.federation.rounds + 1):
            seen = self._round(self._updates[present], number, 2 * trial + present)
            for what, (part, noise) in self.mechanism.noised.items():
                change = sensitivity(noise.clip, config.privacy.unit)
                along = float(self.mechanism.directions[what] @ seen) * change / noise.sigmas[number - 1] ** 2
                for who, mu in self.claims.items():
                    if sight_of(part, who) in NOISED:
                        evidence[who] += along / mu
        return list(evidence.values())

    def finding(self, index: int, present: NDArray[np.float64], absent: NDArray[np.float64]) -> Finding:
        """What is proved by guessing with a threshold halfway between the two worlds."""
        adversary, claimed = list(self.claims.items())[index]
        privacy = self.mechanism.config.privacy
        middle = 0.0 if privacy.unit == "client-replace" else claimed / 2
        alarms, misses, trials = int((absent > middle).sum()), int((present <= middle).sum()), present.size
        bound = mu_bound(alarms, misses, trials)
        return Finding(
            adversary=adversary,
            unit=privacy.unit,
            mu_claimed=claimed,
            mu_bound=bound,
            epsilon_claimed=epsilon_of(claimed, privacy.delta),
            epsilon_bound=epsilon_of(bound, privacy.delta),
            delta=privacy.delta,
            false_alarms=alarms / trials,
            misses=misses / trials,
        )

    def _round(self, update: Vector, number: int, attempt: int) -> Vector:
        """What this round reveals about the first client, in units of its update; the others send zeros."""
        game, others = self.mechanism, np.zeros_like(update)
        uploads = [game.protect(update if i == 0 else others, i, number, attempt) for i in range(self._senders)]
        reveal_context = game.reveal_context(number, attempt, len(uploads))
        total = game.server.new_sum(reveal_context.round_id, LENGTH // 2 if game.partition else 0)
        for upload in uploads:
            total.add(upload.payload)
        if total.row_bytes:  # the server collects the sums of shares
            rows = {
                index: row_of(game.half, reveal_context.step, index, (upload.shares[name] for upload in uploads))
                for index, name in enumerate(game.names)
            }
            total.open(rows, game.config.federation.quorum, len(uploads))
        revealed = game.half.reveal(total.close(), reveal_context)
        return from_fixed_point(revealed.steps, revealed.worth / reveal_context.heaviest)

    @property
    def _senders(self) -> int:
        """How many clients upload: the first and others, as many as add noise unknown to the observer."""
        return max(part.quorum - part.colluders if part.quorum else 1 for part, _ in self.mechanism.noised.values())
