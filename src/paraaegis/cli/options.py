"""Options and output shared by several commands."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.config import Config, load_config, make_config, naming
from paraaegis.errors import ConfigError

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key, such as protect.ratio=0.05; overrides other options."
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(help="The reported metric to show. Default: accuracy, or the first one reported."),
]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def chosen_config(path: Path | None, settings: list[str] | None) -> Config:
    """The configuration from a file, or the defaults, with the settings applied."""
    return load_config(path, settings or []) if path else make_config({}, settings or [])


def checked_config(path: Path | None, settings: list[str] | None) -> Config:
    """The same for a command that runs it: what cannot be run is refused with the file's name.

    Its learner, if it names one, is found next to the file.
    """
    from paraaegis.runs.check import check_budget, check_early
    from paraaegis.runs.learners import importable

    config = chosen_config(path, settings)
    importable(path.parent if path else None)
    with naming(path or "the configuration", settings or []):
        check_budget(config)
        check_early(config)
    return config


def default_out(name: str, config: Config) -> Path:
    """The folder of a run for which none was given.

    A digest covers no learner's name, which may differ between silos; here two learners must not share a folder.
    """
    digest = config.digest()
    if config.learner:
        digest = sha256(f"{digest} {config.learner}".encode()).hexdigest()
    return Path("runs") / f"{name}-{digest[:8]}"


def say_measured(name: str) -> None:
    """Report on standard error that this machine is being measured for a method."""
    typer.echo(f"measuring this machine: {name}", err=True)


def check_target(option: str, path: Path, suffix: str) -> None:
    """Refuse a target with the wrong suffix, before anything is overwritten."""
    if path.suffix.lower() != suffix or path.is_dir():
        raise ConfigError(f"{option} writes a {suffix} file, got {path}")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"{option}: folder {path.resolve().parent} does not exist; create it or name another")


def print_json(value: object) -> None:
    """Print a result as indented JSON."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
