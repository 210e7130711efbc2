"""Learners of a torch model so small that runs with record-level DP take no time."""

from __future__ import annotations

import torch
from torch import nn

from paraaegis.learn.attach import torch_learner

SAMPLES = 60


def make(config, name, **options):
    index = config.names.index(name) if config is not None else int(name[-1])
    generator = torch.Generator().manual_seed(index)
    inputs = torch.randn(SAMPLES, 3, generator=generator)
    torch.manual_seed(0)
    model = nn.Linear(3, 30)  # as many values as those of nodes.py
    accuracy = lambda model: {"accuracy": (model(inputs).argmax(1) == (inputs.sum(1) > 0)).float().mean()}  # noqa: E731
    return torch_learner(model, data=(inputs, (inputs.sum(1) > 0).long()), evaluate=accuracy, **options)


def learners(clients=3, **options):
    return {f"client-{i}": make(None, f"client-{i}", **options) for i in range(clients)}
