"""An attack on our own noise: a canary must not show through the real protector more than the claim allows.

A game is a run of a few rounds with one client whose update is a canary of norm 10·θ, or is not. The observer knows
everything but the noise, adds up what it sees along the canary and guesses which world it was. How often it errs
proves a μ, which must stay below the μ that the ledger of the same run claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.config import Config
from paraaegis.crypto import lwe
from paraaegis.crypto.shamir import Q
from paraaegis.crypto.shuffle import secret_order
from paraaegis.errors import ConfigError
from paraaegis.experiments.wire import check_method, make_keys
from paraaegis.grid import from_grid
from paraaegis.methods import METHODS, Materials, find_method
from paraaegis.privacy.audit import mu_bound
from paraaegis.privacy.calibrate import epsilon_of, remark_epsilon, remark_sensitivity
from paraaegis.privacy.guarantee import CLIENTS, NOISED, SERVER, mu_against, sensitivity, sight_of
from paraaegis.privacy.ledger import Exposure, releases_of
from paraaegis.protocol.combine import GridSum
from paraaegis.protocol.lwe_round import LweHalf, unmask
from paraaegis.protocol.messages import Where
from paraaegis.protocol.partition import Partition
from paraaegis.protocol.protect import Protected, Sight, Turn
from paraaegis.seeds import Purpose, stream
from paraaegis.types import Mask, Payload, Vector

LENGTH = 16  # values of the audited update: noise is independent from value to value
LOUD = 10.0  # the canary's norm in clips
TARGET_MU = 1.0  # of a whole game: at 5,000 trials much less shows nothing
TRIALS = 5_000
LEAST_TRIALS = 1_000


class Finding(msgspec.Struct, kw_only=True):
    """One adversary's games. `mu_bound` was proved by playing, `mu_claimed` is the ledger's word on the same run."""

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
    """All games against one method."""

    name: str
    calibration: str
    rounds: int
    trials: int
    findings: list[Finding]
    passed: bool  # whether every claim stands


def stands(finding: Finding) -> bool:
    """Whether a claim stands: nothing above it was proved, and something was, so that the attack saw the canary."""
    return 0 < finding.mu_bound <= finding.mu_claimed


def everything() -> dict[str, Config]:
    """Every noised method under exact accounting, and noise inside every method that encrypts values without."""
    base = Config()
    tight = msgspec.structs.replace(base.privacy, calibration="tight")
    inside = msgspec.structs.replace(tight, inside_clip=1.0)
    chosen = [(name, name, tight) for name, method in METHODS.items() if method.noisy]
    chosen += [(f"{name}, noise inside", name, inside) for name, method in METHODS.items() if method.inside]
    return {
        label: msgspec.structs.replace(
            base, protect=msgspec.structs.replace(base.protect, method=name), privacy=privacy
        )
        for label, name, privacy in chosen
    }


def audit(
    config: Config,
    name: str = "",
    trials: int = TRIALS,
    rounds: int = 0,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Audit:
    """Play `trials` games in each world against the method, calibration and unit of a configuration.

    Its budget is replaced by one at which a game of `rounds` rounds (0: one, of a varying series three) claims μ = 1.
    """
    if trials < LEAST_TRIALS:
        raise ConfigError(f"an audit needs at least {LEAST_TRIALS} games in each world, got {trials}")
    rounds = rounds or (3 if config.protect.method == "varying-dp" else 1)
    game = Game(game_config(config, rounds), seed)
    scores: dict[bool, list[list[float]]] = {True: [], False: []}
    for trial in range(trials):
        for present, found in scores.items():
            found.append(game.play(present, trial))
            progress()
    there, absent = np.array(scores[True]), np.array(scores[False])
    findings = [game.finding(index, there[:, index], absent[:, index]) for index in range(len(game.claims))]
    return Audit(
        name=name or config.protect.method,
        calibration=config.privacy.calibration,
        rounds=rounds,
        trials=trials,
        findings=findings,
        passed=all(stands(one) for one in findings),
    )


def game_config(config: Config, rounds: int) -> Config:
    """The same mechanism for few rounds and clients, with a budget at which one client's μ over all of them is 1."""
    privacy, samples = config.privacy, max(1, config.federation.min_samples)
    if math.isinf(privacy.epsilon) or math.isinf(privacy.clip):
        raise ConfigError("there is no noise to audit: privacy.epsilon and privacy.clip must be finite")
    quorum = privacy.colluders + 1  # all but one tell the observer their noise, which is then as good as not there
    if config.protect.method == "lwe-secagg":  # which needs more honest clients
        quorum = privacy.colluders + lwe.FORMS[config.protect.lwe].least_honest
    if privacy.calibration == "tight":
        epsilon = epsilon_of(TARGET_MU, privacy.delta)
    else:  # the ε that the Remark gives to noise whose honest, client-level μ is 1
        change = remark_sensitivity(privacy.clip, samples) / sensitivity(privacy.clip, privacy.unit)
        epsilon = remark_epsilon((TARGET_MU * change) ** 2, privacy.delta)
    federation = msgspec.structs.replace(
        config.federation, clients=quorum, quorum=quorum, rounds=rounds, fraction=1.0, min_samples=samples
    )
    privacy = msgspec.structs.replace(privacy, epsilon=epsilon, sigma=0.0, participations=0, floor=0)
    protect = msgspec.structs.replace(config.protect, ratio=0.5, carry=False)
    point = msgspec.structs.replace(config, federation=federation, privacy=privacy, protect=protect)
    check_method(point, LENGTH)
    return point


