"""The partition that follows from a vote: splitting an update and putting it back together, without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import UpdateError
from paraaegis.fixed_point import slices
from paraaegis.parallel import parallel_map
from paraaegis.types import Mask, Order, Places

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Partition:
    """The elected values of one round, and the rest.

    `elected` is a mask in parameter order. `rest` lists the other parameter indices in the secret order, in which the
    server sees their values.
    """

    elected: Mask
    rest: Order

    @classmethod
    def of(cls, positions: Mask, order: Order) -> Partition:
        """From the elected positions and the secret order to which they refer."""
        elected = np.zeros(order.size, dtype=np.bool_)
        counts = parallel_map(lambda _, span: np.count_nonzero(~positions[span]), slices(order.size))
        ends = np.cumsum(counts, dtype=np.int64)
        rest = np.empty(ends[-1] if counts else 0, dtype=order.dtype)

        def place(index: int, span: slice) -> None:
            part, mask = order[span], positions[span]
            elected[part[mask]] = True
            rest[ends[index] - counts[index] : ends[index]] = part[~mask]

        parallel_map(place, slices(order.size))
        return cls(elected, rest)

    @property
    def counts(self) -> tuple[int, int]:
        """How many values are elected, and how many are not."""
        return self.elected.size - self.rest.size, self.rest.size

    def split(self, vector: NDArray[Number]) -> tuple[NDArray[Number], NDArray[Number]]:
        """The elected values, and the whole vector with zeros in their place; both in parameter order."""
        if vector.size != self.elected.size:
            raise UpdateError(f"the update should have {self.elected.size} values, got {vector.size}")
        rest = np.empty_like(vector)

        def part(_: int, span: slice) -> NDArray[Number]:
            np.copyto(rest[span], vector[span])
            rest[span][self.elected[span]] = 0
            return vector[span][self.elected[span]]

        parts = parallel_map(part, slices(vector.size))
        return np.concatenate(parts) if parts else vector[:0], rest

    def rest_of(self, values: NDArray[Number]) -> NDArray[Number]:
        """The values that are not elected, in the secret order."""
        out = np.empty(self.rest.size, dtype=values.dtype)
        parallel_map(lambda _, span: np.take(values, self.rest[span], out=out[span], mode="clip"), slices(out.size))
        return out

    def merge(self, elected: NDArray[Number], rest: NDArray[Number] | None) -> NDArray[Number]:
        """The vector of the elected values, in parameter order, and the rest, in the secret order; None: all zeros."""
        sizes = elected.size, self.rest.size if rest is None else rest.size
        if sizes != self.counts:
            raise UpdateError("expected {} elected values and a rest of {}, got {} and {}".format(*self.counts, *sizes))
        kind = elected.dtype if rest is None else np.result_type(elected, rest)
        vector = np.zeros(self.elected.size, dtype=kind)
        if rest is not None:

            def place(_: int, span: slice) -> None:
                vector[self.rest[span]] = rest[span]

            parallel_map(place, slices(self.rest.size))
        vector[self.elected] = elected
        return vector


def places_of(order: Order) -> Places:
    """The position of each parameter in an order."""
    places = np.empty_like(order)

    def place(_: int, span: slice) -> None:
        places[order[span]] = np.arange(span.start, span.stop)

    parallel_map(place, slices(order.size))
    return places
