"""What a run needs to know of a configuration, and what it refuses, before any work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from paraaegis.config import Config, check_names
from paraaegis.errors import ConfigError
from paraaegis.methods import method_of
from paraaegis.plural import plural
from paraaegis.types import Learner


def resolve(config: Config, samples: Sequence[int]) -> Config:
    """Fill in what depends on the data: the quorum and the smallest data size."""
    federation = config.federation
    least = max(math.ceil(0.8 * config.sampled), config.privacy.floor, method_of(config).least_quorum(config))
    quorum = federation.quorum or min(least, config.sampled)
    fewest = federation.min_samples or min(samples)
    federation = msgspec.structs.replace(federation, quorum=quorum, min_samples=fewest)
    return msgspec.structs.replace(config, federation=federation)


def check_early(config: Config) -> None:
    """Refuse what shows before data is read and a model is built. For runs on built-in data and models."""
    from paraaegis.learn.names import DATASET_NAMES, MODEL_NAMES

    method_of(config).check(resolve(config, [max(1, config.federation.min_samples)]))
    for key, name, known in (
        ("data.name", config.data.name, DATASET_NAMES),
        ("model.name", config.model.name, MODEL_NAMES),
    ):
        if name not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}, got {name!r}")


def check_learners(config: Config, learners: Mapping[str, Learner]) -> int:
    """The length of the learners' model; refuses names, data or a model that make the run impossible."""
    check_names(learners)
    least = max(1, config.federation.min_samples)
    for name, learner in learners.items():
        if learner.samples < least:
            raise ConfigError(
                f"{name} has {plural(learner.samples, 'sample')}, federation.min_samples asks for {least}"
            )
    return checked_length(config, learners)


def checked_length(config: Config, learners: Mapping[str, Learner]) -> int:
    """The length of the learners' model, if the configuration's method can be carried out on it."""
    length = int(next(iter(learners.values())).initial().size)
    method_of(config).check(config, length)
    return length