class Game:
    """One mechanism, its canary and those who try to see it."""

    def __init__(self, config: Config, seed: int) -> None:
        method, keys = find_method(config.protect.method), make_keys(config)
        self.config, self._seed = config, seed
        self._half, self._server = method.client(Materials(config, keys)), method.server(config, None)
        self._partition = _halves(keys.vote) if self._half.votes else None
        self._k = LENGTH // 2 if self._half.votes else 0
        parts = self._half.exposures
        releases = [one for number in range(1, config.federation.rounds + 1) for one in releases_of(parts, "0", number)]
        blind = [who for who in (SERVER, CLIENTS) if "clear" not in {sight_of(part, who) for part in parts}]
        claims = {who: mu_against(who, releases, config.privacy.unit) for who in blind}
        self.claims = {who: mu for who, mu in claims.items() if mu}
        if not self.claims:
            raise ConfigError(f"{config.protect.method} noises nothing in this configuration, so nothing is audited")
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], LENGTH)
        self._directions = {part.what: _unit(signs, self._where(part)) for part in parts if part.noise}
        self._canary = sum(
            (LOUD * part.noise.clip * self._directions[part.what] for part in parts if part.noise), np.zeros(LENGTH)
        ).astype(np.float32)
        self._names = config.names

    def _where(self, part: Exposure) -> Mask:
        if self._partition is None:
            return np.ones(LENGTH, dtype=np.bool_)
        return self._partition.inside if part.what == "inside" else ~self._partition.inside

    def play(self, present: bool, trial: int) -> list[float]:
        """What each adversary's evidence adds up to over all rounds: mean μ apart in the two worlds, deviation 1."""
        evidence = dict.fromkeys(self.claims, 0.0)
        missing = -self._canary if self.config.privacy.unit == "client-replace" else np.zeros_like(self._canary)
        update = self._canary if present else missing
        for number in range(1, self.config.federation.rounds + 1):
            seen = self._round(update, number, 2 * trial + present)
            for part in self._half.exposures:
                if part.noise is None:
                    continue
                change = sensitivity(part.noise.clip, self.config.privacy.unit)
                along = float(self._directions[part.what] @ seen) * change / part.noise.sigmas[number - 1] ** 2
                for who, mu in self.claims.items():
                    if sight_of(part, who) in NOISED:
                        evidence[who] += along / mu
        return list(evidence.values())

    def finding(self, index: int, present: NDArray[np.float64], absent: NDArray[np.float64]) -> Finding:
        """What guessing by a threshold halfway between the worlds proves."""
        adversary, claimed = list(self.claims.items())[index]
        middle = 0.0 if self.config.privacy.unit == "client-replace" else claimed / 2
        alarms, misses, trials = int((absent > middle).sum()), int((present <= middle).sum()), present.size
        bound, delta = mu_bound(alarms, misses, trials), self.config.privacy.delta
        return Finding(
            adversary=adversary,
            unit=self.config.privacy.unit,
            mu_claimed=claimed,
            mu_bound=bound,
            epsilon_claimed=epsilon_of(claimed, delta),
            epsilon_bound=epsilon_of(bound, delta),
            delta=delta,
            false_alarms=alarms / trials,
            misses=misses / trials,
        )

    def _round(self, update: Vector, number: int, attempt: int) -> Vector:
        """What this round reveals of the first client, in the units of its update; the others send nothing."""
        clients = len(self._names)
        sight = Sight(number, attempt, clients, 1 / clients, self._partition)
        upload = self._half.protect(update, self._turn(sight, 0))
        if isinstance(self._half, LweHalf):  # nobody can take part alone
            others = [self._half.protect(np.zeros_like(update), self._turn(sight, i)) for i in range(1, clients)]
            payload = self._unmasked(self._half, sight, [upload, *others])
        else:
            total = self._server.open(LENGTH, self._k)
            total.add(upload.payload)
            payload = total.close()
        revealed = self._half.reveal(payload, sight)
        return from_grid(revealed.steps, revealed.worth * clients)

    def _turn(self, sight: Sight, index: int) -> Turn:
        return Turn(
            number=sight.number,
            attempt=sight.attempt,
            clients=sight.clients,
            heaviest=sight.heaviest,
            partition=sight.partition,
            weight=sight.heaviest,
            rng=stream(self._seed, Purpose.NOISE, index, sight.number, sight.attempt + 1),
            name=self._names[index],
            members=self._names,
        )

    def _unmasked(self, half: LweHalf, sight: Sight, uploads: list[Protected]) -> Payload:
        """What the server of lwe-secagg does: add, collect the sums of shares, take the mask off."""
        total, where = GridSum(LENGTH, "lwe"), Where(half.run, "lwe-secagg", LENGTH, sight.number, sight.attempt)
        for upload in uploads:
            total.add(upload.payload)
        rows = {
            i: np.sum([upload.shares[name] for upload in uploads], axis=0) % Q for i, name in enumerate(self._names)
        }
        unmask(total, lwe.FORMS[half.form], where, rows, half.quorum, len(uploads))
        colluders = range(1, 1 + half.colluders)
        total.values -= sum(self._told(half, sight, index) for index in colluders)
        return total.close()

    def _told(self, half: LweHalf, sight: Sight, index: int) -> NDArray[np.int64]:
        """The error of a colluder, who tells it to the observer."""
        return lwe.error(self._turn(sight, index).rng, half.numbers(sight, LENGTH).error_std, LENGTH)


def _halves(vote_key: bytes) -> Partition:
    """A partition with half of the values inside, as if elected."""
    elected = np.arange(LENGTH) < LENGTH // 2
    return Partition.of(elected, secret_order(vote_key, 1, "audit", 1, 0, LENGTH))


def _unit(signs: NDArray[np.float64], where: Mask) -> NDArray[np.float64]:
    """A direction of norm 1 over the values of a part."""
    return np.where(where, signs, 0.0) / math.sqrt(np.count_nonzero(where))
