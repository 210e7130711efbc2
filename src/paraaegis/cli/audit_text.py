"""An audit in plain sentences."""

from __future__ import annotations

from paraaegis.audit.games import Audit, Finding, stands
from paraaegis.audit.noise import NoiseCheck, PartCheck
from paraaegis.plural import plural

NOTE = (
    "An audit has budgets of its own: games at a claim of μ = 1 over all their rounds, so that an attack can\n"
    "show something. What an attack proves holds with 99.9% confidence. Where clients vote, claims are\n"
    "given the partition; nothing is claimed against those who read a part in clear."
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
    """All that one method's audit found; what contradicts a claim in capitals."""
    noise, games = audit.noise, f"{audit.trials:,} games with the canary and {audit.trials:,} without"
    rounds, uploads = plural(audit.rounds, "round"), plural(noise.uploads, "upload")
    lines = [
        f"{audit.name}: {games}, {rounds} each; {uploads} of {noise.values:,} values",
        *map(_finding, audit.findings),
        *(line for part in noise.parts for line in _part(part)),
        _repeats(noise),
        "Nothing contradicts a claim." if audit.passed else "A CLAIM IS CONTRADICTED.",
    ]
    return "\n  ".join(lines)


def _finding(one: Finding) -> str:
    claimed, proved = f"claimed ε {one.epsilon_claimed:.1f}", f"proves at least {one.epsilon_bound:.1f}"
    text = f"{one.adversary}, unit {one.unit}, δ = {one.delta:g}: {claimed}; the strongest attack we ran {proved}"
    if stands(one):
        return text
    return text + (": CLAIM REFUTED" if one.mu_bound else ": THE ATTACK SAW NOTHING, so the games show nothing")


def _part(part: PartCheck) -> tuple[str, str]:
    clipping = f"{part.part}: clipping leaves a norm of {part.norm:.3f} times the clip (allowed: {part.norm_limit:.3f})"
    noise = (
        f"{part.part}: noise of {part.deviation:.4f} times the claimed deviation (least: {part.deviation_limit:.4f})"
    )
    return (
        clipping + (": NOT CLIPPED AS CLAIMED" if part.norm > part.norm_limit else ""),
        noise + (": LESS NOISE THAN CLAIMED" if part.deviation < part.deviation_limit else ""),
    )


def _repeats(noise: NoiseCheck) -> str:
    limit = noise.correlation_limit
    largest = max(noise.correlations.values())
    text = f"largest correlation of two chunks of noise: {largest:.1f} standard deviations (allowed: {limit:g})"
    repeated = [BETWEEN[kind] for kind, size in noise.correlations.items() if size > limit]
    return f"{text}: NOISE REPEATS between {', '.join(repeated)}" if repeated else text
