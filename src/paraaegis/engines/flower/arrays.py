"""A Flower model as one vector: its floating-point arrays, one after another. Other arrays never leave their side."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from flwr.app import Array, ArrayRecord

from paraaegis.errors import LearnerError
from paraaegis.types import Vector

VARIANCE = "running_var"  # how PyTorch names BatchNorm's variances, which must not be negative


def to_vector(arrays: ArrayRecord, like: ArrayRecord | None = None) -> Vector:
    """The values of all arrays that are floating-point in `like` (itself by default), as float32."""
    parts = [arrays[name].numpy().ravel() for name, array in (like or arrays).items() if _travels(name, array)]
    if not parts:
        raise LearnerError(f"a model needs floating-point arrays, got {_types(arrays)}")
    return np.concatenate(parts, dtype=np.float32)


def to_arrays(vector: Vector, like: ArrayRecord) -> ArrayRecord:
    """The model with these values; all else (types, shapes, other arrays) is that of `like`."""
    arrays, start = ArrayRecord(), 0
    for name, array in like.items():
        if not _travels(name, array):
            arrays[name] = array
            continue
        stop = start + int(np.prod(array.shape))
        values = vector[start:stop].reshape(array.shape).astype(array.dtype)
        arrays[name] = Array(np.asarray(np.maximum(values, 0)) if name.endswith(VARIANCE) else values)
        start = stop
    return arrays


def check_form(arrays: ArrayRecord, like: ArrayRecord, where: str) -> None:
    """Refuse a model whose arrays differ from those of `like` in names, shapes or order."""
    form, wanted = ([(name, tuple(array.shape)) for name, array in each.items()] for each in (arrays, like))
    if form != wanted:
        got, due = next(pair for pair in zip_longest(form, wanted) if pair[0] != pair[1])
        raise LearnerError(
            f"{where} must have the arrays of the model that was sent, in order: expected {due}, got {got}"
        )


def _travels(name: str, array: Array) -> bool:
    try:
        return np.issubdtype(np.dtype(array.dtype), np.floating)
    except TypeError as error:
        raise LearnerError(
            f"array {name!r} has the type {array.dtype}, which numpy does not know; use float32"
        ) from error


def _types(arrays: ArrayRecord) -> str:
    return ", ".join(f"{name} of {array.dtype}" for name, array in arrays.items()) or "none"
