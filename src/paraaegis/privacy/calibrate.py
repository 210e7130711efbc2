"""From a budget (ε, δ) to the noise that meets it, and back.

There are two readings, which are never mixed. `remark` is the paper's formula, whose sensitivity 2θ/min|D_i| does not
bound what one client can change. `tight` is exact accounting of Gaussian noise with sensitivity θ, which is what
"client-level" usually means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from paraaegis.errors import PrivacyError


def delta_of(epsilon: float, mu: float) -> float:
    """δ(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), exact for composed Gaussians of total μ."""
    from scipy.special import log_ndtr, ndtr  # loading scipy takes half a second, which a node would pay per message

    return float(ndtr(-epsilon / mu + mu / 2) - np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2)))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that (ε, δ) allows."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise PrivacyError(f"a budget needs ε > 0 and δ in (0, 1), got ε = {epsilon}, δ = {delta}")
    from scipy.optimize import brentq

    try:
        return float(brentq(lambda mu: delta_of(epsilon, mu) - delta, 1e-9, 1e4, xtol=1e-12, rtol=1e-12))
    except (ValueError, OverflowError) as error:
        raise PrivacyError(f"Gaussian noise cannot be calibrated to ε = {epsilon}, δ = {delta}") from error


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε that holds with δ for composed Gaussians of total μ; in the thousands if μ is large."""
    if mu <= 0:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1  # zero-concentrated DP's bound, never exceeded
    if delta_of(0.0, mu) <= delta:
        return 0.0
    from scipy.optimize import brentq

    return float(brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 0.0, high, xtol=1e-9, rtol=1e-12))


def rdp_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """Noise multiplier (σ over sensitivity) by Rényi accounting, for comparison: looser than exact accounting."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, calibrate_dp_mechanism
    from dp_accounting.rdp import RdpAccountant

    return float(
        calibrate_dp_mechanism(
            RdpAccountant, lambda sigma: SelfComposedDpEvent(GaussianDpEvent(sigma), rounds), epsilon, delta
        )
    )


def composed_mu(sensitivity: float, sigmas: Iterable[float]) -> float:
    """μ = Δ·√(Σ 1/σ_t²) of Gaussian releases with the same sensitivity."""
    return sensitivity * math.sqrt(sum(sigma**-2 for sigma in sigmas))


def tight_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """Noise multiplier (σ over sensitivity) in each of `rounds` equal releases: √T / μ*."""
    return math.sqrt(rounds) / mu_of(epsilon, delta)


def remark_multiplier(epsilon: float, delta: float, rounds: int, fraction: float = 1.0) -> float:
    """Noise multiplier (σ over sensitivity) by the paper's Remark: √(2·q·T·ln(1/δ)) / ε."""
    return math.sqrt(2 * fraction * rounds * math.log(1 / delta)) / epsilon


def remark_limit(epsilon: float, delta: float, fraction: float = 1.0) -> float:
    """The largest Σ (Δ/σ)² that the Remark's formula allows for a budget: ε² / (2·q·ln(1/δ))."""
    return epsilon**2 / (2 * fraction * math.log(1 / delta))


def remark_epsilon(spent: float, delta: float, fraction: float = 1.0) -> float:
    """The ε that the Remark's formula gives for Σ (Δ/σ)² = `spent`."""
    return math.sqrt(2 * fraction * math.log(1 / delta) * spent)


def varying(sigma: float, rounds: int, ratio: float) -> tuple[float, ...]:
    """Noise σ_t = σ_0·ρ^t that composes to the same as `rounds` equal releases of `sigma`: Σ 1/σ_t² = T/σ²."""
    with np.errstate(over="ignore"):
        growth = np.power(ratio, -2.0 * np.arange(rounds, dtype=np.float64))
        first = sigma * math.sqrt(float(growth.sum()) / rounds)
    return tuple(float(first * ratio**number) for number in range(rounds))


def remark_sensitivity(clip: float, min_samples: int) -> float:
    """The Remark's Δ = 2θ / min|D_i|.

    The paper prints the minimum over clients of 2θ/|D_i|, which would belong to the largest data set; its own final
    bound and the work it builds on use the smallest.
    """
    if min_samples < 1:
        raise PrivacyError(
            "the paper's noise needs federation.min_samples of at least 1, the smallest client's number of samples, "
            f"got {min_samples}"
        )
    return 2 * clip / min_samples
