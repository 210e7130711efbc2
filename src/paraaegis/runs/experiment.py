"""Torch learners for an experiment: the data split among the clients, one model and optimiser per client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from paraaegis.config import Config
from paraaegis.errors import ConfigError, DataError
from paraaegis.learn import cuda, data, devices, models, train
from paraaegis.learn.private import check_layers
from paraaegis.learn.rate import rate
from paraaegis.learn.split import split
from paraaegis.learn.threads import use_one_thread
from paraaegis.learn.vector import to_vector
from paraaegis.methods import method_of
from paraaegis.parallel import threads
from paraaegis.privacy.record_budget import check_delta
from paraaegis.privacy.records import record_privacy
from paraaegis.runs.assemble import record_draws
from paraaegis.runs.check import resolve
from paraaegis.seeds import Purpose, stream
from paraaegis.types import Learner

PHOTOGRAPHS = (128, 128, 3), 10
LEAST = 10  # samples that a split gives every client unless the configuration says otherwise


@dataclass(frozen=True)
class TorchExperiment:
    """The clients' learners, and the configuration completed from their data."""

    config: Config
    learners: dict[str, Learner]
    gpu: str  # its name; empty if they train on a CPU


def torch_experiment(config: Config, only: str | None = None) -> TorchExperiment:
    """Load and split the data, and build a learner per client, or only one's. The first also holds the test set."""
    if config.model.name not in models.MODELS:
        raise ConfigError(f"model.name must be one of {', '.join(models.MODELS)}, got {config.model.name!r}")
    dataset = data.load(config.data.name, Path(config.data.folder) if config.data.folder else None)
    shares = split(
        dataset.train_labels,
        config.federation.clients,
        config.data.split,
        config.data.alpha,
        config.federation.min_samples or LEAST,
        stream(config.seed, Purpose.SPLIT),
    )
    use_one_thread()
    device = devices.find_device(config.engine.device)
    make = _maker(config, dataset, str(device))
    batches = record_draws(config) if config.privacy.unit == "record" else partial(_batches, config.seed)
    check_delta(config, *max(zip(config.names, map(len, shares), strict=True), key=lambda pair: pair[1]))
    learners: dict[str, Learner] = {}
    for index, (name, rows) in enumerate(zip(config.names, shares, strict=True)):
        if only not in (None, name):
            continue
        if not learners:
            first = stream(config.seed, Purpose.MODEL)
            model = models.build(config.model.name, dataset.shape, dataset.classes, first)
        learners[name] = make(
            model=deepcopy(model),
            images=dataset.train_images[rows],
            labels=dataset.train_labels[rows],
            test=(dataset.test_images, dataset.test_labels) if index == 0 else None,
            batches=batches(index),
        )
    cuda.take_turns((one for one in learners.values() if isinstance(one, cuda.CudaLearner)), at_a_time(config))
    return TorchExperiment(resolve(config, [len(rows) for rows in shares]), learners, devices.gpu_name(device))


def _maker(config: Config, dataset: data.Dataset, device: str) -> Callable[..., train.TorchLearner]:
    """Makes a client's learner from what is its own: its model, its images and labels, and its batches."""
    changes = config.train.schedule != "constant"
    return partial(
        cuda.CudaLearner if device.startswith("cuda") else train.TorchLearner,
        epochs=config.train.epochs,
        batch=config.train.batch,
        optimizer=config.train.optimizer,
        lr=config.train.lr,
        momentum=config.train.momentum,
        server_lr=config.train.server_lr,
        rate=partial(rate, config.train, config.federation.rounds) if changes else None,
        augment=dataset.augment,
        mean=dataset.mean,
        std=dataset.std,
        device=device,
        record_privacy=record_privacy(config),
    )


def at_a_time(config: Config) -> int:
    """How many clients should share a GPU: all, or half of them if the other half can encrypt meanwhile.

    This makes training a few percent slower. Methods that vote wait for the last client anyway.
    """
    method = method_of(config)
    clients = min(config.sampled, threads(config.engine.workers))  # the engine has no more threads
    encrypts_at_once = "ckks" in method.ciphers(config) and not method.votes
    return -(-clients // 2) if encrypts_at_once else clients


def model_length(name: str, config: Config) -> int:
    """Values in a model for a configuration's data; if the data is not available, for photographs in ten classes."""
    shape, classes = PHOTOGRAPHS
    with suppress(DataError):
        dataset = data.load(config.data.name, Path(config.data.folder) if config.data.folder else None)
        shape, classes = dataset.shape, dataset.classes
    model = models.build(name, shape, classes, 0)
    if config.privacy.unit == "record":
        check_layers(model)
    return int(to_vector(model).size)


def _batches(seed: int, client: int) -> Callable[[int], np.random.Generator]:
    return lambda number: stream(seed, Purpose.BATCHES, client, number)
