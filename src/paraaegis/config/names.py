"""Names of clients: what a client may be called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from paraaegis.errors import ConfigError

_RESERVED = ("server", "superlink")  # their files lie next to those of clients


def check_names(names: Collection[str]) -> None:
    """Refuse names that a file or folder could not have, that are taken, or that differ in nothing but case."""
    times = Counter(name.lower() for name in names)
    for name in names:
        if not re.fullmatch(r"[\w.-]*[^\W_][\w.-]*", name):
            raise ConfigError(
                "a client's name consists of letters, digits, '.', '_' and '-', with at least one letter or digit; "
                f"got {name!r}"
            )
        if name.lower() in _RESERVED:
            raise ConfigError(f"no client may be called {name!r}; choose another name")
        if times[name.lower()] > 1:
            alike = [other for other in names if other.lower() == name.lower()]
            raise ConfigError(f"each client needs a name of its own, regardless of case; got {' and '.join(alike)}")


def numbered(clients: int) -> tuple[str, ...]:
    """The names of clients that were given none."""
    return tuple(f"client-{index}" for index in range(clients))
