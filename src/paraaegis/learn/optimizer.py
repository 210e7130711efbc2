"""The optimisers by name, and what they remember from round to round, as named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paraaegis.errors import ConfigError, RunError
from paraaegis.learn.vector import integers
from paraaegis.types import Arrays

OPTIMIZERS: dict[str, tuple[str, ...]] = {  # and what each remembers of a parameter
    "sgd": ("momentum_buffer",),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
}


def make_optimizer(
    name: str, model: nn.Module, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Make the optimiser `name`. `momentum` is SGD's, or Adam's β1. On CUDA one kernel updates many parameters."""
    parameters = list(model.parameters())
    fused = parameters[0].is_cuda
    if name == "sgd":
        return torch.optim.SGD(parameters, lr, momentum, weight_decay=weight_decay, fused=fused)
    if name == "adam":
        return torch.optim.Adam(parameters, lr, (momentum, 0.999), weight_decay=weight_decay, fused=fused)
    raise ConfigError(f"train.optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}")


def start(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Lay out the state that the first step would, with zeros, which to either optimiser mean the same as none."""
    for group in optimizer.param_groups:
        keys = OPTIMIZERS[name] if name != "sgd" or group["momentum"] else ()
        for parameter in group["params"]:
            optimizer.state[parameter] = {key: _slot(parameter, key) for key in keys}


def remember(model: nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Copy what the vector does not carry: the optimiser's state and the model's integer buffers."""
    arrays = {f"buffer.{name}": _copy(tensor) for name, tensor in integers(model).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                arrays[f"optimizer.{key}.{name}"] = _copy(value)
    return arrays


def _copy(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format).numpy()
    return array


def _slot(parameter: Tensor, key: str) -> Tensor:
    """Lay out zeros as the optimisers of `make_optimizer` do: Adam's count of steps beside its parameter, the rest like it."""
    return (
        torch.zeros((), device=parameter.device) if key == "step" else torch.zeros_like(parameter, requires_grad=False)
    )


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, state: Mapping[str, NDArray[Any]]) -> None:
    """Replace state and buffers by what `remember` returned; nothing changes if it does not fit.

    Tensors that exist are written in place, for a captured graph knows them by their addresses.
    """
    buffers = {f"buffer.{key}": tensor for key, tensor in integers(model).items()}
    slots = {
        f"optimizer.{key}.{path}": (parameter, key)
        for path, parameter in model.named_parameters()
        for key in OPTIMIZERS[name]
    }
    shapes = {key: tuple(tensor.shape) for key, tensor in buffers.items()}
    shapes |= {path: () if key == "step" else tuple(p.shape) for path, (p, key) in slots.items()}
    wrong = [key for key, array in state.items() if shapes.get(key) != array.shape]
    wrong += [key for key in buffers if key not in state]
    if wrong:
        raise RunError(
            f"a learner's state must fit its model and {name}; surplus, missing or of another shape: "
            f"{', '.join(sorted(wrong)[:5])}"
        )
    for key, tensor in buffers.items():
        tensor.copy_(torch.tensor(state[key]))
    for path, (parameter, key) in slots.items():
        kept = optimizer.state[parameter]
        if path in state:
            kept[key] = (_slot(parameter, key) if kept.get(key) is None else kept[key]).copy_(torch.tensor(state[path]))
        elif kept.get(key) is not None:
            kept[key].zero_()
