"""`paraaegis statement`: one page about what a run or a configuration protects, for a data protection officer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, chosen_config, print_json
from paraaegis.errors import ConfigError

SUFFIXES = ".md", ".html"


def statement(
    subject: Annotated[
        Path | None,
        typer.Argument(metavar="RUN|CONFIG", help="A run's or a silo's folder, or a TOML file. Default: the defaults."),
    ] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The page to write: Markdown (.md) or HTML (.html).")] = None,
    as_json: Json = False,
) -> None:
    """Say in plain words what leaves each site, who can read it, what they could learn, and what is not covered.

    Of a configuration, what would happen; of a folder, what did, according to its ledger.
    """
    from paraaegis.cli.options import check_target
    from paraaegis.files import write_whole
    from paraaegis.runs.check import check_budget
    from paraaegis.statement.facts import facts_of_config, facts_of_folder
    from paraaegis.statement.page import statement as statement_of
    from paraaegis.statement.render import as_html, as_markdown

    if out is not None:
        check_target("--out", out, out.suffix.lower() if out.suffix.lower() in SUFFIXES else " or ".join(SUFFIXES))
    if subject is not None and subject.is_dir():
        if settings:
            raise ConfigError(f"{subject} is a run's folder, and --set cannot change what it released; omit it")
        facts = facts_of_folder(subject)
    else:
        config = chosen_config(subject, settings)
        check_budget(config)
        facts = facts_of_config(config)
    made = statement_of(facts)
    if out is not None:
        text = as_html(made) if out.suffix.lower() == ".html" else as_markdown(made)
        write_whole(out, lambda file: file.write(text.encode()))
    if as_json:
        print_json(made)
    else:
        sys.stdout.write(f"{out}\n" if out else as_markdown(made))
