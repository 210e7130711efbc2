"""Error messages for refused values: the key, what was received, what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from paraaegis.errors import ConfigError


def explain(message: str, kind: Any, value: Any, key: str = "") -> str:
    """The message for a user, made from msgspec's message about a `value` that is not of type `kind`.

    `key` names the value, such as `privacy.clip`; empty for a whole file.
    """
    what, _, where = message.partition(" - at `$")
    whole = kind
    for step in re.findall(r"\[\.\.\.\]|\[\d+\]|\w+", where):
        name, kind, value = _inside(step, kind, value)
        key = f"{key}{name}" if name.startswith("[") else f"{key}.{name}".lstrip(".")
    if unknown := re.search(r"unknown field `(.+)`", what):
        allowed = [field.name for field in msgspec.structs.fields(kind)]
        hint = _elsewhere(unknown[1], whole) or meant(unknown[1], allowed)
        return f"unknown key {f'{key}.{unknown[1]}'.lstrip('.')!r}{hint}; allowed: {', '.join(allowed)}"
    if missing := re.search(r"missing required field `(.+)`", what):
        needed = [field.name for field in msgspec.structs.fields(kind) if field.required]
        name = f"{key}.{missing[1]}".lstrip(".")
        return f"`{name}` is missing; a {kind.__name__.lower()} needs {_listed(needed)}"
    if get_origin(_plain(kind)) is Literal:
        allowed = [str(choice) for choice in get_args(_plain(kind))]
        return f"{key} must be one of {', '.join(allowed)}, got {value!r}{meant(str(value), allowed)}"
    if what.startswith("Expected `object`") and hasattr(kind, "__struct_fields__"):
        keys = [f"{key}.{field.name}" for field in msgspec.structs.fields(kind)]
        return f"{key} is a table of settings, got {value!r}; set one of its keys instead: {', '.join(keys)}"
    return f"{key} must be {_expected(what, kind)}, got {value!r}"


def _inside(step: str, kind: Any, value: Any) -> tuple[str, Any, Any]:
    """Name, type and value of what one step of msgspec's path leads to; it writes `[...]` for any key of a dict."""
    if not step.startswith("["):
        return step, get_type_hints(kind, include_extras=True)[step], value[step]
    kind = _plain(kind)
    if step != "[...]":
        return step, get_args(kind)[0], value[int(step[1:-1])]
    kind = get_args(kind)[1]
    name = next(name for name, entry in value.items() if not _fits(entry, kind))
    return name, kind, value[name]


def _plain(kind: Any) -> Any:
    """A type without its limits and description."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _expected(what: str, kind: Any) -> str:
    """What msgspec's message asks for, in words: `a number ≤ 1`."""
    if what.startswith("Expected `array`"):
        examples = {str: 'such as ["a", "b"]', int: "such as [0, 1]"}
        return f"a list {examples.get(get_args(_plain(kind))[0], 'of tables')}"
    words = {"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false", "object": "a table"}
    name, sign, bound = re.findall(r"^Expected `(\w+)`(?: ([<>]=?) ([^,]+))?", what)[0]
    limit = f" {sign.replace('<=', '≤').replace('>=', '≥')} {bound.removesuffix('.0')}" if sign else ""
    return words[name] + limit


def _elsewhere(name: str, whole: Any) -> str:
    """A hint that names the table with this key; empty if there is none."""
    tables = {field.name: field.type for field in msgspec.structs.fields(whole)}
    owners = [table for table, kind in tables.items() if name in getattr(kind, "__struct_fields__", ())]
    return f" (did you mean {owners[0] + '.' + name!r}?)" if owners else ""


_SYNONYMS = dict.fromkeys(("patient", "person", "sample", "example", "user", "instance"), "record")  # of privacy.unit


def meant(word: str, allowed: Iterable[str]) -> str:
    """A hint that names the closest allowed word; empty if none is close."""
    allowed = list(allowed)
    close = [_SYNONYMS[word]] if _SYNONYMS.get(word) in allowed else difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


@contextmanager
def naming(where: object, settings: Collection[str] = ()) -> Iterator[None]:
    """Prefix errors with where they come from: a key, a file or a row, perhaps changed by settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{' with --set' if settings else ''}: {error}") from error
