"""Refusals of values that contradict each other, whatever the method is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from paraaegis.errors import ConfigError
from paraaegis.plural import plural

if TYPE_CHECKING:
    from paraaegis.config.schema import Config, Privacy

MOST = 1e30  # float32 soon overflows beyond it
SMALLEST_CLIP = 1e-10  # of a gradient in float32: the squares of smaller values vanish, so their norm would be zero
LARGEST_RECORD_DELTA = 0.1  # 1/(10 samples) of a client with a single one
SMALLEST_RECORD_DELTA = 1e-12  # the accountant's own rounding exceeds less
PASSED = "passed to federate"  # the `learner` of a run whose learners are objects


def refuse_contradictions(config: Config) -> None:
    """Refuse values of a configuration that contradict each other."""
    federation = config.federation
    _check_learner(config)
    if federation.quorum > config.sampled:
        raise ConfigError(
            f"federation.quorum must be at most the {plural(config.sampled, 'client')} of a round, "
            f"got {federation.quorum}"
        )
    numbers = {
        "train.lr": config.train.lr,
        "train.last_lr": config.train.last_lr,
        "train.server_lr": config.train.server_lr,
        "data.alpha": config.data.alpha,
        "privacy.clip": 0.0 if math.isinf(config.privacy.clip) else config.privacy.clip,
        "privacy.sigma": config.privacy.sigma,
        "privacy.inside_clip": config.privacy.inside_clip,
    }
    for key, value in numbers.items():
        if value > MOST:
            raise ConfigError(f"{key} must be at most {MOST:g}, got {value:g}")
    _refuse_contradictory_privacy(config)
    _check_unit(config.privacy)


def _check_learner(config: Config) -> None:
    """Refuse a learner that cannot be found, and tables that it would ignore."""
    learner = config.learner
    if not learner:
        return
    module, _, function = learner.partition(":")
    words = [function, *module.split(".")]
    if learner != PASSED and (module.endswith(".py") or not all(word.isidentifier() for word in words)):
        raise ConfigError(
            'learner has the form "module:function", such as "hospital:make" for the function make(config, client) in '
            f"hospital.py, got {learner!r}" + ("; leave out .py" if module.endswith(".py") else "")
        )
    ignored = {"model": config.model, "data": msgspec.structs.replace(config.data, folder="")}
    for table, section in ignored.items():
        for key, value in msgspec.structs.asdict(section).items():
            if value != getattr(type(section)(), key):
                raise ConfigError(
                    f"{table}.{key} = {value!r} has no effect, since learner = {learner!r} brings its own model "
                    "and data; remove one of the two"
                )


def _refuse_contradictory_privacy(config: Config) -> None:
    privacy, federation = config.privacy, config.federation
    if math.isinf(privacy.clip) and not math.isinf(privacy.epsilon):
        raise ConfigError("privacy.clip = inf leaves nothing to calibrate noise to; set a finite clip or epsilon = inf")
    if privacy.sigma and math.isinf(privacy.epsilon):
        raise ConfigError(
            f"privacy.sigma = {privacy.sigma:g} asks for noise, but privacy.epsilon = inf turns it off; set only one "
            "of them"
        )
    if privacy.participations and privacy.calibration == "paper":
        raise ConfigError(
            "privacy.participations requires calibration 'tight': the paper's formula accounts for sampling by its "
            "fraction"
        )
    if privacy.participations > federation.rounds:
        raise ConfigError(
            f"privacy.participations must be at most the {plural(federation.rounds, 'round')}, "
            f"got {privacy.participations}"
        )
    if (least := math.ceil(federation.rounds * config.sampled / federation.clients)) > privacy.participations > 0:
        raise ConfigError(
            f"privacy.participations must be at least {least} for {plural(federation.rounds, 'round')} of "
            f"{config.sampled} of {plural(federation.clients, 'client')}, got {privacy.participations}"
        )
    if privacy.floor > (federation.quorum or config.sampled):
        raise ConfigError(
            f"privacy.floor must be at most the quorum, {federation.quorum or config.sampled}, got {privacy.floor}"
        )


def _check_unit(privacy: Privacy) -> None:
    """Refuse keys that the unit does not use."""
    default = type(privacy)()
    if privacy.unit != "record":
        for key in ("sample_rate", "group"):
            if (value := getattr(privacy, key)) != getattr(default, key):
                raise ConfigError(
                    f"privacy.{key} = {value!r} has no effect with privacy.unit = {privacy.unit!r}; set privacy.unit = "
                    f'"record", or leave privacy.{key} out'
                )
        return
    if privacy.calibration == "paper":
        raise ConfigError(
            'privacy.unit = "record" needs privacy.calibration = "tight": the paper\'s formula accounts for noise on '
            "updates, not for training on records"
        )
    _check_range(privacy)
    for key in ("sigma", "inside_clip"):
        if value := getattr(privacy, key):
            raise ConfigError(
                f'privacy.{key} = {value:g} is noise on updates, but with privacy.unit = "record" the noise is in the '
                f"training; leave privacy.{key} out"
            )


def _check_range(privacy: Privacy) -> None:
    """Refuse values that DP-SGD cannot account for."""
    if privacy.clip < SMALLEST_CLIP:
        raise ConfigError(
            f'privacy.clip must be at least {SMALLEST_CLIP:g} with privacy.unit = "record", got {privacy.clip:g}: '
            "32-bit gradients cannot be clipped to less"
        )
    if not SMALLEST_RECORD_DELTA <= privacy.delta <= LARGEST_RECORD_DELTA:
        raise ConfigError(
            f"privacy.delta must be between {SMALLEST_RECORD_DELTA:g} and {LARGEST_RECORD_DELTA:g} with privacy.unit = "
            f'"record", and at most 1/(10 · samples) of every client; got {privacy.delta:g}'
        )
