"""From a distinguisher's errors to a lower bound on what a mechanism really leaks.

Under μ-Gaussian differential privacy, every test has error rates α and β with Φ⁻¹(1 − α) − Φ⁻¹(β) ≤ μ. So a test whose
error rates are both confidently small proves a lower bound on μ. This bound detects a halved σ, which the plain (ε, δ)
inequality misses at the same number of trials.
"""

from __future__ import annotations

from scipy.special import ndtri
from scipy.stats import beta

CONFIDENCE = 0.999


def mu_bound(false_alarms: int, misses: int, trials: int) -> float:
    """The lower bound on μ, at CONFIDENCE, from these errors in `trials` games of each world; 0 if they prove none.

    Both rates are the upper ends of exact (Clopper–Pearson) intervals, which split the failure probability equally.
    """
    alpha, missed = (rate_bound(errors, trials, (1 + CONFIDENCE) / 2) for errors in (false_alarms, misses))
    return max(0.0, float(ndtri(1 - alpha) - ndtri(missed)))


def rate_bound(errors: int, trials: int, confidence: float) -> float:
    """The largest error rate consistent, at this confidence, with `errors` in `trials`."""
    return 1.0 if errors >= trials else float(beta.ppf(confidence, errors + 1, trials - errors))
