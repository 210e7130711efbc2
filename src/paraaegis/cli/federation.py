"""`paraaegis federation`: the same runs across processes, on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Metric, Settings, checked_config, default_out, print_json
from paraaegis.errors import ConfigError

app = typer.Typer(
    help="Run across processes and organisations, on Flower.", no_args_is_help=True, suggest_commands=False
)


@app.command("up", epilog="Example: paraaegis federation up --clients 3 --config configs/digits.toml")
def up(
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients, one SuperNode each. Default: as in the file.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file. Without it, the defaults.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the trial. Default: runs/federation-DIGEST.")] = None,
    fresh: Annotated[bool, typer.Option(help="Start over: delete the earlier result first.")] = False,
    metric: Metric = None,
    as_json: Json = False,
) -> None:
    """Try a federation on this machine, with a real SuperLink and SuperNodes, TLS and authentication."""
    changes = [*([f"federation.clients={clients}"] if clients else []), *(settings or [])]
    trial = checked_config(config, changes)
    folder = out or default_out("federation", trial)

    from paraaegis.cli.display import shown_rounds
    from paraaegis.cli.tables import summary
    from paraaegis.deploy.local_federation import up as start
    from paraaegis.metrics import choose
    from paraaegis.runs.guarantees import privacy_line

    with shown_rounds(trial.federation.rounds, trial.protect.method, metric, quiet=as_json) as show:
        result = start(trial, folder, fresh, show, lambda text: typer.echo(text, err=True))
    shown = choose(metric, result.metrics)
    if as_json:
        print_json(result)
    else:
        summary(result, shown, trial.train.stop_metric, privacy_line(folder))


@app.command(
    "app", epilog="Example: paraaegis federation app my-app && flwr run my-app CONNECTION --run-config 'folder=\"DIR\"'"
)
def write_app(folder: Annotated[Path, typer.Argument(help="Folder to write it to.")]) -> None:
    """Write this package's Flower app, to run it with `flwr run` on your own SuperLink."""
    from paraaegis.deploy.local_federation import write_app as write

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and will not be overwritten; name a new or empty folder")
    typer.echo(write(folder))
