"""Whether a plan would learn: what a pilot predicts, or what the noise alone says; and what would learn instead."""

from __future__ import annotations

import math

import msgspec

from paraaegis.config import PROFILES, Config, make_config
from paraaegis.errors import ConfigError, PrivacyError
from paraaegis.learn.names import GROUP_NORM
from paraaegis.methods import ENCRYPTED, METHODS, method_of
from paraaegis.metrics import is_percent, lower_is_better
from paraaegis.planning.pilot import Pilot
from paraaegis.privacy.ledger import REST
from paraaegis.runs.check import check_method
from paraaegis.runs.guarantees import lacks_samples

FEWEST_RLWE = 3  # clients in a round
LEARNT = 0.5  # of what plain averaging learns: with less, a plan is refused
DROWNED = 120.0  # times the clip; with more noise than this in a mean update, nothing that we tried learned
SLACK, SLACK_NOISED = 2.0, 5.0  # points by which a final model may be worse than the pilot's


class Prediction(msgspec.Struct, kw_only=True):
    """The range within which the metric of the final model is expected, in percent."""

    metric: str
    low: float
    high: float


class Instead(msgspec.Struct, kw_only=True):
    """A change of the configuration with which it would learn, what that protects, and what it reached in a pilot."""

    settings: list[str]
    why: str
    reached: float | None = None


def predict(config: Config, pilot: Pilot, reached: float) -> Prediction | None:
    """The range to expect after all rounds; None for metrics that are no percentages.

    At least about what the pilot reached, and at best an error that falls in inverse proportion to the rounds.
    """
    if not is_percent(pilot.metric) or lower_is_better(pilot.metric):
        return None
    slack = SLACK_NOISED if method_of(config).noised_parts(config) else SLACK
    error = (100 - pilot.plain) * pilot.rounds / max(pilot.rounds, config.federation.rounds)
    low = max(0.0, reached - slack)
    return Prediction(metric=pilot.metric, low=low, high=min(100.0, max(low, 100 - error + SLACK)))


def learns_too_little(pilot: Pilot, ratio: float) -> str:
    """Why a ratio would not learn according to the pilot; empty if it does."""
    reached = pilot.reached(ratio)
    if learnt(pilot, reached):
        return ""
    return (
        f"{pilot.metric} {reached:.3g} in the pilot, where plain averaging reached {pilot.plain:.3g}: it will not learn"
    )


def learnt(pilot: Pilot, reached: float) -> bool:
    """Whether this is enough of what plain averaging learned in the pilot, or reached if the start is unknown."""
    if not math.isfinite(pilot.start):
        return reached * LEARNT <= pilot.plain if lower_is_better(pilot.metric) else reached >= LEARNT * pilot.plain
    gained, plain = reached - pilot.start, pilot.plain - pilot.start
    return gained <= LEARNT * plain if lower_is_better(pilot.metric) else gained >= LEARNT * plain


def drowned(config: Config, length: int, ratio: float) -> str:
    """Why the noise on updates leaves nothing to learn from, as far as this shows without a pilot; empty if it may."""
    method = method_of(config)
    rest = None if lacks_samples(config) else method.parts.get(REST)
    noise = rest.noise(config, method.noised_parts(config)) if rest else None
    if noise is None or math.isinf(noise.clip):
        return ""
    times = max(noise.sigmas) * math.sqrt((1 - ratio) * length / config.sampled) / noise.clip
    if times <= DROWNED:
        return ""
    return (
        f"the noise in a mean update (σ = {max(noise.sigmas):.3g} on {(1 - ratio) * length:,.0f} values) is "
        f"{times:,.0f} times the clip: it will not learn"
    )


def instead_of(config: Config) -> list[Instead]:
    """What learns where noise on updates does not: noise in the training, or encryption without noise."""
    if not method_of(config).noised_parts(config):
        return []
    withholding = next(name for name, method in METHODS.items() if method.withholds)
    privacy = config.privacy
    settings = [f"protect.method={ENCRYPTED}", "privacy.unit=record", "privacy.calibration=tight"]
    settings.append(f"privacy.epsilon={privacy.epsilon:g}")
    if not config.learner and (model := GROUP_NORM.get(config.model.name)):
        settings.append(f"model.name={model}")
    settings += ["privacy.inside_clip=0"] if privacy.inside_clip else []
    kept = [f"privacy.noise={privacy.noise}"]
    if config.sampled >= FEWEST_RLWE and config.protect.cipher != "rlwe":
        kept += ["protect.cipher=rlwe", f"protect.profile={PROFILES['rlwe'][0]}"]
    ideas = [
        Instead(
            settings=[*settings, *kept],
            why=f"ε = {privacy.epsilon:g} for each record instead of each client, against everyone",
        ),
        Instead(
            settings=[f"protect.method={withholding}", "privacy.epsilon=inf", *kept],
            why="encryption without noise: the server reads nothing, but fellow clients and the model show the sum",
        ),
    ]
    return [one for one in ideas if _accepted(config, one.settings)]


def _accepted(config: Config, settings: list[str]) -> bool:
    """Whether a configuration with these settings is possible."""
    try:
        check_method(make_config(config.tables(), settings))
    except (ConfigError, PrivacyError):
        return False
    return True
