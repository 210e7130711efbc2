"""`paraaegis run`: run one configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Metric, Settings, checked_config, default_out, print_json
from paraaegis.errors import ConfigError


def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file. Without it, the defaults.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/METHOD-DIGEST.")] = None,
    fresh: Annotated[bool, typer.Option(help="Start over: delete the earlier result first.")] = False,
    extend: Annotated[bool, typer.Option(help="Add rounds to a finished run, up to federation.rounds.")] = False,
    metric: Metric = None,
    as_json: Json = False,
) -> None:
    """Run one configuration, or continue a run that was interrupted."""
    if extend and out is None:
        raise ConfigError("--extend needs --out, the folder of the run that gets more rounds")
    run_config = checked_config(config, settings)
    folder = out or default_out(run_config.protect.method, run_config)

    from paraaegis import launch
    from paraaegis.cli.display import shown_rounds
    from paraaegis.cli.tables import summary
    from paraaegis.metrics import choose
    from paraaegis.runs.guarantees import privacy_line

    with shown_rounds(run_config.federation.rounds, run_config.protect.method, metric, quiet=as_json) as show:
        result = launch.run(run_config, folder, fresh, show, extend)
    shown = choose(metric, result.metrics)
    if as_json:
        print_json(result)
    else:
        summary(result, shown, run_config.train.stop_metric, privacy_line(folder))
