"""The optimisers by name, and their state between rounds as named arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paraaegis.errors import ConfigError, RunError
from paraaegis.learn.vector import integers
from paraaegis.types import Arrays

OPTIMIZERS: dict[str, tuple[str, ...]] = {  # and the state that each keeps per parameter
    "sgd": ("momentum_buffer",),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
}


def make_optimizer(
    name: str, model: nn.Module, lr: float, momentum: float, scheduled: bool = False
) -> torch.optim.Optimizer:
    """Make the optimiser `name`. `momentum` is SGD's, or Adam's β1. On CUDA it uses fused kernels.

    `scheduled`: `set_rate` will change its rate. On CUDA that rate is a tensor, because captured steps keep numbers.

    Its state is allocated right away and set to zero, which is equivalent to having no state.
    """
    parameters = list(model.parameters())
    optimizer: torch.optim.Optimizer
    fused = parameters[0].is_cuda
    rate = torch.tensor(lr, device=parameters[0].device) if scheduled and fused else lr
    if name == "sgd":
        optimizer = torch.optim.SGD(parameters, rate, momentum, fused=fused)
    elif name == "adam":
        optimizer = torch.optim.Adam(parameters, rate, (momentum, 0.999), fused=fused)
    else:
        raise ConfigError(f"train.optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")
    for parameter in parameters:
        optimizer.state[parameter] = {key: _zeros(parameter, key) for key in _keys(name, momentum)}
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    if not 0 <= lr < math.inf:
        raise ConfigError(f"a learning rate must be a finite number of at least 0, got {lr}")
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def _keys(name: str, momentum: float) -> tuple[str, ...]:
    return () if name == "sgd" and not momentum else OPTIMIZERS[name]


def _zeros(parameter: Tensor, key: str) -> Tensor:
    like = parameter.detach()
    if key == "step":  # only a fused kernel reads it on its own device
        return torch.zeros((), device=like.device if like.is_cuda else "cpu")
    return torch.zeros_like(like)


def remember(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Copy the state that is not in the vector: the optimiser's state and the model's integer buffers."""
    return {name: _copy(tensor) for name, tensor in (_buffers(model) | _slots(model, optimizer)).items()}


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, state: Mapping[str, NDArray[Any]]) -> None:
    """Restore, in place, the state and buffers that `remember` returned; nothing changes if they do not fit.

    The optimiser's state may be absent, in which case it is reset.
    """
    buffers = _buffers(model)
    tensors = buffers | _slots(model, optimizer)
    wrong = [key for key, array in state.items() if key not in tensors or tensors[key].shape != array.shape]
    wrong += [key for key in buffers if key not in state]
    if wrong:
        raise RunError(
            f"a learner's state must fit its model and {name}; unknown, missing or of another shape: "
            f"{', '.join(sorted(wrong)[:5])}"
        )
    for key, tensor in tensors.items():
        if key in state:
            tensor.copy_(torch.tensor(state[key]))
        else:
            tensor.zero_()


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {f"buffer.{name}": tensor for name, tensor in integers(model).items()}


def _slots(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"optimizer.{key}.{name}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state[parameter].items()
        if tensor is not None  # some versions of torch add an entry for momentum that is not used
    }


def _copy(tensor: Tensor) -> NDArray[Any]:
    # A channels-last tensor is converted to C order on its own device, which is far faster on a GPU.
    array: NDArray[Any] = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format).numpy()
    return array
