"""`paraaegis privacy`: what a configuration promises, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Settings, print_json
from paraaegis.config import load_config, make_config


def privacy(
    config: Annotated[Path | None, typer.Argument(help="A TOML file; without it, every default.")] = None,
    settings: Settings = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget's ε.")] = None,
    delta: Annotated[float | None, typer.Option(help="The budget's δ.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    clip: Annotated[float | None, typer.Option(help="The clipping threshold θ.")] = None,
    unit: Annotated[str | None, typer.Option(help="client: one may be missing; client-replace: be another.")] = None,
    sampling: Annotated[float | None, typer.Option(help="The fraction of clients in a round.")] = None,
    decay: Annotated[float | None, typer.Option(help="varying-dp: the noise's ratio a round.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show the noise and the guarantee of a configuration, by adversary and unit, under each calibration."""
    named = {
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "federation.rounds": rounds,
        "privacy.clip": clip,
        "privacy.unit": unit,
        "federation.fraction": sampling,
        "privacy.vary": decay,
    }
    changes = [*(settings or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    chosen = load_config(config, changes) if config else make_config({}, ["privacy.calibration=tight", *changes])

    from paraaegis.experiments.promise import promise

    found = promise(chosen)
    if as_json:
        print_json(found)
        return
    from paraaegis.cli.display import show_promise

    show_promise(found)
