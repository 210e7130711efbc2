"""Audit results as plain text."""

from __future__ import annotations

from paraaegis.audit.games import Audit, Finding, stands
from paraaegis.audit.noise import NoiseCheck, PartCheck
from paraaegis.audit.records import RecordFinding
from paraaegis.plural import plural

NOTE = (
    "An audit uses its own budgets: each game has a claim of μ = 1 over all its rounds, enough for an attack\n"
    "to detect something. Bounds proved by an attack hold with 99.9% confidence. Where clients vote, claims\n"
    "are conditional on the partition; nothing is claimed against those who see a part in the clear."
)
BETWEEN = {
    "starts": "runs that were started separately",
    "clients": "clients",
    "rounds": "rounds",
    "attempts": "attempts at a round",
    "parts": "parts of an update",
    "chunks": "chunks of an update",
}


def report(audit: Audit) -> str:
    """Everything one method's audit measured, with contradicted claims in capitals."""
    noise, games = audit.noise, f"{audit.trials:,} games with the canary and {audit.trials:,} without"
    rounds, uploads = plural(audit.rounds, "round"), plural(noise.uploads, "upload")
    lines = [
        f"{audit.name}: {games}, {rounds} each; {uploads} of {noise.values:,} values",
        *(finding_text(one, stands(one), one.mu_bound > 0) for one in audit.findings),
        *(line for part in noise.parts for line in _part(part)),
        _repeats(noise),
        "Nothing contradicts a claim." if audit.passed else "A CLAIM IS CONTRADICTED.",
    ]
    return "\n  ".join(lines)


def finding_text(one: Finding | RecordFinding, stood: bool, detected: bool) -> str:
    """What games proved against one adversary, and whether the claim stood and the attack detected anything."""
    claimed, proved = f"claimed ε {one.epsilon_claimed:.1f}", f"proves at least {one.epsilon_bound:.1f}"
    text = f"{one.adversary}, unit {one.unit}, δ = {one.delta:g}: {claimed}; the strongest attack we ran {proved}"
    if stood:
        return text
    return text + (": CLAIM REFUTED" if detected else ": THE ATTACK DETECTED NOTHING, so the games prove nothing")


def _part(part: PartCheck) -> tuple[str, str]:
    clipping = f"{part.part}: norm after clipping is {part.norm:.3f} times the clip (at most {part.norm_limit:.3f})"
    noise = f"{part.part}: noise is {part.deviation:.4f} times the claimed σ (at least {part.deviation_limit:.4f})"
    return (
        clipping + (": NOT CLIPPED AS CLAIMED" if part.norm > part.norm_limit else ""),
        noise + (": LESS NOISE THAN CLAIMED" if part.deviation < part.deviation_limit else ""),
    )


def _repeats(noise: NoiseCheck) -> str:
    limit = noise.correlation_limit
    largest = max(noise.correlations.values())
    text = f"largest correlation between two chunks of noise: {largest:.1f} standard deviations (at most {limit:g})"
    repeated = [BETWEEN[kind] for kind, size in noise.correlations.items() if size > limit]
    return f"{text}: NOISE REPEATS between {', '.join(repeated)}" if repeated else text
