"""The typer app with all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from paraaegis.cli import audit, bench, compare, federation, keys, lists, new, plan, privacy, report, run, statement
from paraaegis.version import __version__

app = typer.Typer(
    help="Federated learning in which part of every update is encrypted and differential privacy protects the rest.",
    no_args_is_help=True,
    suggest_commands=False,  # click already does
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("new", epilog="Example: paraaegis new my-study")(new.new)
app.command("run", epilog="Example: paraaegis run configs/digits.toml --set protect.ratio=0.05")(run.run)
app.command("compare", epilog="Example: paraaegis compare --preset quick")(compare.compare)
app.command("report", epilog="Example: paraaegis report runs/compare-quick --out report.html")(report.report)
app.command("plan", epilog="Example: paraaegis plan --model resnet18 --clients 10 --rounds 50 --bandwidth 100")(
    plan.plan
)
app.command("privacy", epilog="Example: paraaegis privacy --epsilon 1 --set protect.method=dp-fedavg")(privacy.privacy)
app.command("statement", epilog="Example: paraaegis statement runs/my-run --out statement.html")(statement.statement)
app.command("audit", epilog="Example: paraaegis audit --set privacy.unit=record")(audit.audit)
app.add_typer(keys.app, name="keys", epilog="Example: paraaegis keys new federation-keys --names hospital-a,hospital-b")
app.add_typer(federation.app, name="federation", epilog="Example: paraaegis federation up --clients 3")
app.add_typer(bench.app, name="bench", epilog="Example: paraaegis bench vote")
app.command("methods", epilog="Example: paraaegis methods --json")(lists.methods)
app.command("datasets", epilog="Example: paraaegis datasets")(lists.datasets)
app.command("models", epilog="Example: paraaegis models")(lists.models)
app.command("presets", epilog="Example: paraaegis presets")(lists.presets)
app.command("settings", epilog="Example: paraaegis settings | grep privacy")(lists.settings)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paraaegis {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Global options."""
