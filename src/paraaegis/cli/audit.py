"""`paraaegis audit`: attack our own noise and compare the result with the claim."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json


def audit(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file. Without it and --set, every noised method is audited.")
    ] = None,
    settings: Settings = None,
    trials: Annotated[int, typer.Option(min=500, help="Games with the canary; as many are played without it.")] = 2_000,
    rounds: Annotated[
        int, typer.Option(min=0, max=1000, help="Rounds per game. 0: two, or three where noise varies by round.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Try to detect a canary (an update made to be recognised) through the noise, and compare with the claim.

    Then measure clipping, noise and repeated noise on a few long updates.

    The noise is secret, as in deployment, so no two audits give the same figures.

    Auditing all noised methods takes several minutes, less with fewer --trials.

    Exits with status 1 if anything contradicts a claim.
    """
    from paraaegis.audit.games import audit as play
    from paraaegis.audit.games import check_noised, everything
    from paraaegis.cli.audit_text import NOTE, report
    from paraaegis.cli.display import ticking

    configs = everything() if config is None and not settings else {"": chosen_config(config, settings)}
    for one in configs.values():
        check_noised(one, rounds)
    audits = []
    for name, one in configs.items():
        with ticking(f"auditing {name or one.protect.method}", 2 * trials) as tick:
            audits.append(play(one, name, trials, rounds, tick))
    if as_json:
        print_json(audits)
    else:
        sys.stdout.write("\n\n".join([*map(report, audits), NOTE]) + "\n")
    if not all(one.passed for one in audits):
        sys.exit(1)
