"""The nouns that every layer shares. `d` is the length of the model as one vector."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]  # a model or an update, in parameter order
FixedPoint: TypeAlias = NDArray[np.signedinteger]  # values in whole grid steps, int32 or int64, see grid.py
Mask: TypeAlias = NDArray[np.bool_]  # True where the vote put a value inside
Order: TypeAlias = NDArray[np.int64]  # order[position] = parameter index
Places: TypeAlias = NDArray[np.int64]  # places[parameter index] = position
Arrays: TypeAlias = dict[str, NDArray[Any]]  # named arrays, as a state is stored
Metrics: TypeAlias = dict[str, float]
Buffer: TypeAlias = bytes | bytearray | memoryview


def primed(kind: Any) -> None:
    """Have msgspec learn a type now, as its module is imported: two threads that teach it at once can crash Python."""
    with suppress(msgspec.ValidationError):
        msgspec.convert({}, kind)


class Blob:
    """Bulk bytes inside a message, carried beside its header and never copied."""

    __slots__ = ("view",)

    def __init__(self, buffer: Buffer) -> None:
        self.view = memoryview(buffer).cast("B")

    def __len__(self) -> int:
        return self.view.nbytes

    def __repr__(self) -> str:
        return f"Blob({len(self)} bytes)"


class Payload(msgspec.Struct, frozen=True):
    """A protected vector: `length` values of one kind in chunks, or parts of several kinds."""

    kind: str
    length: int
    chunks: tuple[Blob, ...] = ()
    parts: tuple[Payload, ...] = ()


class Learner(Protocol):
    """The seam to any framework: what a silo's model and data must be able to do.

    Vectors are float32 and of one length `d`, the same for every client. Those that it is given are read-only.
    """

    @property
    def samples(self) -> int:
        """The number of training samples, the client's weight."""

    def initial(self) -> Vector:
        """The first model, equal for every client of a run."""

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """Train locally from `weights` in round `number`; the new model, and figures, as a loss, that stay here."""

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """The model after the aggregated update `delta`."""

    def evaluate(self, weights: Vector) -> Metrics:
        """Metrics of the model, such as accuracy; empty where this client has nothing to test on."""

    def state(self) -> Arrays:
        """What must survive a restart beside the model, such as the optimiser's state."""

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up a state that `state` returned."""
