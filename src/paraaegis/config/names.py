"""Client names: what is allowed, and the default ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from paraaegis.errors import ConfigError

_RESERVED = ("server", "superlink")  # their files are next to those of clients


def check_names(names: Collection[str]) -> None:
    """Refuse names that no file or folder could have, that are reserved, or that are equal except for case."""
    times = Counter(name.lower() for name in names)
    for name in names:
        if not re.fullmatch(r"(?!-)[\w.-]*[^\W_][\w.-]*", name):
            raise ConfigError(
                "a client's name consists of letters, digits, '.', '_' and '-', with at least one letter or digit, and "
                f"does not begin with '-'; got {name!r}"
            )
        if name.lower() in _RESERVED:
            raise ConfigError(f"a client cannot be called {name!r}, which is reserved; choose another name")
        if times[name.lower()] > 1:
            alike = [other for other in names if other.lower() == name.lower()]
            raise ConfigError(f"client names must be unique, regardless of case; got {' and '.join(alike)}")


def numbered(clients: int) -> tuple[str, ...]:
    """The default names of this many clients."""
    return tuple(f"client-{index}" for index in range(clients))
