"""How a configuration differs from that of the run in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from paraaegis.config import LOCAL_KEYS, Config

EXTENSION = ("federation.rounds ", "train.stop_after ")  # what may differ when rounds are added


def differences(stored: Config, config: Config) -> list[str]:
    """Each key that differs, with both values, except those that change no result or may differ between silos."""
    texts = _differences(msgspec.to_builtins(stored), msgspec.to_builtins(config))
    return [text for text in texts if not text.startswith(LOCAL_KEYS)]


def _differences(old: Any, new: Any, key: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        yield f"{key} was {old!r}, now {new!r}"
