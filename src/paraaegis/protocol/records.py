"""What is recorded about each round: one line of a run's rounds.jsonl."""

from __future__ import annotations

import msgspec


class RoundRecord(msgspec.Struct, kw_only=True):
    """One round: who took part, what it cost, and how good the model was afterwards.

    `metrics` are means over the clients that reported them, weighted by samples; `sites` are each client's own, kept
    if more than one client reported.
    """

    round: int
    ratio: float
    elected: int
    clients: list[str] = []
    dropped: dict[str, str] = {}
    declined: dict[str, str] = {}
    agreement: float | None = None
    metrics: dict[str, float] = {}
    sites: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}
    bytes_up: dict[str, int] = {}
    bytes_down: dict[str, int] = {}
