"""Colours and markers by method. The colours are Okabe and Ito's, which colour-blind readers can distinguish."""

from __future__ import annotations

from paraaegis.methods import METHODS

_PALETTE = (
    ("#000000", "*"),
    ("#999999", "v"),
    ("#999999", "<"),
    ("#999999", "s"),
    ("#CC79A7", "X"),
    ("#0072B2", "D"),
    ("#E69F00", "o"),
    ("#56B4E9", "P"),
    ("#009E73", "^"),
    ("#D55E00", "o"),  # and all further ones
)


def style_of(method: str) -> tuple[str, str]:
    """Colour and marker of a method, by its place in the registry."""
    place = list(METHODS).index(method) if method in METHODS else len(METHODS)
    return _PALETTE[min(place, len(_PALETTE) - 1)]
