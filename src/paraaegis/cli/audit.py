"""`paraaegis audit`: an attack on our own noise, beside the claim."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json


def audit(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file; without it and --set, every noised method.")
    ] = None,
    settings: Settings = None,
    trials: Annotated[int, typer.Option(min=1000, help="Games in each world: the canary sent, or not.")] = 5_000,
    rounds: Annotated[
        int, typer.Option(min=0, max=1000, help="Rounds of a game. 0: one, of a varying series three.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The games' seed.")] = 0,
    as_json: Json = False,
) -> None:
    """Try to tell whether a client sent its canary (an update made to be recognised); compare that with the claim.

    All noised methods take some minutes, fewer with fewer --trials. Exits with 1 if any claim is refuted.
    """
    from paraaegis.cli.display import ticking
    from paraaegis.cli.tables import show_audits
    from paraaegis.experiments.audit import audit as play
    from paraaegis.experiments.audit import everything

    chosen = everything() if config is None and not settings else {"": chosen_config(config, settings)}
    found = []
    for name, one in chosen.items():
        with ticking(f"auditing {name or one.protect.method}", 2 * trials) as tick:
            found.append(play(one, name, trials, rounds, seed, tick))
    if as_json:
        print_json(found)
    else:
        show_audits(found)
    if not all(one.passed for one in found):
        sys.exit(1)
