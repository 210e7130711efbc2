"""Counts in error messages and log lines."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 round`, `2 rounds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
