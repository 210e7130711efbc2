"""`paraaegis privacy`: what a configuration guarantees before any training, or what a run has spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json
from paraaegis.errors import ConfigError


def privacy(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file or a run's folder. Without it, the defaults."),
    ] = None,
    settings: Settings = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget's ε.")] = None,
    delta: Annotated[float | None, typer.Option(help="The budget's δ.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    clip: Annotated[float | None, typer.Option(help="The clipping threshold θ.")] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="client: one client's update removed; client-replace: replaced; record: one record."),
    ] = None,
    sampling: Annotated[float | None, typer.Option(help="The fraction of clients drawn each round.")] = None,
    decay: Annotated[
        float | None, typer.Option(help="varying-dp: the factor by which the noise changes each round.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a configuration's noise and its guarantee by adversary and unit; for a run, also what it has spent."""
    named = {
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "federation.rounds": rounds,
        "privacy.clip": clip,
        "privacy.unit": unit,
        "federation.fraction": sampling,
        "privacy.vary": decay,
    }
    changes = [*(f"{key}={value}" for key, value in named.items() if value is not None), *(settings or [])]
    from paraaegis.methods import METHODS, method_of
    from paraaegis.runs.guarantees import run_guarantees, spending

    if config is not None and config.is_dir():
        if changes:
            raise ConfigError(f"{config} is a run's folder, and options cannot change what it spent; omit them")
        shown = spending(config)
    else:
        changed = chosen_config(config, changes)
        if decay is not None and not method_of(changed).varies:
            able = next(name for name, method in METHODS.items() if method.varies)
            raise ConfigError(
                f"--decay applies only to noise that varies from round to round, which {changed.protect.method} does "
                f"not add; add --set protect.method={able} or omit --decay"
            )
        shown = run_guarantees(changed)
    if as_json:
        print_json(shown)
        return
    from paraaegis.cli.tables import show_guarantees

    show_guarantees(shown)
