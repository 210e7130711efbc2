"""Masks: each hides one vector, and all of a mask that does not depend on the vector can be computed before it."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from paraaegis.errors import CryptoError

Parts = TypeVar("Parts")


class Mask(Generic[Parts]):
    """A fresh secret, and what hides one vector under it."""

    def __init__(self, secret: NDArray[np.int64], parts: Parts) -> None:
        self.secret = secret
        self._parts: Parts | None = parts

    def take(self) -> Parts:
        """What hides the vector, once: the difference of two vectors under the same mask would be in the clear."""
        parts, self._parts = self._parts, None
        if parts is None:
            raise CryptoError("mask already used; masks are single-use")
        return parts
