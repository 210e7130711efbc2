"""`paraaegis report`: write one HTML page about runs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Metric, check_target, say_measured

LOOK = 2.0  # seconds between checks for new rounds
REFRESH = 10  # seconds after which a watched page reloads itself


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or a comparison's folder.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page. Default: made from the runs.")] = "",
    png: Annotated[Path | None, typer.Option(help="Also write the trade-off plot as a PNG.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the results as Markdown.")] = None,
    explorer: Annotated[
        bool, typer.Option(help="Include sliders; measures this machine for some seconds, once a day.")
    ] = True,
    metric: Metric = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update the page while runs continue, until Ctrl-C.")] = False,
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
            raise RunError("--watch updates only the page; write --png and --markdown when the runs are done")
        with suppress(KeyboardInterrupt):  # Ctrl-C ends watching
            _watch(folders, out, title, metric)
        runs, problems = collect(folders, True, metric)
        if runs:
            write_page(runs, problems, out, title)  # without reloading
        return
    runs, problems = collect(folders, metric=metric)
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    if not runs:
        raise RunError("none of these runs is complete, so there is nothing to show; use --watch for running ones")
    write_page(runs, problems, out, title, remembered(profile_of(runs), say_measured) if explorer else None)
    typer.echo(out)
    if png is not None:
        write_picture(runs, png, title)
        typer.echo(png)
    if markdown is not None:
        write_whole(markdown, lambda file: file.write(as_markdown(runs).encode()))
        typer.echo(markdown)


def _watch(folders: list[Path], out: Path, title: str, metric: str | None) -> None:
    """Rewrite the page after every round, without an explorer, since a busy machine cannot be measured."""
    from paraaegis.report.collect import collect
    from paraaegis.report.page import write_page

    seen: object = None
    reported: list[str] = []
    typer.echo(f"updating {out} after every round; stop with Ctrl-C", err=True)
    while True:
        if (state := _state(folders)) and state != seen:
            runs, problems = collect(folders, True, metric)
            if runs:
                write_page(runs, problems, out, title, refresh=REFRESH)
            for problem in problems:
                if problem not in reported:
                    typer.echo(f"skipped: {problem}", err=True)
            seen, reported = state, problems
        time.sleep(LOOK)


def _state(folders: list[Path]) -> list[tuple[str, int]]:
    """The sizes of all records, which change with every round."""
    sizes = []
    for path in (path for folder in folders for path in folder.glob("**/*.json*")):
        with suppress(OSError):  # the file may be removed in the meantime
            sizes.append((str(path), path.stat().st_size))
    return sorted(sizes)
