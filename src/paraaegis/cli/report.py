"""`paraaegis report`: one page about runs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import check_target, say_measured

LOOK = 2.0  # seconds between two looks for new rounds
REFRESH = 10  # seconds after which a watched page reloads itself


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or a comparison's folder.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its title; default: made from the runs.")] = "",
    png: Annotated[Path | None, typer.Option(help="Also write the trade-off as a picture.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the results as Markdown.")] = None,
    explorer: Annotated[bool, typer.Option(help="With sliders; measures this machine once a day, for seconds.")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the page fresh while runs go on, until Ctrl-C.")] = False,
) -> None:
    """Write one self-contained HTML page about runs: results, trade-offs, costs, guarantees, configurations."""
    from paraaegis.errors import RunError
    from paraaegis.files import write_whole
    from paraaegis.planning.measure import remembered
    from paraaegis.report.collect import collect, profile_of
    from paraaegis.report.page import write_page
    from paraaegis.report.picture import markdown as as_markdown
    from paraaegis.report.picture import write_picture

    for option, path, suffix in (("--out", out, ".html"), ("--png", png, ".png"), ("--markdown", markdown, ".md")):
        if path is not None:
            check_target(option, path, suffix)
    if watch:
        if png or markdown:
            raise RunError("--watch keeps the page alone fresh; write --png and --markdown when the runs are done")
        with suppress(KeyboardInterrupt):  # the way to end it
            _watch(folders, out, title)
        runs, problems = collect(folders, running=True)
        if runs:
            write_page(runs, problems, out, title)  # without the reload
        return
    runs, problems = collect(folders)
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    if not runs:
        raise RunError("none of these runs is complete, so there is nothing to show")
    write_page(runs, problems, out, title, remembered(profile_of(runs), say_measured) if explorer else None)
    typer.echo(out)
    if png is not None:
        write_picture(runs, png, title)
        typer.echo(png)
    if markdown is not None:
        write_whole(markdown, lambda file: file.write(as_markdown(runs).encode()))
        typer.echo(markdown)


def _watch(folders: list[Path], out: Path, title: str) -> None:
    """Write the page anew after every round, without an explorer: a machine that works is not measured."""
    from paraaegis.report.collect import collect
    from paraaegis.report.page import write_page

    seen: object = None
    told: list[str] = []
    typer.echo(f"{out} is kept fresh; Ctrl-C ends it", err=True)
    while True:
        if (state := _state(folders)) and state != seen:
            runs, problems = collect(folders, running=True)
            if runs:
                write_page(runs, problems, out, title, refresh=REFRESH)
            for problem in problems:
                if problem not in told:
                    typer.echo(f"left out: {problem}", err=True)
            seen, told = state, problems
        time.sleep(LOOK)


def _state(folders: list[Path]) -> list[tuple[str, int]]:
    """What changes when a round is done."""
    found = []
    for path in (path for folder in folders for path in folder.glob("**/*.json*")):
        with suppress(OSError):  # it may go while it is looked at
            found.append((str(path), path.stat().st_size))
    return sorted(found)
