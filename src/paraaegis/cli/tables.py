"""Results of commands as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paraaegis import metrics
from paraaegis.comparisons.table import Table as Comparison
from paraaegis.comparisons.table import by_label, cells_text, explained, headers, splits_of
from paraaegis.methods import find_method
from paraaegis.planning.pilot import Pilot
from paraaegis.planning.planner import Choice, Recommendation
from paraaegis.plural import plural, size
from paraaegis.privacy.guarantee import Guarantee, by_adversary
from paraaegis.runs.guarantees import RunGuarantees
from paraaegis.runs.result import Result, by_site
from paraaegis.statement.words import SAME_RUN, SIMULATION, spent_text


def metrics_text(measured: dict[str, float], first: str) -> str:
    """All metrics by name, this one first."""
    names = sorted(measured, key=lambda name: name != first)
    return "  ".join(f"{name} {metrics.text(name, metrics.scaled(name, measured[name]))}" for name in names)


def summary(result: Result, metric: str = metrics.ACCURACY, stop_metric: str = "", privacy: str = "") -> None:
    """Print a result and its folder, one line per item, then the metric at each client if several reported.

    `stop_metric` is train.stop_metric, by which a round is the best; `privacy` says who is protected, by what.
    """
    best_by = stop_metric if stop_metric in result.metrics else metrics.choose(None, result.metrics)
    up, down = result.bytes_up / result.rounds, result.bytes_down / result.rounds
    lines = {
        "method": result.method,
        "result": metrics_text(result.metrics, metric),
        "time": f"{result.seconds:.1f} s for {plural(result.rounds, 'round')}",
        "bytes": f"{size(up)} up and {size(down)} down per round, all clients together",
        "best": f"{best_by} after round {result.best_round}" if 0 < result.best_round < result.rounds else "",
        "stopped": result.stopped,
        "privacy": privacy,
        "folder": result.folder,
    }
    for name, text in lines.items():
        if text:
            sys.stdout.write(f"{name:8}{text}\n")
    headings, rows = by_site(result, metric)
    if rows:
        _wide().print(_sites_table(headings, rows))


def _sites_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(header_style="bold")
    for name in headings:
        table.add_column(name, justify="left" if name == "site" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _wide(width: int = 140) -> Console:
    """A console for tables: as wide as the terminal, or `width` characters in a file."""
    return Console(markup=False) if sys.stdout.isatty() else Console(width=width, markup=False)


def show_table(comparison: Comparison, folder: Path) -> None:
    """Print a comparison in the form of the paper's Table 1, or one table per split if too wide, then its files."""
    console, splits = _wide(240), splits_of(comparison)
    choices = (
        [_comparison_table(comparison, splits)],
        [_comparison_table(comparison, [split]) for split in splits],
        [_comparison_table(comparison, [split], without="efficiency") for split in splits],
    )
    free = Console(width=1000, markup=False)
    fitting = (tables for tables in choices if all(free.measure(one).maximum <= console.width for one in tables))
    for table in next(fitting, choices[-1]):
        console.print(table)
    console.print(explained(comparison), highlight=False)
    for name in ("table.md", "table.json", "plot.png", "report.html"):
        sys.stdout.write(f"{folder / name}\n")


def _comparison_table(comparison: Comparison, splits: Sequence[str], without: str = "-") -> Table:
    table = Table(title=comparison.title, title_justify="left", header_style="bold")
    table.add_column("method", no_wrap=True)
    names = headers(splits, comparison.metric)
    shown = [not name.startswith(without) for name in names]
    for name in compress(names, shown):
        table.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for label, rows in by_label(comparison):
        if any(row.split in splits for row in rows):
            table.add_row(label, *compress(cells_text(rows, splits, comparison.metric), shown))
    return table


