"""Results of a record-level audit as plain text."""

from __future__ import annotations

from paraaegis.audit.record_checks import Measurement, as_claimed
from paraaegis.audit.records import RecordAudit, stands
from paraaegis.cli.audit_text import finding_text
from paraaegis.plural import plural

NOTE = (
    "A record-level audit uses its own budget: the ε that μ = 1 has at the configured δ, and one epoch per round.\n"
    "What an attack proves holds with 99.9% confidence. Votes, encryption and sums come after the training: they\n"
    "are post-processing, which cannot reveal more about a record."
)
WHAT = {
    "steps": ("steps in a round: {}", ".0f"),
    "rate": ("a step draws a record with probability {}", ".4g"),
    "turns": ("how often a record is drawn varies {} times as much as with independent draws", ".2f"),
    "batches": ("how many records a step draws varies {} times as much as with independent draws", ".2f"),
    "norm": ("norm of one record's gradient after clipping is {} times the clip", ".3f"),
    "deviation": ("noise is {} times the claimed σ", ".4f"),
    "unexplained": ("part of an update beyond its noised steps: {}", ".1g"),
}
WRONG = {
    "steps": "MORE STEPS THAN CLAIMED",
    "rate": "NOT SAMPLED AS CLAIMED",
    "turns": "NOT POISSON SAMPLING",
    "batches": "NOT POISSON SAMPLING",
    "norm": "NOT CLIPPED AS CLAIMED",
    "deviation": "LESS NOISE THAN CLAIMED",
    "unexplained": "SOMETHING ELSE LEAVES",
}
BETWEEN = {
    "starts": "runs that were started separately",
    "rounds": "rounds",
    "steps": "steps",
    "parameters": "parameters",
}


def record_report(audit: RecordAudit) -> str:
    """Everything one configuration's audit measured, with contradicted claims in capitals."""
    training = audit.training
    rounds, steps = plural(audit.rounds, "round"), plural(audit.steps, "step")
    trainings = f"{plural(training.trainings, 'training')} on {training.people:,} canaries"
    lines = [
        f"{audit.name}: {audit.people:,} canaries, each in or out by a fair coin, {rounds} of {steps}; {trainings}",
        *(finding_text(one, stands(one), one.multiplier_bound is not None) for one in audit.findings),
        *map(_measurement, training.measurements),
        *_repeats("draws", "THE SAME RECORDS ARE DRAWN", training.repeats, training.correlation_limit),
        *_repeats("noise", "NOISE REPEATS", training.correlations, training.correlation_limit),
        "Nothing contradicts a claim." if audit.passed else "A CLAIM IS CONTRADICTED.",
    ]
    return "\n  ".join(lines)


def _measurement(one: Measurement) -> str:
    what, shape = WHAT[one.what]
    text = f"{what.format(format(one.value, shape))} ({_range(one, shape)})"
    return text if as_claimed(one) else f"{text}: {WRONG[one.what]}"


def _range(one: Measurement, shape: str) -> str:
    least, most = ("" if limit is None else format(limit, shape) for limit in (one.least, one.most))
    if not least:
        return f"at most {most}"
    return f"{least} to {most}" if most else f"at least {least}"


def _repeats(what: str, wrong: str, sizes: dict[str, float], limit: float) -> list[str]:
    if not sizes:
        return []
    text = f"largest correlation of {what}: {max(sizes.values()):.1f} standard deviations (at most {limit:g})"
    repeated = [BETWEEN[kind] for kind, size in sizes.items() if size > limit]
    return [f"{text}: {wrong} in different {', '.join(repeated)}" if repeated else text]
