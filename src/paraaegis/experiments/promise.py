"""The guarantee of a configuration before anything is run, under both readings of the noise."""

from __future__ import annotations

import math

import msgspec

from paraaegis.config import Config
from paraaegis.experiments.wire import make_keys
from paraaegis.methods import Materials, find_method, noise
from paraaegis.privacy.calibrate import rdp_multiplier, remark_multiplier, remark_sensitivity, tight_multiplier
from paraaegis.privacy.guarantee import Guarantee, guarantees, sensitivity


class Calibration(msgspec.Struct, kw_only=True):
    """One way to choose the noise: σ = multiplier · sensitivity in every round."""

    name: str
    sensitivity: float
    noise_multiplier: float
    sigma: float


class Promise(msgspec.Struct, kw_only=True):
    """What a configuration asks for and gets. `sigma` and `noise_multiplier` are the first round's."""

    method: str
    calibration: str
    unit: str
    noise_multiplier: float
    sigma: float
    seeded: bool
    guarantees: list[Guarantee]
    calibrations: list[Calibration]


def promise(config: Config) -> Promise:
    """Work out the promises of a configuration whose `min_samples` is known (for calibration `paper`)."""
    privacy, method = config.privacy, find_method(config.protect.method)
    half = method.client(Materials(config, make_keys(config)))
    gaussian = noise(config) if method.noisy else None
    sigmas = gaussian.sigmas if gaussian else (0.0,)
    change = sensitivity(privacy.clip, privacy.unit)
    used = change
    if sigmas[0] and privacy.calibration == "paper":
        used = remark_sensitivity(privacy.clip, config.federation.min_samples)
    return Promise(
        method=config.protect.method,
        calibration=privacy.calibration,
        unit=privacy.unit,
        noise_multiplier=sigmas[0] / used,
        sigma=sigmas[0],
        seeded=privacy.noise == "seeded",
        guarantees=guarantees(half.exposures, half.votes, privacy.clip, sigmas, privacy.delta, privacy.unit),
        calibrations=[] if math.isinf(privacy.epsilon) else calibrations(config),
    )


def calibrations(config: Config) -> list[Calibration]:
    """The paper's noise, exact accounting for either unit, and Rényi accounting, for the same (ε, δ) and rounds."""
    privacy, federation = config.privacy, config.federation
    budget = (privacy.epsilon, privacy.delta, federation.rounds)
    tight, rdp = tight_multiplier(*budget), rdp_multiplier(*budget)
    remark = remark_multiplier(*budget, federation.fraction)
    found = [
        ("tight, client", sensitivity(privacy.clip, "client"), tight),
        ("tight, client-replace", sensitivity(privacy.clip, "client-replace"), tight),
        ("Rényi, client", sensitivity(privacy.clip, "client"), rdp),
    ]
    if federation.min_samples:
        found.insert(0, ("paper", remark_sensitivity(privacy.clip, federation.min_samples), remark))
    return [
        Calibration(name=name, sensitivity=change, noise_multiplier=multiplier, sigma=change * multiplier)
        for name, change, multiplier in found
    ]
