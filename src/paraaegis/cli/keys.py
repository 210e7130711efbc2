"""`paraaegis keys`: what each silo needs and nothing more; no command prints a secret."""

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
    folder: Annotated[Path, typer.Argument(help="Where to make the silos' folders.")],
    names: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,…", help="The silos' names, as in federation.names.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Instead of names, how many silos: client-0, client-1 and so on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make all silos' keys in one place, to be carried by someone whom all of them trust."""
    from paraaegis.deploy.key_folder import deal_keys

    if (names is None) == (clients is None):
        raise ConfigError("say who the silos are, by either --names hospital-a,hospital-b or --clients 2")
    called = numbered(clients) if clients else [name.strip() for name in (names or "").split(",")]
    made = [str(path) for path in deal_keys(folder, called)]
    if as_json:
        print_json(made)
        return
    for path in made:
        typer.echo(path)
    typer.echo("Give each silo its own folder, then delete this copy. The server's folder holds nothing secret.")


@app.command("identity", epilog="Example: paraaegis keys identity my-silo --lead 4f2a-…")
def identity(
    folder: Annotated[Path, typer.Argument(help="The silo's key folder.")],
    lead: Annotated[str, typer.Option(help="The lead silo's fingerprint, as its people told you.")] = "",
    as_json: Json = False,
) -> None:
    """Make this silo's own pair and print the fingerprint to tell the lead's people, not through the server."""
    from paraaegis.deploy.key_folder import KeyFolder

    fingerprint = KeyFolder(folder).create(lead)
    if as_json:
        print_json({"fingerprint": fingerprint})
        return
    typer.echo(f"this silo's fingerprint: {fingerprint}")
    typer.echo("Tell it to the people at the lead by telephone, not through the server. They approve it with")
    typer.echo(f"  paraaegis keys lead THEIR-FOLDER --approve THIS-SILOS-NAME={fingerprint}")


@app.command("lead", epilog="Example: paraaegis keys lead my-silo --approve hospital-b=4f2a-…")
def lead(
    folder: Annotated[Path, typer.Argument(help="The lead silo's key folder.")],
    approve: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FINGERPRINT", help="A silo, as its people told you.")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="This silo followed a lead that left: make new secrets and lead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make this silo the lead: it makes the secrets, and seals them to approved silos when they meet the server."""
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
    typer.echo("Tell it to the people at the other silos by telephone, not through the server. Each of them runs")
    typer.echo(f"  paraaegis keys identity THEIR-FOLDER --lead {fingerprint}")
    typer.echo("and tells you the fingerprint that this prints. Approve it with")
    typer.echo(f"  paraaegis keys lead {shlex.quote(str(folder))} --approve NAME=FINGERPRINT")
    if approved := silo.approved():
        typer.echo(f"Approved so far: {', '.join(approved)}. They get the keys when a run starts.")


@app.command("rotate", epilog="Example: paraaegis keys rotate my-silo --without hospital-b")
def rotate(
    folder: Annotated[Path, typer.Argument(help="The lead silo's key folder.")],
    without: Annotated[str, typer.Option(help="The silo that left, if one did; it will not get them.")] = "",
    as_json: Json = False,
) -> None:
    """Make new secrets, which the others get when they next meet the server. Begin a new run afterwards."""
    from paraaegis.deploy.key_folder import KeyFolder

    new_id = KeyFolder(folder).rotate(without)
    print_json({"key_id": new_id}) if as_json else typer.echo(f"new secrets: {new_id}")


@app.command("show", epilog="Example: paraaegis keys show my-silo")
def show(folder: Annotated[Path, typer.Argument(help="A key folder.")], as_json: Json = False) -> None:
    """Tell what a folder holds, without printing a secret."""
    from paraaegis.deploy.key_folder import KeyFolder

    if not (folder / "identity").exists() and not (folder / "keys").exists():
        public = "; public.toml in it is the server's, and not secret" if (folder / "public.toml").exists() else ""
        raise ConfigError(f"{folder} is not a silo's key folder: it holds neither an identity nor keys{public}")
    shown = KeyFolder(folder).show()
    if as_json:
        print_json(shown)
        return
    for name in shown.__struct_fields__:
        if value := getattr(shown, name):
            lines = [f"{key}  {told}" for key, told in value.items()] if isinstance(value, dict) else [value]
            for index, line in enumerate(lines):
                typer.echo(f"{'' if index else name:12} {'yes' if line is True else line}")
