"""Models, data and trainings with DP-SGD that tests of its laws share."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.func import functional_call

from paraaegis.learn.attach import TorchAttachment, torch_learner
from paraaegis.learn.models import build
from paraaegis.learn.private import PrivateGradient
from paraaegis.types import RecordPrivacy

SHAPE = (8, 8, 1)


def points(count: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def images(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def net(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *extra, nn.ReLU(), nn.Linear(4, 2))


def attached(model: nn.Module, privacy: RecordPrivacy, data=None, draw=np.random.default_rng, **options):
    """A client with its own model that trains with DP-SGD."""
    learner: TorchAttachment = torch_learner(model, data=data or points(), **options)
    learner.protect_records(privacy, draw)
    return learner


def gradient_of(model: nn.Module | str, clip: float, samples: int = 1, rate: float = 1.0) -> PrivateGradient:
    """The gradient of a step without noise; with one sample at rate 1 it is the sum itself."""
    made = build(model, SHAPE, 10, 0) if isinstance(model, str) else model
    return PrivateGradient(
        made, F.cross_entropy, RecordPrivacy(rate, 1, clip, 0.0), samples,
        lambda inputs, parameters: functional_call(made, parameters, inputs),
    )  # fmt: skip


def step_of(gradient: PrivateGradient, *pieces: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The gradient of a step over these samples, as one vector in double precision."""
    gradient.begin()
    for inputs, targets in pieces:
        gradient.add(inputs, targets)
    gradient.finish(None)
    return torch.cat([one.grad.flatten() for one in gradient._parameters.values()]).double()
