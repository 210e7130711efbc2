"""Records and results as JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from paraaegis.protocol.records import RoundRecord


def line_of(record: RoundRecord) -> bytes:
    """A record as a line of rounds.jsonl; without `sites` if there are none, as in the lines of earlier versions."""
    content = msgspec.to_builtins(record)
    if not record.sites:
        del content["sites"]
    return msgspec.json.encode(content) + b"\n"


def with_nan(content: Any) -> Any:
    """JSON has no NaN or infinity: such a metric is written as null, and read back as NaN."""
    if not isinstance(content, dict):
        return content
    sites = content.get("sites")
    found = {"metrics": _numbers(content.get("metrics"))} if "metrics" in content else {}
    if isinstance(sites, dict):
        found["sites"] = {site: _numbers(metrics) for site, metrics in sites.items()}
    return {**content, **found}


def _numbers(metrics: Any) -> Any:
    if not isinstance(metrics, dict):
        return metrics  # refused by its type
    return {name: math.nan if value is None else value for name, value in metrics.items()}