def show_plan(recommendation: Recommendation, written: Path | None) -> None:
    """Print the choice next to its neighbours, its guarantees, and where the configuration was written."""
    console, request, rounds = _wide(), recommendation.request, recommendation.rounds
    place = f"{request.bandwidth:g} Mbit/s per client" if request.bandwidth else "all clients on this machine"
    clients, all_rounds = plural(recommendation.clients, "client"), plural(rounds, "round")
    title = f"{request.length:,} values, {clients}, {all_rounds}, {place}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    shown = {
        "cheaper": recommendation.cheaper,
        "chosen" if recommendation.fits else "nearest": recommendation.choice,
        "better": recommendation.better,
    } | dict(zip(("plain averaging", "all encrypted"), recommendation.references, strict=True))
    columns = {name: choice for name, choice in shown.items() if choice is not None}
    for name in columns:
        table.add_column(name, justify="right", style="bold" if name in ("chosen", "nearest") else "")
    for label, value in _plan_rows(recommendation):
        table.add_row(label, *(value(choice) for choice in columns.values()))
    console.print(table)
    for line in _plan_notes(recommendation):
        console.print(line, highlight=False)
    _show_guarantees(console, f"{recommendation.choice.method} guarantees", recommendation.guarantees)
    if written is not None:
        text = f"configuration written to {written}" if recommendation.fits else f"nothing was written to {written}"
        console.print(text, highlight=False, soft_wrap=True)


def _plan_rows(recommendation: Recommendation) -> list[tuple[str, Callable[[Choice], str]]]:
    rounds, dynamic = recommendation.rounds, find_method(recommendation.choice.method).ratio == "decaying"
    rows: list[tuple[str, Callable[[Choice], str]]] = [
        ("method", lambda one: one.method),
        (
            "r_0, λ" if dynamic else "r",
            lambda one: f"{100 * one.ratio:g}%" + (f" × {one.decay:g}" if dynamic else ""),
        ),
        ("seconds per round", lambda one: f"{one.estimate.seconds / rounds:.2f}"),
        ("seconds in total", lambda one: f"{one.estimate.seconds:.1f}"),
        ("up per client per round", lambda one: size(one.estimate.bytes_up / rounds)),
        ("down per client per round", lambda one: size(one.estimate.bytes_down / rounds)),
        ("up and down per client in total", lambda one: size(1e6 * one.megabytes)),
        ("up and down of all clients in total", lambda one: size(1e6 * one.megabytes_total)),
        ("memory of a client, roughly", lambda one: size(one.estimate.memory_client)),
        ("memory of the server, roughly", lambda one: size(one.estimate.memory_server)),
    ]
    if recommendation.pilot is not None:
        rows.append(_lost_row(recommendation.pilot))
    rows.append((f"predicted {recommendation.request.metric} after {plural(rounds, 'round')}", _predicted))
    return rows


def _plan_notes(recommendation: Recommendation) -> Iterator[str]:
    """What a plan says below its table."""
    choice, everything = recommendation.choice, recommendation.references[1]
    noise = f"; noise σ = {recommendation.sigma:.4g} per coordinate" if recommendation.sigma else ""
    yield f"profile {recommendation.profile}{noise}"
    if recommendation.simulation:
        yield f"{SIMULATION} {SAME_RUN}"
    if recommendation.request.train is None:
        yield "Training time is not included; add --train-seconds, or --pilot to measure it."
    if not choice.measured:
        yield "No accuracy was ever measured at a ratio as small as the chosen one."
    if recommendation.fits:
        yield _reason(recommendation)
        if everything.megabytes <= choice.megabytes:
            yield f"Encrypting everything takes no more bytes: --set protect.method={everything.method}."
        return
    yield from (f"No ratio fits; the nearest: {miss}." for miss in choice.misses)
    for other in recommendation.instead:
        settings = " ".join(f"--set {setting}" for setting in other.settings)
        tried = "untested, --pilot tries it"
        if other.reached is not None:
            tried = f"{recommendation.request.metric} {other.reached:.3g} in the pilot"
        yield f"Instead, try {settings}: {other.why}; {tried}."


