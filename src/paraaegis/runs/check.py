"""What a run fills into a configuration, and what it refuses, before any work."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import msgspec

from paraaegis.config import PROFILES, Config, Privacy, check_names, meant
from paraaegis.crypto import ckks, rlwe
from paraaegis.errors import ConfigError
from paraaegis.methods import METHODS, method_of
from paraaegis.metrics import ACCURACY, LOSS
from paraaegis.plural import plural
from paraaegis.privacy.record_budget import check_delta
from paraaegis.protocol.learner import CheckedLearner

_log = logging.getLogger(__name__)


def resolve(config: Config, samples: Sequence[int]) -> Config:
    """The configuration with the quorum and the smallest number of samples filled in."""
    federation = config.federation
    least = max(math.ceil(0.8 * config.sampled), config.privacy.floor, method_of(config).least_quorum(config))
    quorum = federation.quorum or min(least, config.sampled)
    fewest = federation.min_samples or min(samples)
    federation = msgspec.structs.replace(federation, quorum=quorum, min_samples=fewest)
    return msgspec.structs.replace(config, federation=federation)


def check_method(config: Config) -> None:
    """Refuse what a configuration's method cannot carry out, as far as this shows without data and model."""
    method_of(config).check(resolve(config, [max(1, config.federation.min_samples)]))


def check_budget(config: Config) -> None:
    """Refuse an ε that a configuration asks for although nothing is calibrated to it."""
    privacy = config.privacy
    if privacy.epsilon in (Privacy().epsilon, math.inf) or privacy.unit == "record":
        return
    if not method_of(config).noised_parts(config):
        able = ", ".join(name for name, method in METHODS.items() if method.noised)
        raise ConfigError(
            f"privacy.epsilon = {privacy.epsilon:g} has no effect, since {config.protect.method} adds no noise; leave "
            f'it out, set privacy.unit = "record" to train with noise, or choose a method that noises updates ({able})'
        )


def check_early(config: Config) -> None:
    """Refuse what can be refused before data is read and a model is built."""
    from paraaegis.learn.names import DATASET_NAMES, MODEL_NAMES

    check_method(config)
    if config.engine.device not in ("auto", "cpu"):
        from paraaegis.learn.devices import find_device

        find_device(config.engine.device)
    if config.learner:
        return
    for key, name, names in (
        ("data.name", config.data.name, DATASET_NAMES),
        ("model.name", config.model.name, MODEL_NAMES),
    ):
        if name not in names:
            raise ConfigError(
                f"{key} must be one of {', '.join(names)}, got {name!r}{meant(name, names)}; to bring a model and data "
                'of your own, set learner = "module:function" (docs/own-model.md)'
            )
    if (metric := config.train.stop_metric) not in ("", ACCURACY, LOSS):
        raise ConfigError(
            f"train.stop_metric must be {ACCURACY} or {LOSS}, which the built-in models report, got {metric!r}"
        )


def warn_of_range(config: Config, has_batch_norm: bool) -> None:
    """Warn if the model's BatchNorm statistics may leave the range of a profile for small values."""
    cipher, name = config.protect.cipher, config.protect.profile
    wide = PROFILES[cipher][0]
    if has_batch_norm and name != wide and cipher in method_of(config).ciphers(config):
        reach = ckks.PROFILES[name].reach if cipher == "ckks" else rlwe.PROFILES[name].reach
        _log.warning(
            'protect.profile = "%s" supports sums within ±%.0f, but the BatchNorm statistics of this model may '
            'exceed that, which would stop the run. Use protect.profile = "%s", or a model without BatchNorm',
            name,
            reach,
            wide,
        )


def check_samples(config: Config, learners: Mapping[str, CheckedLearner]) -> None:
    """Refuse client names that are not allowed, and clients with too little data."""
    check_names(learners)
    least = max(1, config.federation.min_samples)
    for name, learner in learners.items():
        if learner.samples < least:
            raise ConfigError(
                f"{name} has {plural(learner.samples, 'sample')}, but needs at least {least}: lower "
                f"federation.min_samples, or leave {name} out of the federation"
            )
    largest = max(learners, key=lambda name: learners[name].samples)
    check_delta(config, largest, learners[largest].samples)


def checked_length(config: Config, learners: Mapping[str, CheckedLearner]) -> int:
    """The length of the learners' model, if the configuration's method can be carried out on it."""
    length = next(iter(learners.values())).facts.length
    method_of(config).check(config, length)
    return length
