"""Error messages for refused values: the key, what was received, what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args, get_type_hints

import msgspec

from paraaegis.errors import ConfigError


def explain(message: str, kind: Any, value: Any, key: str = "") -> str:
    """The message for a user, made from msgspec's message about a `value` that is not of type `kind`.

    `key` names the value, such as `privacy.clip`; empty for a whole configuration.
    """
    what, _, where = message.partition(" - at `$")
    whole, key = kind, (key + where.rstrip("`")).lstrip(".")
    for part in re.findall(r"[^.\[\]`]+", where):
        kind = get_type_hints(kind, include_extras=True).get(part, Any) if isinstance(kind, type) else Any
        value = value[part if isinstance(value, Mapping) else int(part)]
    if unknown := re.search(r"unknown field `(.+)`", what):
        allowed = [field.name for field in msgspec.structs.fields(kind)]
        hint = _elsewhere(unknown[1], whole) or meant(unknown[1], allowed)
        return f"unknown key {f'{key}.{unknown[1]}'.lstrip('.')!r}{hint}; allowed: {', '.join(allowed)}"
    if "enum value" in what:
        allowed = [str(choice) for choice in get_args(get_args(kind)[0])]
        return f"{key} must be one of {', '.join(allowed)}, got {value!r}{meant(str(value), allowed)}"
    if what.startswith("Expected `object`"):
        keys = [f"{key}.{field.name}" for field in msgspec.structs.fields(kind)]
        return f"{key} is a table, got {value!r}; set one of its keys: {', '.join(keys)}"
    if what.startswith("Expected `array`"):
        return f'{key} is a list, such as ["a", "b"], got {value!r}'
    what = what.partition(", got")[0]  # msgspec names the type received
    return f"{key}: {what[0].lower()}{what[1:].replace('`', '')}, got {value!r}"


def _elsewhere(name: str, whole: Any) -> str:
    """A hint that names the table with this key; empty if there is none."""
    tables = {field.name: field.type for field in msgspec.structs.fields(whole)}
    owners = [table for table, kind in tables.items() if name in getattr(kind, "__struct_fields__", ())]
    return f" (did you mean {owners[0] + '.' + name!r}?)" if owners else ""


def meant(word: str, allowed: Iterable[str]) -> str:
    """A hint that names the closest allowed word; empty if none is close."""
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@contextmanager
def naming(where: object, settings: Collection[str] = ()) -> Iterator[None]:
    """Prefix errors with where they come from: a key, a file or a row, perhaps changed by settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{' as changed' if settings else ''}: {error}") from error
