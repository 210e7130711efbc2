"""Counts and sizes in messages, tables and log lines."""

from __future__ import annotations


def plural(number: int, noun: str, many: str = "") -> str:
    """A number with its noun: `1 round`, `2 rounds`; `many` if the plural is irregular."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"


def size(count: float) -> str:
    """Bytes in a readable unit, such as 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
