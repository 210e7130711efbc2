"""Options and output that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as protect.ratio=0.05.")
]


def print_json(value: object) -> None:
    """A result as indented JSON on standard output."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
