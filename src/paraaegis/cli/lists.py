"""`paraaegis methods|datasets|models|presets|settings`: lists, one line per entry."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import msgspec

from paraaegis.cli.options import Json
from paraaegis.plural import plural


def _show(rows: Iterable[dict[str, str]], as_json: bool) -> None:
    rows = list(rows)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        rest = "; ".join(text for key, text in row.items() if key != "name" and text)
        sys.stdout.write(f"{row['name']:{width}}  {rest}\n")


def methods(as_json: Json = False) -> None:
    """List the methods."""
    from paraaegis.methods import METHODS

    _show(({"name": name, "summary": method.summary} for name, method in METHODS.items()), as_json)


def datasets(as_json: Json = False) -> None:
    """List the data sets and where to get them."""
    from paraaegis.learn.data import describe

    _show(({"name": name, "summary": summary, "source": source} for name, summary, source in describe()), as_json)


def models(as_json: Json = False) -> None:
    """List the models."""
    from paraaegis.learn.models import MODELS

    rows = ({"name": name, "summary": (build.__doc__ or "").splitlines()[0]} for name, build in MODELS.items())
    _show(rows, as_json)


def presets(as_json: Json = False) -> None:
    """List the shipped comparisons."""
    from paraaegis.comparisons.preset import cells_of, preset_names, read_preset

    def row(name: str) -> dict[str, str]:
        preset = read_preset(name)
        return {"name": name, "summary": preset.title, "cells": plural(len(cells_of(preset)), "run")}

    _show((row(name) for name in preset_names()), as_json)


def settings(as_json: Json = False) -> None:
    """List the configuration keys with their defaults, meanings and allowed values."""
    from paraaegis.config.listing import all_keys

    keys = all_keys()
    if as_json:
        _show(map(msgspec.structs.asdict, keys), as_json)
        return
    name, default = (max(len(getattr(key, column)) for key in keys) for column in ("name", "default"))
    for key in keys:
        sys.stdout.write(f"{key.name:{name}}  {key.default:{default}}  {key.meaning} ({key.allowed})\n")
