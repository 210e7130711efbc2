"""From the errors of a distinguisher to a lower bound on what a mechanism really leaks.

A mechanism of Gaussian differential privacy μ lets no test do better than α + β errors with Φ⁻¹(1 − α) − Φ⁻¹(β) = μ.
So a test whose two error rates are both surely small proves a μ. A bound on μ sees a halved σ that the plain (ε, δ)
inequality misses at the same number of trials.
"""

from __future__ import annotations

from scipy.special import ndtri
from scipy.stats import beta

CONFIDENCE = 0.999


def mu_bound(false_alarms: int, misses: int, trials: int) -> float:
    """The μ that these errors, in `trials` games of each world, prove with CONFIDENCE; 0 if they prove none.

    Both rates are taken at the upper ends of their exact (Clopper–Pearson) intervals, which share the doubt.
    """
    alpha, missed = (rate_bound(errors, trials, (1 + CONFIDENCE) / 2) for errors in (false_alarms, misses))
    return max(0.0, float(ndtri(1 - alpha) - ndtri(missed)))


def rate_bound(errors: int, trials: int, confidence: float) -> float:
    """The largest error rate that is compatible with so many errors in so many trials."""
    return 1.0 if errors >= trials else float(beta.ppf(confidence, errors + 1, trials - errors))
