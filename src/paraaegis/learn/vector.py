"""Convert a model to one vector and back, and save it as a file that plain torch can read.

The vector holds the floating-point entries of `state_dict` (parameters and BatchNorm's running statistics) in
that order. Integer buffers, such as BatchNorm's batch count, are of no use to other clients and stay local.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from paraaegis.errors import UpdateError
from paraaegis.types import Vector


def floats(model: nn.Module) -> dict[str, Tensor]:
    """List the tensors that make up the vector. They share the model's memory."""
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def integers(model: nn.Module) -> dict[str, Tensor]:
    """List the tensors that stay local. They share the model's memory."""
    return {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_floating_point()}


@torch.no_grad()
def to_vector(model: nn.Module) -> Vector:
    """Copy the model into one float32 vector."""
    tensors = list(floats(model).values())
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), device=tensors[0].device)
    for part, tensor in _pairs(flat, tensors):
        part.copy_(tensor)
    vector: Vector = flat.cpu().numpy()
    return vector


@torch.no_grad()
def from_vector(model: nn.Module, vector: Vector) -> None:
    """Write `vector` into the model."""
    tensors = list(floats(model).values())
    check_length(vector, sum(tensor.numel() for tensor in tensors))
    # torch warns about read-only arrays, even if it only reads them.
    writable = np.require(vector, dtype=np.float32, requirements=["C", "W"])
    for part, tensor in _pairs(torch.from_numpy(writable).to(tensors[0].device), tensors):
        tensor.copy_(part)


def _pairs(flat: Tensor, tensors: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Pair each tensor with its part of `flat`, in the tensor's shape."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return ((part.view(tensor.shape), tensor) for part, tensor in zip(parts, tensors, strict=True))


def spans_of(model: nn.Module, *endings: str) -> list[slice]:
    """The slices of the vector that hold tensors whose names have one of these endings."""
    slices, start = [], 0
    for name, tensor in floats(model).items():
        if name.endswith(endings):
            slices.append(slice(start, start + tensor.numel()))
        start += tensor.numel()
    return slices


def check_length(vector: Vector, length: int) -> None:
    """Refuse a vector that does not have `length` values."""
    if vector.shape != (length,):
        raise UpdateError(f"this model needs a vector of {length} values, got shape {vector.shape}")


def save_state(path: Path, model: nn.Module, weights: Vector) -> None:
    """Write the model with these weights as a `state_dict` on the CPU, for `torch.load(path, weights_only=True)`."""
    from_vector(model, weights)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            torch.save(state, file)
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)
