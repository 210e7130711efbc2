"""The findings from runs: a one-sentence summary, the table of results, and the spread over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import msgspec

from paraaegis.config import Privacy, Protect
from paraaegis.methods import REFERENCE
from paraaegis.report.collect import Run
from paraaegis.report.paper import paper_accuracy, paper_overhead


def headline(runs: Sequence[Run]) -> str:
    """Summarise these runs in one sentence."""
    known = [run for run in runs if run.accuracy == run.accuracy]
    if not known:
        return (
            "The run reports no accuracy." if len(runs) == 1 else f"None of the {len(runs)} runs reports an accuracy."
        )
    plains = [run for run in known if run.result.method == REFERENCE]
    plain = next((run for run in plains if run.config.data.split == "iid"), plains[0] if plains else None)
    others = [run for run in known if run.result.method != REFERENCE and (plain is None or alike(run, plain))]
    if len(known) == 1 or not others:
        return f"{known[0].label} reached {known[0].accuracy:.1f} % in {known[0].result.seconds:.0f} s."
    best = max(others, key=lambda run: (round(run.accuracy, 1), -run.result.bytes_up))
    if plain is None:
        return f"{_named(best)} reached the highest accuracy: {best.accuracy:.1f} % in {best.result.seconds:.0f} s."
    close = [run for run in others if run.accuracy > plain.accuracy - 1]
    best = min(close, key=lambda run: run.result.bytes_up) if close else best
    how = "has the smallest upload within one point of" if close else "comes closest to"
    text = f"Of the protected methods, {_named(best)} {how} plain averaging: {best.accuracy:.1f} %"
    points, upload = plain.accuracy - best.accuracy, best.result.bytes_up / plain.result.bytes_up
    near = "equal to" if abs(points) < 0.05 else f"{abs(points):.1f} points {'below' if points > 0 else 'above'}"
    time = overhead([plain], best)
    end = "" if time is None else f" and {time:.2f} times its time"
    return f"{text}, {near} it, with {100 * upload:.0f} % of its upload{end}."


def _named(run: Run) -> str:
    """Its label, with its method unless the label contains it."""
    return run.label if run.result.method in run.label else f"{run.result.method} ({run.label})"


def alike(run: Run, other: Run) -> bool:
    """Whether two runs differ only in how updates are protected."""
    one, two = (msgspec.structs.replace(each.config, protect=Protect(), privacy=Privacy()) for each in (run, other))
    return one.digest() == two.digest()


def results(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The table of results: its headings and rows, with the paper's figures for runs that reproduce its cells."""
    columns: dict[str, Callable[[Run], str]] = {
        "run": lambda run: run.label + (" (stopped)" if run.result.stopped else " (running)" if run.running else ""),
        "accuracy, %": lambda run: _or_empty(None if run.accuracy != run.accuracy else run.accuracy),
        "seconds": lambda run: f"{run.result.seconds:.1f}" + (" †" if run.shared else ""),
        "MB up per client": lambda run: f"{run.megabytes('up'):.2f}",
        "MB down per client": lambda run: f"{run.megabytes('down'):.2f}",
        "rounds": lambda run: str(run.result.rounds),
    }
    if any(paper_accuracy(run) for run in runs):
        columns["accuracy, paper"] = lambda run: _or_empty(paper_accuracy(run))
    if any(paper_overhead(run) for run in runs):
        columns["time over FedAvg"] = lambda run: _or_empty(overhead(runs, run))
        columns["time over FedAvg, paper"] = lambda run: _or_empty(paper_overhead(run))
    return list(columns), [[column(run) for column in columns.values()] for run in runs]


def overhead(runs: Sequence[Run], run: Run) -> float | None:
    """Its time over that of plain averaging on the same data and machine; None if the machine also had other work."""
    plains = [other for other in runs if other.result.method == REFERENCE and alike(other, run)]
    plain = next((other for other in plains if other.result.machine == run.result.machine), None)
    return None if plain is None or run.shared else run.result.seconds / plain.result.seconds


def _or_empty(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def notes(runs: Sequence[Run]) -> str:
    """The notes below the table of results."""
    shared = " † the machine also had other work: not comparable." if any(run.shared for run in runs) else ""
    return f"MB: per round.{shared}"


def over_seeds(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Accuracy over runs that differ only in the seed: headings, and a row for each group of two or more."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        if run.accuracy == run.accuracy:
            grouped.setdefault(_without_seed(run), []).append(run)
    several = [group for group in grouped.values() if len({run.config.seed for run in group}) > 1]
    splits = {run.split for group in several for run in group}
    rows = []
    for group in several:
        by_seed = {run.config.seed: run.accuracy for run in group}  # the same run may be in two comparisons
        name = f"{group[0].row}, {group[0].split}" if len(splits) > 1 else group[0].row
        figures = fmean(by_seed.values()), stdev(by_seed.values()), min(by_seed.values()), max(by_seed.values())
        rows.append([name, str(len(by_seed)), *(f"{figure:.2f}" for figure in figures)])
    return ["over seeds", "seeds", "accuracy, %: mean", "deviation", "lowest", "highest"], rows


def _without_seed(run: Run) -> str:
    """A digest of its configuration without the seed, and without min_samples, which depends on the seed."""
    federation = msgspec.structs.replace(run.config.federation, min_samples=0)
    return msgspec.structs.replace(run.config, seed=0, federation=federation).digest()
