"""A learner whose training shows what it does with each record, for the audit of record-level DP."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from paraaegis.learn.attach import TorchAttachment, torch_learner

PARAMETERS = 2  # each gradient lies in two parameters, so that clipping them one by one shows

_BATCH = 256  # samples whose gradients are in memory at a time


def canary_learner(
    present: NDArray[np.bool_], copies: int, norm: float, watch: Callable[[NDArray[np.float32]], None]
) -> TorchAttachment:
    """A learner with `copies` records for each person, whose gradients do not depend on the model.

    A record of person i has a gradient of this norm along coordinate i of both parameters, or zero if the person is not
    `present`. `watch` receives what each step adds to the model, PARAMETERS × people.
    """
    people = len(present)

    def recorded(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return _WatchedSteps(parameters, watch)

    data = _Canaries(present, copies, norm / math.sqrt(PARAMETERS))
    return torch_learner(_Parallel(people), data=data, loss=_negative_output, optimizer=recorded, batch=_BATCH)


class _Canaries(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, present: NDArray[np.bool_], copies: int, size: float) -> None:
        self._present, self._copies, self._size = torch.from_numpy(present).float(), copies, size

    def __len__(self) -> int:
        return len(self._present) * self._copies

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        person = row % len(self._present)
        inputs = torch.zeros(len(self._present))
        inputs[person] = self._size
        return inputs, self._present[person]


class _Parallel(nn.Module):
    """Linear functions of one input, added up; all weights are zero at first."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, 1, bias=False) for _ in range(PARAMETERS))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([layer(inputs) for layer in self.layers]).sum(dim=0)


def _negative_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is the negative input times the target."""
    return -(outputs.squeeze(1) * targets).mean()


class _WatchedSteps(torch.optim.SGD):
    """Plain gradient descent at rate 1 that shows every step."""

    def __init__(self, parameters: Iterable[nn.Parameter], watch: Callable[[NDArray[np.float32]], None]) -> None:
        super().__init__(parameters, lr=1.0)
        self._watch = watch

    def step(self, closure: Any = None) -> Any:
        gradients = [one.grad for group in self.param_groups for one in group["params"]]
        self._watch(-torch.cat(gradients).numpy())
        return super().step(closure)
