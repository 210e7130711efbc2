"""`paraaegis keys`: what each silo needs and nothing more; no command prints a secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, print_json
from paraaegis.errors import ConfigError

app = typer.Typer(help="Make, show and hand out a federation's keys.", no_args_is_help=True, suggest_commands=False)


@app.command("new", epilog="Example: paraaegis keys new federation-keys --clients 3")
def new(
    folder: Annotated[Path, typer.Argument(help="Where to make the silos' folders.")],
    clients: Annotated[int, typer.Option(min=1, help="How many silos.")],
    as_json: Json = False,
) -> None:
    """Make all silos' keys in one place, to be carried by someone whom all of them trust."""
    from paraaegis.deploy.key_folder import deal_keys

    made = [str(path) for path in deal_keys(folder, clients)]
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
    print_json({"fingerprint": fingerprint}) if as_json else typer.echo(fingerprint)


@app.command("lead", epilog="Example: paraaegis keys lead my-silo --approve client-1=4f2a-…")
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
    if wrong := [name for name, _, _ in pairs if not re.fullmatch(r"client-(0|[1-9]\d*)", name)]:
        raise ConfigError(f"silos are called client-0, client-1 and so on, got {wrong[0]!r}")
    fingerprint = KeyFolder(folder).approve({name: value for name, _, value in pairs}, take_over)
    print_json({"fingerprint": fingerprint}) if as_json else typer.echo(fingerprint)


@app.command("rotate", epilog="Example: paraaegis keys rotate my-silo --without client-2")
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
