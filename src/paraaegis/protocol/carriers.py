"""How a guard's grid steps travel: as they are, or encrypted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paraaegis.crypto.ckks import Secret
from paraaegis.grid import STEP, pack_grid, unpack_grid
from paraaegis.protocol.combine import expect_kind
from paraaegis.types import Grid, Payload


class Carrier(Protocol):
    """How a guard's grid steps travel."""

    @property
    def hides(self) -> bool:
        """Whether the server cannot read them."""

    @property
    def step(self) -> float:
        """What a value is rounded to."""

    def rounded(self, steps: Grid) -> Grid:
        """The steps as they will be summed."""

    def pack(self, steps: Grid, clients: int) -> Payload:
        """Rounded steps of one client as bytes."""

    def unpack(self, payload: Payload) -> Grid:
        """The summed steps of an aggregate."""


class Plain:
    """Grid steps as they are."""

    hides = False
    step = STEP

    def rounded(self, steps: Grid) -> Grid:
        """As they are."""
        return steps

    def pack(self, steps: Grid, clients: int) -> Payload:  # noqa: ARG002
        """4 bytes per value, 8 in chunks with large ones."""
        return Payload("grid", steps.size, pack_grid(steps))

    def unpack(self, payload: Payload) -> Grid:
        """The summed steps."""
        expect_kind(payload, "grid")
        return unpack_grid(payload.chunks, payload.length)


@dataclass(frozen=True)
class Ckks:
    """Grid steps under CKKS: exact on the profile's grid."""

    secret: Secret
    hides: bool = True

    @property
    def step(self) -> float:
        """The profile's."""
        return self.secret.profile.step

    def rounded(self, steps: Grid) -> Grid:
        """On the profile's grid."""
        return self.secret.rounded(steps)

    def pack(self, steps: Grid, clients: int) -> Payload:
        """Fresh, seeded, symmetric ciphertexts."""
        return Payload("ckks", steps.size, self.secret.encrypt(steps, clients))

    def unpack(self, payload: Payload) -> Grid:
        """The decrypted sum."""
        expect_kind(payload, "ckks")
        return self.secret.decrypt(payload.chunks, payload.length)
