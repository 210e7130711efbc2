"""The findings from runs: a one-sentence summary, the table of results, and the spread over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import msgspec

from paraaegis.config import Privacy, Protect
from paraaegis.methods import REFERENCE
from paraaegis.metrics import ACCURACY, better, heading, is_percent, lower_is_better, named, text
from paraaegis.report.collect import Run
from paraaegis.report.paper import paper_accuracy, paper_overhead
from paraaegis.runs.result import by_site


def headline(runs: Sequence[Run]) -> str:
    """Summarise these runs in one sentence."""
    metric, known = runs[0].metric, [run for run in runs if run.value == run.value]
    if not known:
        return f"The run reports no {metric}." if len(runs) == 1 else f"None of the {len(runs)} runs reports {metric}."
    plains = [run for run in known if run.result.method == REFERENCE]
    plain = next((run for run in plains if run.config.data.split == "iid"), plains[0] if plains else None)
    comparable = [run for run in known if (alike(run, plain) if plain else run.subject == known[0].subject)]
    others = [run for run in comparable if run.result.method != REFERENCE]
    if len(known) == 1 or not others:
        return f"{known[0].label} reached {named(metric, known[0].value)} in {known[0].result.seconds:.0f} s."
    best = max(others, key=_standing)
    if plain is None:
        most, reached = "lowest" if lower_is_better(metric) else "highest", text(metric, best.value)
        return f"{_named(best)} reached the {most} {metric}: {reached} in {best.result.seconds:.0f} s."
    return _against(plain, best, others)


def _standing(run: Run) -> tuple[float, int]:
    """What orders runs: the metric as it is shown, then the upload."""
    value = -run.value if lower_is_better(run.metric) else run.value
    return round(value, 1 if is_percent(run.metric) else 4), -run.result.bytes_up


def _against(plain: Run, best: Run, others: Sequence[Run]) -> str:
    """The protected run with the smallest upload close to plain averaging, or the one that comes closest to it."""
    metric = plain.metric
    margin, near = (1.0, "one point") if is_percent(metric) else (abs(plain.value) / 100, "1 %")
    worst = plain.value + margin if lower_is_better(metric) else plain.value - margin
    close = [run for run in others if better(metric, run.value, worst)]
    best = min(close, key=lambda run: run.result.bytes_up) if close else best
    how = f"has the smallest upload within {near} of" if close else "comes closest to"
    upload, time = best.result.bytes_up / plain.result.bytes_up, overhead([plain], best)
    end = "" if time is None else f" and {time:.2f} times its time"
    return (
        f"Of the protected methods, {_named(best)} {how} plain averaging: {named(metric, best.value)}, "
        f"{_gap(plain, best)} it, with {100 * upload:.0f} % of its upload{end}."
    )


def _gap(plain: Run, best: Run) -> str:
    """Where one value lies relative to another, such as `0.3 points below`."""
    apart, percent = abs(plain.value - best.value), is_percent(plain.metric)
    if apart < (0.05 if percent else 5e-5 * max(abs(plain.value), 1e-9)):
        return "equal to"
    size = f"{apart:.1f} points" if percent else f"{apart:.2g}"
    return f"{size} {'below' if plain.value > best.value else 'above'}"


def _named(run: Run) -> str:
    """Its label, with its method unless the label contains it."""
    return run.label if run.result.method in run.label else f"{run.result.method} ({run.label})"


def alike(run: Run, other: Run) -> bool:
    """Whether two runs differ only in how updates are protected."""
    one, two = (msgspec.structs.replace(each.config, protect=Protect(), privacy=Privacy()) for each in (run, other))
    return one.digest() == two.digest() and _learners(run) == _learners(other)


def _learners(run: Run) -> tuple[str, int, dict[str, int]] | None:
    """The first model and the clients' samples, with learners of one's own, which a configuration does not describe."""
    origin = run.origin
    return None if origin is None else (origin.model, origin.length, origin.samples)


def results(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The table of results: its headings and rows, with the paper's figures for runs that reproduce its cells."""
    metric = runs[0].metric
    columns: dict[str, Callable[[Run], str]] = {
        "run": lambda run: run.label + (" (stopped)" if run.result.stopped else " (running)" if run.running else ""),
        heading(metric): lambda run: "" if run.value != run.value else _cell(metric, run.value),
        "seconds": lambda run: f"{run.result.seconds:.1f}" + (" †" if run.shared else ""),
        "MB up per client": lambda run: f"{run.megabytes('up'):.2f}",
        "MB down per client": lambda run: f"{run.megabytes('down'):.2f}",
        "rounds": _rounds,
    }
    if metric == ACCURACY and any(paper_accuracy(run) for run in runs):
        columns["accuracy, paper"] = lambda run: _or_empty(paper_accuracy(run))
    if any(paper_overhead(run) for run in runs):
        columns["time over FedAvg"] = lambda run: _or_empty(overhead(runs, run))
        columns["time over FedAvg, paper"] = lambda run: _or_empty(paper_overhead(run))
    return list(columns), [[column(run) for column in columns.values()] for run in runs]


def _rounds(run: Run) -> str:
    done, planned = run.result.rounds, run.config.federation.rounds
    return f"{done} of {planned}" if run.result.stopped else str(done)


def overhead(runs: Sequence[Run], run: Run) -> float | None:
    """Its time over that of plain averaging on the same data and machine; None if the machine also had other work."""
    plains = [other for other in runs if other.result.method == REFERENCE and alike(other, run)]
    plain = next((other for other in plains if other.result.machine == run.result.machine), None)
    return None if plain is None or run.shared else run.result.seconds / plain.result.seconds


def _cell(metric: str, value: float) -> str:
    """A value in a column whose heading has the unit."""
    return text(metric, value, digits=2).removesuffix(" %")


def _or_empty(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def notes(runs: Sequence[Run]) -> str:
    """The notes below the table of results."""
    shared = " † the machine also had other work: not comparable." if any(run.shared for run in runs) else ""
    return f"MB: per round.{shared}"


def over_seeds(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The metric over runs that differ only in the seed: headings, and a row for each group of two or more."""
    metric = runs[0].metric
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.value == run.value:
            grouped.setdefault((run.subject, _without_seed(run)), []).append(run)
    several = [group for group in grouped.values() if len({run.config.seed for run in group}) > 1]
    splits = {run.split for group in several for run in group}
    rows = []
    for group in several:
        by_seed = {run.config.seed: run.value for run in group}  # the same run may be in two comparisons
        name = f"{group[0].row}, {group[0].split}" if len(splits) > 1 else group[0].row
        figures = fmean(by_seed.values()), stdev(by_seed.values()), min(by_seed.values()), max(by_seed.values())
        rows.append([name, str(len(by_seed)), *(_cell(metric, figure) for figure in figures)])
    return ["over seeds", "seeds", f"{heading(metric)}: mean", "deviation", "lowest", "highest"], rows


def sites(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """The metric of each final model at each client: headings, and rows for runs that several clients reported on."""
    names, _ = by_site(runs[0].result, runs[0].metric)
    return ["run", *names], [[run.label, *row] for run in runs for row in by_site(run.result, run.metric)[1]]


def _without_seed(run: Run) -> str:
    """A digest of its configuration without the seed, and without min_samples, which depends on the seed."""
    federation = msgspec.structs.replace(run.config.federation, min_samples=0)
    return msgspec.structs.replace(run.config, seed=0, federation=federation).digest()
