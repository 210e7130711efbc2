"""Every key of a configuration with its default, range and meaning, as `paraaegis settings` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from paraaegis.config import Config, Section, as_toml


class Key(msgspec.Struct, frozen=True):
    """One key of the file, as `paraaegis settings` lists it; `default` in TOML."""

    name: str
    default: str
    allowed: str
    meaning: str


def all_keys() -> list[Key]:
    """Every key, in the order of the tables."""
    return [*_keys_of(Config, "")]


def _keys_of(section: type[Section], prefix: str) -> Iterator[Key]:
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        if isinstance(field.default, Section):
            yield from _keys_of(type(field.default), f"{field.name}.")
        else:
            kind, *notes = get_args(hints[field.name])
            yield Key(prefix + field.name, as_toml(field.default), _allowed(kind, notes), notes[-1])


def _allowed(kind: Any, notes: Iterable[Any]) -> str:
    if kind is str:
        return "text"
    if kind is bool:
        return "true, false"
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "list of text"
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    limits = [f"{sign} {bound}" for note in notes if isinstance(note, Meta) for name, sign in signs.items()
              if (bound := getattr(note, name)) is not None]  # fmt: skip
    return f"{'whole number' if kind is int else 'number'} {', '.join(limits)}"
