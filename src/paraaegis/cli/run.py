"""`paraaegis run`: one configuration, one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; without it, every default.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/METHOD-DIGEST.")] = None,
    fresh: Annotated[bool, typer.Option(help="Start over instead of going on.")] = False,
    as_json: Json = False,
) -> None:
    """Run one configuration, or go on with it where it stopped."""
    chosen = chosen_config(config, settings)
    folder = out or Path("runs") / f"{chosen.protect.method}-{chosen.digest()[:8]}"

    from paraaegis.cli.display import shown_rounds
    from paraaegis.cli.tables import summary
    from paraaegis.launch import run as carry_out

    with shown_rounds(chosen.federation.rounds, chosen.protect.method, quiet=as_json) as show:
        result = carry_out(chosen, folder, fresh, show)
    if as_json:
        print_json(result)
    else:
        summary(result)
