"""The types that every layer shares. `d` is the length of the model as one vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]  # a model or an update, in parameter order
FixedPoint: TypeAlias = NDArray[np.signedinteger]  # values in whole grid steps, int32 or int64, see fixed_point.py
Mask: TypeAlias = NDArray[np.bool_]  # True where the value was elected
Order: TypeAlias = NDArray[np.int64]  # order[position] = parameter index
Places: TypeAlias = NDArray[np.int64]  # places[parameter index] = position
Arrays: TypeAlias = dict[str, NDArray[Any]]  # named arrays, as a state is stored
Metrics: TypeAlias = dict[str, float]
Buffer: TypeAlias = bytes | bytearray | memoryview


def primed(kind: Any) -> None:
    """Let msgspec build its info for a type at import time: two threads that build it at once can crash Python."""
    with suppress(msgspec.ValidationError):
        msgspec.convert({}, kind)


class Blob:
    """Bulk bytes of a message, sent next to its header and never copied."""

    __slots__ = ("view",)

    def __init__(self, buffer: Buffer) -> None:
        self.view = memoryview(buffer).cast("B")

    def __len__(self) -> int:
        return self.view.nbytes

    def __repr__(self) -> str:
        return f"Blob({len(self)} bytes)"


@dataclass(frozen=True)
class RecordPrivacy:
    """DP-SGD in a client's training: how each step draws samples, clips their gradients and adds noise.

    A step draws each sample with probability `sample_rate`, clips its gradient to the L2 norm `clip`, adds noise of
    standard deviation `multiplier`·`clip` to the sum, and divides by `sample_rate` times the number of samples.
    """

    sample_rate: float
    steps: int  # per round
    clip: float
    multiplier: float


Draw: TypeAlias = Callable[[int], np.random.Generator]  # the generator of a round


class Payload(msgspec.Struct, frozen=True):
    """A protected vector: `length` values of one kind in chunks, or parts of several kinds."""

    kind: str
    length: int
    chunks: tuple[Blob, ...] = ()
    parts: tuple[Payload, ...] = ()


class Learner(Protocol):
    """The interface to any framework: what a client's model and data must provide.

    A subclass needs `samples`, `initial` and `train`; the other methods have defaults. Vectors are float32 and have the
    same length `d` for every client. Those passed in are read-only. A method `save(path, weights)` is optional: it
    writes the model in the framework's own format; without it, the model is saved as a numpy vector.
    """

    samples: int  # the number of training samples, the client's weight

    @abstractmethod
    def initial(self) -> Vector:
        """The initial model, the same for every client of a run."""

    @abstractmethod
    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """Train locally from `weights` in round `number`; return the new model and metrics for the client's own log."""

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """The model after the aggregated update `delta`."""
        return weights + delta

    def evaluate(self, weights: Vector) -> Metrics:  # noqa: ARG002
        """Metrics of the model, such as accuracy; empty if this client has no test data.

        NaN stands for a metric that is undefined on this client's data, such as AUC on a single class.
        """
        return {}

    def state(self) -> Arrays:
        """What must survive a restart in addition to the model, such as the optimizer's state."""
        return {}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a state that `state` returned."""
