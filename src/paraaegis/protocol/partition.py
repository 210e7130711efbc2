"""The partition that a vote made: splitting an update and putting it together again, without loss."""

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
    """Inside and outside of one round.

    `inside` is a mask in parameter order. `travel` lists the outside's parameter indices in the secret order: what the
    server sees in clear goes that way.
    """

    inside: Mask
    travel: Order

    @classmethod
    def of(cls, elected: Mask, order: Order) -> Partition:
        """From the elected positions and the secret order that they are positions of."""
        inside = np.zeros(order.size, dtype=np.bool_)
        counts = parallel_map(lambda _, span: np.count_nonzero(~elected[span]), slices(order.size))
        ends = np.cumsum(counts, dtype=np.int64)
        travel = np.empty(ends[-1] if counts else 0, dtype=order.dtype)

        def place(index: int, span: slice) -> None:
            part, chosen = order[span], elected[span]
            inside[part[chosen]] = True
            travel[ends[index] - counts[index] : ends[index]] = part[~chosen]

        parallel_map(place, slices(order.size))
        return cls(inside, travel)

    @property
    def counts(self) -> tuple[int, int]:
        """How many values are inside and outside."""
        return self.inside.size - self.travel.size, self.travel.size

    def split(self, vector: NDArray[Number]) -> tuple[NDArray[Number], NDArray[Number]]:
        """The values inside, and the whole vector with zeros in their place; both in parameter order."""
        if vector.size != self.inside.size:
            raise UpdateError(f"an update of {self.inside.size} values was expected, got {vector.size}")
        outside = np.empty_like(vector)

        def part(_: int, span: slice) -> NDArray[Number]:
            np.copyto(outside[span], vector[span])
            outside[span][self.inside[span]] = 0
            return vector[span][self.inside[span]]

        parts = parallel_map(part, slices(vector.size))
        return np.concatenate(parts) if parts else vector[:0], outside

    def travelling(self, values: NDArray[Number]) -> NDArray[Number]:
        """The values outside, in the secret order."""
        out = np.empty(self.travel.size, dtype=values.dtype)
        parallel_map(lambda _, span: np.take(values, self.travel[span], out=out[span], mode="clip"), slices(out.size))
        return out

    def merge(self, inside: NDArray[Number], travelled: NDArray[Number] | None) -> NDArray[Number]:
        """The vector of which these are the inside, and the outside in the secret order; None: all zeros."""
        came = inside.size, self.travel.size if travelled is None else travelled.size
        if came != self.counts:
            raise UpdateError(
                "{} values inside and {} outside were expected, got {} and {}".format(*self.counts, *came)
            )
        kind = inside.dtype if travelled is None else np.result_type(inside, travelled)
        vector = np.zeros(self.inside.size, dtype=kind)
        if travelled is not None:

            def place(_: int, span: slice) -> None:
                vector[self.travel[span]] = travelled[span]

            parallel_map(place, slices(self.travel.size))
        vector[self.inside] = inside
        return vector


def places_of(order: Order) -> Places:
    """The position of each parameter in an order."""
    places = np.empty_like(order)

    def place(_: int, span: slice) -> None:
        places[order[span]] = np.arange(span.start, span.stop)

    parallel_map(place, slices(order.size))
    return places
