"""The audit's bound stays below every claim, and rises above it when the noise or the clipping is spoilt."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from paraaegis.cli import main
from paraaegis.crypto import lwe
from paraaegis.errors import ConfigError
from paraaegis.experiments.audit import audit, everything
from paraaegis.privacy.audit import mu_bound, rate_bound
from paraaegis.privacy.gaussian import Gaussian, Noise
from toy import configure

ALL = everything()
# One composition of each kind: dynamic is static with another ratio.
BOTH = "paraaegis-static, noise inside"
KINDS = ["dp-fedavg", "varying-dp", "lwe-secagg", "serial", BOTH]


def test_every_noised_method_is_audited():
    assert {name for name in ALL if "inside" not in name} == {
        "dp-fedavg", "varying-dp", "lwe-secagg", "serial", "paraaegis-static", "paraaegis-dynamic"}  # fmt: skip
    assert {name for name in ALL if "inside" in name} == {
        f"{name}, noise inside"
        for name in ("ckks-fedavg", "paraaegis-static", "paraaegis-dynamic", "paraaegis-feedback")
    }


@pytest.mark.parametrize("name", [*KINDS, pytest.param("ckks-fedavg, noise inside", marks=pytest.mark.slow)])
def test_the_bound_is_below_the_claim_and_not_far_below(name):
    found = audit(ALL[name])
    assert found.passed
    for one in found.findings:
        assert one.mu_bound < one.mu_claimed
        assert one.mu_bound > 0.5 * one.mu_claimed  # the game sees what is there to see
        assert one.epsilon_bound < one.epsilon_claimed


def test_colluders_of_masked_sums_leave_the_others_noise():
    config = configure("privacy.epsilon=1.0", "privacy.clip=1.0", "protect.method=lwe-secagg", "privacy.colluders=2",
                       "privacy.calibration=tight")  # fmt: skip
    findings = audit(config).findings
    assert findings
    assert all(0.5 * one.mu_claimed < one.mu_bound < one.mu_claimed for one in findings)


@pytest.mark.parametrize("unit", ["client", "client-replace"])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_both_units_and_calibrations_are_held_to_the_client_level_figure(unit, calibration):
    config = configure("privacy.epsilon=1.0", "privacy.clip=2.0", "protect.method=dp-fedavg", f"privacy.unit={unit}",
                       f"privacy.calibration={calibration}", "federation.min_samples=947")  # fmt: skip
    found = audit(config, trials=2000)
    assert found.passed
    assert all(one.mu_claimed == pytest.approx(1.0, abs=1e-6) and one.unit == unit for one in found.findings)


def unclipped(monkeypatch):
    monkeypatch.setattr(Gaussian, "shrink", lambda self, values: 1.0)


def silent(monkeypatch):
    real = Gaussian.perturb
    monkeypatch.setattr(Gaussian, "perturb", lambda self, v, n, rng, share=1.0: real(self, v, n, rng, 0.0))


def halved(monkeypatch):
    real = Gaussian.perturb
    monkeypatch.setattr(Gaussian, "perturb", lambda self, v, n, rng, share=1.0: real(self, v, n, rng, share / 2))


SLOW = [pytest.param(BOTH, fault, marks=pytest.mark.slow) for fault in (silent, unclipped)]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, fault) for name in ("dp-fedavg", "varying-dp") for fault in (silent, halved, unclipped)),
        (BOTH, halved),
        *SLOW,
    ],
)
def test_a_planted_fault_is_caught(name, fault, monkeypatch):
    fault(monkeypatch)
    found = audit(ALL[name])
    assert not found.passed
    assert all(one.mu_bound > one.mu_claimed for one in found.findings)


@pytest.mark.parametrize(
    "factor", [pytest.param(0.0, marks=pytest.mark.slow, id="silent"), pytest.param(0.5, id="halved")]
)
def test_a_fault_in_the_lwe_error_is_caught(factor, monkeypatch):
    real = lwe.error
    monkeypatch.setattr(lwe, "error", lambda rng, std, size: np.rint(factor * real(rng, std, size)).astype(np.int64))
    found = audit(ALL["lwe-secagg"])
    assert len(found.findings) == 2
    assert all(one.mu_bound > one.mu_claimed for one in found.findings)


# The bound itself


def test_a_perfect_distinguisher_proves_as_much_as_the_trials_allow():
    bounds = [mu_bound(0, 0, trials) for trials in (1000, 5000, 50_000)]
    assert bounds == sorted(bounds)
    assert 5 < bounds[1] < 7


def test_guessing_proves_nothing():
    assert mu_bound(2500, 2500, 5000) == 0.0
    assert mu_bound(5000, 0, 5000) == 0.0
    assert mu_bound(0, 5000, 5000) == 0.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_bound_of_ideal_games_is_below_the_truth_in_all_but_one_of_a_thousand(mu):
    rng, trials = np.random.default_rng(7), 5000
    error = float(ndtr(-mu / 2))
    bounds = [mu_bound(rng.binomial(trials, error), rng.binomial(trials, error), trials) for _ in range(2000)]
    assert sum(bound > mu for bound in bounds) <= 6  # a thousandth is 2
    assert np.mean(bounds) > mu - 0.2


def test_the_rate_bound_is_clopper_pearsons():
    assert rate_bound(0, 100, 0.95) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert rate_bound(100, 100, 0.95) == 1.0


# What cannot be audited


@pytest.mark.parametrize("method", ["fedavg", "ckks-fedavg", "paraaegis-feedback"])
def test_a_method_without_noise_has_nothing_to_audit(method):
    with pytest.raises(ConfigError, match="noises nothing"):
        audit(configure("privacy.epsilon=1.0", "privacy.clip=1.0", f"protect.method={method}"))


def test_noise_that_is_switched_off_and_too_few_games_are_refused():
    with pytest.raises(ConfigError, match="no noise to audit"):
        audit(configure("protect.method=dp-fedavg"))
    with pytest.raises(ConfigError, match="at least 1000 games"):
        audit(ALL["dp-fedavg"], trials=999)


def test_the_command_exits_with_1_when_a_claim_is_refuted(monkeypatch, capsys):
    arguments = ["audit", "--set", "protect.method=dp-fedavg", "--set", "privacy.calibration=tight", "--trials", "1000"]
    monkeypatch.setattr("sys.argv", ["paraaegis", *arguments])
    with pytest.raises(SystemExit) as good:
        main()
    assert good.value.code in (0, None)
    assert "stands" in capsys.readouterr().out
    halved(monkeypatch)
    monkeypatch.setattr("sys.argv", ["paraaegis", *arguments, "--json"])
    with pytest.raises(SystemExit) as bad:
        main()
    assert bad.value.code == 1
    assert '"passed": false' in capsys.readouterr().out


# The floating-point attack


def finer(values, grain):
    """Which values are no multiples of `grain`."""
    return np.mod(values, grain) != 0


def test_the_low_bits_of_float_noise_tell_the_input_and_the_grid_takes_them_away():
    """A sum of floats near 1 is a multiple of 2^-53; noise alone near 0 is finer. One output can prove an input."""
    from paraaegis.grid import CHUNK, STEP, grid_of

    def outputs(value, seed):
        values = np.full(CHUNK, value, dtype=np.float32)
        return Gaussian(math.inf, (0.25,)).perturb(values, 1, Noise(np.random.default_rng(seed)))

    place = slice(0, CHUNK)
    absent, present = outputs(0.0, 1)(0, place), outputs(1.0, 2)(0, place)
    near = present[np.abs(present) > 0.5]
    assert not finer(near, 2.0**-53).any()
    assert finer(absent[np.abs(absent) > 0.125], 2.0**-53).mean() > 0.1  # each such output shows that 1 was not sent
    steps = [grid_of(outputs(value, seed), CHUNK) for value, seed in ((0.0, 1), (1.0, 2))]
    shifted = steps[1] - round(1 / STEP)
    low = [np.bincount(one & 255, minlength=256) for one in (steps[0], shifted)]
    statistic = sum(float(((one - CHUNK / 256) ** 2 / (CHUNK / 256)).sum()) for one in low)
    assert statistic < 2 * 255 + 6 * math.sqrt(4 * 255)  # the last eight bits are uniform in both worlds
