"""`paraaegis keys`: make the keys each silo needs; no command prints a secret."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, print_json
from paraaegis.config import numbered
from paraaegis.errors import ConfigError

app = typer.Typer(help="Make, show and hand out a federation's keys.", no_args_is_help=True, suggest_commands=False)


@app.command("new", epilog="Example: paraaegis keys new federation-keys --names hospital-a,hospital-b,hospital-c")
def new(
    folder: Annotated[Path, typer.Argument(help="Folder to make the silos' folders in.")],
    names: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,…", help="The silos' names, the same as in federation.names.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of silos, to be called client-0, client-1 and so on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make all silos' keys in one place, to be delivered by someone whom all of them trust."""
    from paraaegis.deploy.key_folder import deal_keys

    if (names is None) == (clients is None):
        got = "neither" if names is None else "both"
        raise ConfigError(f"give either --names hospital-a,hospital-b or --clients 2, got {got}")
    silos = numbered(clients) if clients else [name.strip() for name in (names or "").split(",")]
    paths = [str(path) for path in deal_keys(folder, silos)]
    if as_json:
        print_json(paths)
        return
    for path in paths:
        typer.echo(path)
    typer.echo("Give each silo its own folder, then delete this copy. The server's folder contains nothing secret.")


@app.command("identity", epilog="Example: paraaegis keys identity my-silo --lead 4f2a-…")
def identity(
    folder: Annotated[Path, typer.Argument(help="The silo's key folder.")],
    lead: Annotated[str, typer.Option(help="The lead's fingerprint, as its staff read it to you.")] = "",
    as_json: Json = False,
) -> None:
    """Make this silo's key pair and print its fingerprint, to be read to the lead's staff by telephone."""
    from paraaegis.deploy.key_folder import KeyFolder

    fingerprint = KeyFolder(folder).create(lead)
    if as_json:
        print_json({"fingerprint": fingerprint})
        return
    typer.echo(f"this silo's fingerprint: {fingerprint}")
    typer.echo("Read it to the lead's staff by telephone; never send it through the server. They approve it with")
    typer.echo(f"  paraaegis keys lead THEIR-FOLDER --approve THIS-SILOS-NAME={fingerprint}")


@app.command("lead", epilog="Example: paraaegis keys lead my-silo --approve hospital-b=4f2a-…")
def lead(
    folder: Annotated[Path, typer.Argument(help="The lead silo's key folder.")],
    approve: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FINGERPRINT", help="A silo to approve, with the fingerprint its staff read to you."),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace a lead that has left: make new secrets and become the lead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make this silo the lead, which makes the secrets and seals them to approved silos when they connect."""
    from paraaegis.deploy.key_folder import KeyFolder

    pairs = [text.partition("=") for text in approve or []]
    if odd := ["".join(pair) for pair in pairs if not (pair[0] and pair[2])]:
        raise ConfigError(f"--approve takes NAME=FINGERPRINT, got {odd[0]!r}")
    silo = KeyFolder(folder)
    fingerprint = silo.approve({name: value for name, _, value in pairs}, take_over)
    if as_json:
        print_json({"fingerprint": fingerprint})
        return
    typer.echo(f"the lead's fingerprint: {fingerprint}")
    typer.echo("Read it to the other silos' staff by telephone; never send it through the server. Each of them runs")
    typer.echo(f"  paraaegis keys identity THEIR-FOLDER --lead {fingerprint}")
    typer.echo("and reads you the fingerprint that it prints. Approve it with")
    typer.echo(f"  paraaegis keys lead {shlex.quote(str(folder))} --approve NAME=FINGERPRINT")
    if approved := silo.approved():
        typer.echo(f"Approved so far: {', '.join(approved)}. They receive the keys when a run starts.")


@app.command("rotate", epilog="Example: paraaegis keys rotate my-silo --without hospital-b")
def rotate(
    folder: Annotated[Path, typer.Argument(help="The lead silo's key folder.")],
    without: Annotated[str, typer.Option(help="A silo that has left, if any; it will not get the new secrets.")] = "",
    as_json: Json = False,
) -> None:
    """Make new secrets, which the other silos get when they next connect to the server. Then start a new run."""
    from paraaegis.deploy.key_folder import KeyFolder

    new_id = KeyFolder(folder).rotate(without)
    if as_json:
        print_json({"key_id": new_id})
        return
    typer.echo(f"new secrets: {new_id}")
    if without:
        typer.echo(f"Remove {without} from federation.names in every silo's configuration and in the server's.")
    typer.echo("Start a new run: the other silos receive the new secrets when they connect to the server.")


@app.command("show", epilog="Example: paraaegis keys show my-silo")
def show(folder: Annotated[Path, typer.Argument(help="A key folder.")], as_json: Json = False) -> None:
    """Show what a key folder contains, without printing a secret."""
    from paraaegis.deploy.key_folder import KeyFolder

    if not (folder / "identity").exists() and not (folder / "keys").exists():
        public = "; its public.toml is for the server and not secret" if (folder / "public.toml").exists() else ""
        raise ConfigError(f"{folder} is not a silo's key folder: it contains neither an identity nor keys{public}")
    shown = KeyFolder(folder).show()
    if as_json:
        print_json(shown)
        return
    for name in shown.__struct_fields__:
        if value := getattr(shown, name):
            lines = [f"{key}  {text}" for key, text in value.items()] if isinstance(value, dict) else [value]
            for index, line in enumerate(lines):
                typer.echo(f"{'' if index else name:12} {'yes' if line is True else line}")