def _reason(recommendation: Recommendation) -> str:
    """Why this choice."""
    request = recommendation.request
    if recommendation.pilot is None:
        return "Chosen: the usual ratio, or the highest below it that fits. Its accuracy is unknown; --pilot tries it."
    if request.points is not None:
        return f"Chosen: the cheapest that loses at most {request.points:g}."
    return "Chosen: the cheapest that the pilot found within --tolerance of the best that fits."


def _predicted(choice: Choice) -> str:
    one = choice.predicted
    return "unknown" if one is None else f"{one.low:.1f} to {one.high:.1f} %"


def _lost_row(pilot: Pilot) -> tuple[str, Callable[[Choice], str]]:
    """What each choice loses against plain averaging, according to the pilot."""
    points = metrics.is_percent(pilot.metric)
    what = "points" if pilot.metric == metrics.ACCURACY else f"{pilot.metric}, points" if points else pilot.metric
    side = "above" if metrics.lower_is_better(pilot.metric) else "below"

    def lost(choice: Choice) -> str:
        if choice.points_lost is None or not choice.measured:
            return "not tested"
        return f"{choice.points_lost:{'.1f' if points else '.3g'}}"

    return f"{what} {side} FedAvg after {plural(pilot.rounds, 'round')}", lost


def _show_guarantees(console: Console, title: str, guarantees: Sequence[Guarantee]) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("against", "unit", "guarantee", "why"):
        table.add_column(name)
    for adversary, rows in by_adversary(guarantees):
        for index, (units, one) in enumerate(rows):
            text = f"{one.kind}\n{one.figure}".rstrip()
            table.add_row("" if index else adversary, units, text, one.why, end_section=index == len(rows) - 1)
    console.print(table)


def show_guarantees(run_guarantees: RunGuarantees) -> None:
    """Print a configuration's guarantees and calibrations as two tables."""
    console = _wide()
    first = " in the first round" if find_method(run_guarantees.method).varies else ""
    noise = f"σ = {run_guarantees.sigma:.4g} per coordinate{first}, calibration {run_guarantees.calibration!r}"
    if (training := run_guarantees.training) is not None:
        noise = (
            f"DP-SGD in every client, {plural(training.steps_per_round, 'step')} per round, {training.steps} in all; "
            f"sample rate {training.sample_rate:g}, clip {training.clip:g}, "
            f"noise multiplier {training.noise_multiplier:g}"
        )
    title = f"{run_guarantees.method}: {noise if run_guarantees.sigma or training else 'no noise'}"
    _show_guarantees(console, title, run_guarantees.guarantees)
    if run_guarantees.simulation:
        console.print(f"{SIMULATION} {SAME_RUN}", highlight=False)
    if run_guarantees.lwe_bits is not None:
        console.print(
            f"The masks have about {run_guarantees.lwe_bits} bits of security (core-SVP) in a sum over "
            "federation.quorum clients if privacy.colluders of them help the server.",
            highlight=False,
        )
    if run_guarantees.spent:
        console.print(spent_text(run_guarantees.spent), highlight=False)
    if not run_guarantees.calibrations:
        return
    table = Table(title="The same budget under each calibration", title_justify="left")
    honest = "ε by exact accounting\n(unit: client, against\nall who read the values)"
    for name in ("calibration", "sensitivity Δ", "noise multiplier σ/Δ", "σ per coordinate", honest):
        table.add_column(name, justify="left" if name == "calibration" else "right")
    for row in run_guarantees.calibrations:
        figures = (
            f"{row.sensitivity:.4g}",
            f"{row.noise_multiplier:.4f}",
            f"{row.sigma:.4g}",
            f"{row.epsilon_client:.4g}",
        )
        table.add_row(row.name, *figures)
    console.print(table)
