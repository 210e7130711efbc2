"""`paraaegis new`: a small project to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.errors import ConfigError

FILES = ("study.toml", "sites.py", "test_study.py")


def new(folder: Annotated[Path, typer.Argument(help="A new folder for the project.")]) -> None:
    """Write a small project with your own model and data: a configuration, the learner, a test."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and will not be overwritten; name a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text((files("paraaegis.template") / name).read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(
        f"wrote {', '.join(FILES)} to {folder}; put your data and model into sites.py. Next:\n"
        f"  cd {folder}\n"
        "  paraaegis run study.toml --out runs/first       # train; shows what each site measures\n"
        "  paraaegis report runs/first                     # one page: results, costs, what is guaranteed\n"
        "  paraaegis statement runs/first                  # one page for a data protection officer\n"
        "  paraaegis plan study.toml --pilot               # what other ratios would cost"
    )
