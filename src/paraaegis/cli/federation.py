"""`paraaegis federation`: the same runs across processes, on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json
from paraaegis.errors import ConfigError

app = typer.Typer(
    help="Run across processes and organisations, on Flower.", no_args_is_help=True, suggest_commands=False
)


@app.command("up", epilog="Example: paraaegis federation up --clients 3 --config configs/digits.toml")
def up(
    clients: Annotated[
        int | None, typer.Option(min=1, help="Clients, one SuperNode each. Default: the file's number or names.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file; without it, every default.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The trial's folder. Default: runs/federation-DIGEST.")] = None,
    fresh: Annotated[bool, typer.Option(help="Start over instead of going on.")] = False,
    as_json: Json = False,
) -> None:
    """Try a federation on this machine: a real SuperLink and SuperNodes with TLS and authentication, then stop them."""
    changes = [*([f"federation.clients={clients}"] if clients else []), *(settings or [])]
    chosen = chosen_config(config, changes)
    folder = out or Path("runs") / f"federation-{chosen.digest()[:8]}"

    from paraaegis.cli.display import shown_rounds
    from paraaegis.cli.tables import summary
    from paraaegis.deploy.local_federation import up as start

    with shown_rounds(chosen.federation.rounds, chosen.protect.method, quiet=as_json) as show:
        result = start(chosen, folder, fresh, show, lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(result)
    else:
        summary(result)


@app.command(
    "app", epilog="Example: paraaegis federation app my-app && flwr run my-app CONNECTION --run-config 'folder=\"DIR\"'"
)
def write_app(folder: Annotated[Path, typer.Argument(help="Where to write it.")]) -> None:
    """Write the Flower app of this package, for `flwr run` against a SuperLink of yours."""
    from paraaegis.deploy.local_federation import write_app as write

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} holds something already, which is not overwritten; name a new folder")
    typer.echo(write(folder))
