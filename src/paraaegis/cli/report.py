"""`paraaegis report`: one page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or a comparison's folder.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its title; default: made from the runs.")] = "",
) -> None:
    """Write one self-contained HTML page about runs: results, trade-offs, costs, guarantees, configurations."""
    from paraaegis.errors import RunError
    from paraaegis.experiments.report.collect import collect
    from paraaegis.experiments.report.page import write_page

    runs, problems = collect(folders)
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    if not runs:
        raise RunError("none of these runs is complete, so there is nothing to show")
    write_page(runs, problems, out, title)
    typer.echo(out)
