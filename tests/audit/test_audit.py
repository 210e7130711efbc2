"""The audit finds nothing against the code as it is, and finds every fault that is planted here."""

import copy
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import ndtr

from paraaegis.audit.games import audit, everything, play_games, stands
from paraaegis.audit.noise import as_claimed, check_noise
from paraaegis.cli import main
from paraaegis.crypto import lwe, streams
from paraaegis.errors import ConfigError
from paraaegis.fixed_point import CHUNK
from paraaegis.privacy import gaussian
from paraaegis.privacy.audit import mu_bound, rate_bound
from paraaegis.privacy.gaussian import Gaussian, Noise
from paraaegis.protocol.mechanisms import EncodedMechanism
from paraaegis.runs import assemble
from paraaegis.seeds import stream
from toy import configure

ALL = everything()
# One composition of each kind: dynamic is static with another ratio.
SHARED, BOTH = "ckks-fedavg, shared noise", "paraaegis-static, shared noise"
KINDS = ["dp-fedavg", "varying-dp", "lwe-secagg", "serial", BOTH]
FEW = 500  # games in each world: where half the noise gives μ = 2 they prove 1.6, six deviations above the claim
GAMES = {BOTH: 800}  # the server sees half of it only, whose μ is 0.7


def test_every_noised_method_is_audited():
    assert {name for name in ALL if "shared noise" not in name} == {
        "dp-fedavg", "varying-dp", "lwe-secagg", "serial", "paraaegis-static", "paraaegis-dynamic"}  # fmt: skip
    assert {name for name in ALL if "shared noise" in name} == {
        f"{name}, shared noise"
        for name in ("ckks-fedavg", "paraaegis-static", "paraaegis-dynamic", "paraaegis-feedback")
    }


# Games


@pytest.mark.parametrize("name", [*KINDS, pytest.param(SHARED, marks=pytest.mark.slow)])
def test_games_prove_something_and_no_more_than_the_claim(name):
    findings = play_games(ALL[name], GAMES.get(name, FEW), 3 if name == "varying-dp" else 2)
    assert findings
    for one in findings:
        assert stands(one)
        assert one.mu_bound > 0.1 * one.mu_claimed
        assert one.epsilon_bound < one.epsilon_claimed


def test_colluders_of_masked_sums_leave_the_others_noise():
    config = configure("privacy.epsilon=1.0", "privacy.clip=1.0", "protect.method=lwe-secagg", "privacy.colluders=2",
                       "privacy.calibration=tight")  # fmt: skip
    findings = play_games(config, FEW)
    assert findings
    assert all(0.1 * one.mu_claimed < one.mu_bound < one.mu_claimed for one in findings)


@pytest.mark.parametrize("unit", ["client", "client-replace"])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_both_units_and_calibrations_are_held_to_the_client_level_figure(unit, calibration):
    config = configure("privacy.epsilon=1.0", "privacy.clip=2.0", "protect.method=dp-fedavg", f"privacy.unit={unit}",
                       f"privacy.calibration={calibration}", "federation.min_samples=947")  # fmt: skip
    findings = play_games(config, 1000)
    assert all(0.4 < one.mu_bound < one.mu_claimed for one in findings)  # the game sees what is there to see
    assert all(one.mu_claimed == pytest.approx(1.0, abs=1e-6) and one.unit == unit for one in findings)
    assert check_noise(config, 2).passed


def unclipped(monkeypatch):
    monkeypatch.setattr(Gaussian, "shrink", lambda self, values: 1.0)


def silent(monkeypatch):
    real = Gaussian.perturb
    monkeypatch.setattr(Gaussian, "perturb", lambda self, v, n, rng, share=1.0: real(self, v, n, rng, 0.0))


def halved(monkeypatch):
    real = Gaussian.perturb
    monkeypatch.setattr(Gaussian, "perturb", lambda self, v, n, rng, share=1.0: real(self, v, n, rng, share / 2))


FAULTS = (silent, halved, unclipped)
SLOW = [pytest.param(BOTH, fault, marks=pytest.mark.slow) for fault in FAULTS]


@pytest.mark.parametrize(
    ("name", "fault"), [*((name, fault) for name in ("dp-fedavg", "varying-dp") for fault in FAULTS), *SLOW]
)
def test_a_fault_in_every_upload_is_proved_by_games(name, fault, monkeypatch):
    fault(monkeypatch)
    findings = play_games(ALL[name], GAMES.get(name, FEW), 3 if name == "varying-dp" else 2)
    assert all(one.mu_bound > one.mu_claimed for one in findings)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["dp-fedavg", BOTH])
def test_a_fault_in_every_upload_is_measured(name, fault, monkeypatch):
    fault(monkeypatch)
    assert not any(as_claimed(part) for part in check_noise(ALL[name], 2).parts)


@pytest.mark.parametrize(
    "factor", [pytest.param(0.0, marks=pytest.mark.slow, id="silent"), pytest.param(0.5, id="halved")]
)
def test_a_fault_in_the_lwe_error_is_proved_by_games_and_measured(factor, monkeypatch):
    real = lwe.error
    monkeypatch.setattr(
        lwe, "error", lambda form, rng, std, size: np.rint(factor * real(form, rng, std, size)).astype(np.int64)
    )
    findings = play_games(ALL["lwe-secagg"], FEW)
    assert len(findings) == 2
    assert all(one.mu_bound > one.mu_claimed for one in findings)
    assert check_noise(ALL["lwe-secagg"], 2).parts[0].deviation == pytest.approx(factor, abs=0.01)


# Fresh noise


@pytest.fixture(scope="module")
def honest():
    """The noise of every kind of method as it is."""
    return {name: check_noise(config, 2) for name, config in ALL.items() if "dynamic" not in name}


def test_noise_clipping_and_independence_are_as_claimed(honest):
    for name, check in honest.items():
        assert check.passed, name
        assert check.values == 3 * CHUNK
        assert check.correlations.keys() - {"parts"} == {"starts", "clients", "rounds", "attempts", "chunks"}
        for part in check.parts:
            assert part.norm == pytest.approx(1.0, abs=0.1)
            assert part.deviation == pytest.approx(1.0, abs=0.01)


def test_only_two_noised_parts_can_share_noise(honest):
    assert [name for name, check in honest.items() if "parts" in check.correlations] == [BOTH]


def test_the_matrix_form_is_measured_on_a_short_update():
    config = configure("privacy.epsilon=1.0", "privacy.clip=1.0", "protect.method=lwe-secagg", "protect.lwe=matrix",
                       "privacy.calibration=tight")  # fmt: skip
    check = check_noise(config, 1)
    assert check.passed
    assert check.values < CHUNK


def repeated(check):
    """Between what noise is repeated, if all else is as claimed."""
    assert check.passed == (max(check.correlations.values()) <= check.correlation_limit)
    return {kind for kind, size in check.correlations.items() if size > check.correlation_limit}


@pytest.mark.parametrize("name", ["dp-fedavg", "lwe-secagg", "paraaegis-feedback, shared noise", BOTH])
def test_a_norm_of_the_first_chunk_alone_is_caught(name, monkeypatch):
    real = gaussian.norm
    monkeypatch.setattr(gaussian, "norm", lambda values: real(values[:CHUNK]))
    check = check_noise(ALL[name], 2)
    assert not check.passed
    for part in check.parts:  # what is inside has 1.5 chunks
        left = math.sqrt(1.5 if part.part == "inside" else 3)
        assert part.norm == pytest.approx(left, abs=0.1)
        assert part.norm > part.norm_limit + 0.1


@pytest.mark.parametrize("name", ["dp-fedavg", SHARED, BOTH])
def test_the_same_noise_in_every_chunk_is_caught(name, monkeypatch):
    def same(rng):
        key = rng.bytes(16)
        return lambda index: streams.keyed(key)

    monkeypatch.setattr(gaussian, "branches", same)
    check = check_noise(ALL[name], 2)
    assert repeated(check) == {"chunks"}
    assert check.correlations["chunks"] > 100


@pytest.mark.parametrize(
    ("name", "key"),
    [*((name, bytes(16)) for name in ("dp-fedavg", "lwe-secagg", BOTH)), ("dp-fedavg", bytes(range(16)))],
    ids=["dp-fedavg", "lwe-secagg", "both", "another key"],
)
def test_a_secret_generator_with_a_known_key_is_caught(name, key, monkeypatch):
    monkeypatch.setattr(streams, "secrets", SimpleNamespace(token_bytes=lambda size: key[:size]))
    assert repeated(check_noise(ALL[name], 2)) == {"starts", "clients", "rounds", "attempts"}


def test_seeded_noise_in_place_of_secret_noise_is_caught(monkeypatch):
    def seeded(config, purpose, client):
        return lambda number, attempt: stream(config.seed, purpose, client, number, attempt)

    monkeypatch.setattr(assemble, "draw", seeded)
    assert repeated(check_noise(ALL["dp-fedavg"], 2)) == {"starts"}


@pytest.mark.parametrize("kind", ["starts", "clients", "rounds", "attempts"])
@pytest.mark.parametrize("name", ["dp-fedavg", "lwe-secagg"])
def test_noise_that_is_repeated_is_caught(name, kind, monkeypatch):
    starts = Counter()

    def draw(config, purpose, client):
        """A source whose key depends on everything except `kind`."""
        starts[client] += 1
        known = {"starts": starts[client], "clients": client}

        def generator(number, attempt):
            key = {**known, "rounds": number, "attempts": attempt, kind: 0}
            return np.random.default_rng(list(key.values()))

        return generator

    monkeypatch.setattr(assemble, "draw", draw)
    assert repeated(check_noise(ALL[name], 2)) == {kind}


def test_one_noise_for_both_parts_of_an_update_is_caught(monkeypatch):
    real = gaussian.branches
    monkeypatch.setattr(gaussian, "branches", lambda rng: real(copy.deepcopy(rng)))
    assert repeated(check_noise(ALL[BOTH], 2)) == {"parts"}


def unscaled(monkeypatch):
    share = lambda self, turn: 1 / math.sqrt(self.quorum - self.colluders) if self.quorum else 1.0  # noqa: E731
    monkeypatch.setattr(EncodedMechanism, "_share", share)


@pytest.mark.parametrize("name", [SHARED, BOTH])
def test_shared_noise_that_light_clients_do_not_scale_up_is_caught(name, monkeypatch):
    unscaled(monkeypatch)
    check = check_noise(ALL[name], 2)
    assert not check.passed
    assert check.parts[0].deviation == pytest.approx(1 / 8, abs=0.01)  # of two clients an eighth as heavy as the first
    assert all(as_claimed(part) for part in check.parts[1:])


@pytest.mark.slow
def test_shared_noise_that_light_clients_do_not_scale_up_is_proved_by_games(monkeypatch):
    unscaled(monkeypatch)
    assert all(one.mu_bound > one.mu_claimed for one in play_games(ALL[SHARED], 2000))


def test_an_audit_fails_where_games_show_nothing_and_the_noise_repeats(monkeypatch):
    monkeypatch.setattr(streams, "secrets", SimpleNamespace(token_bytes=bytes))
    monkeypatch.setattr("paraaegis.audit.games.play_games", lambda *_: [])
    assert not audit(ALL["dp-fedavg"]).passed


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
    with pytest.raises(ConfigError, match="adds no noise in this configuration, so there is nothing to audit"):
        play_games(configure("privacy.epsilon=1.0", "privacy.clip=1.0", f"protect.method={method}"), FEW)


def test_noise_that_is_switched_off_and_too_few_games_are_refused():
    with pytest.raises(ConfigError, match="no noise to audit"):
        audit(configure("protect.method=dp-fedavg"))
    with pytest.raises(ConfigError, match="at least 500 trials"):
        audit(ALL["dp-fedavg"], trials=499)


def command(monkeypatch, *options):
    """The exit status of an audit of dp-fedavg."""
    chosen = ["--set", "protect.method=dp-fedavg", "--set", "privacy.calibration=tight", "--trials", str(FEW)]
    monkeypatch.setattr("sys.argv", ["paraaegis", "audit", *chosen, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_the_command_says_what_is_claimed_and_what_the_attack_proves(monkeypatch, capsys):
    assert command(monkeypatch) == 0
    out = capsys.readouterr().out
    assert "claimed ε 4.4; the strongest attack we ran proves at least" in out
    assert "Nothing contradicts a claim." in out


def test_the_command_exits_with_1_when_a_claim_is_refuted(monkeypatch, capsys):
    halved(monkeypatch)
    assert command(monkeypatch) == 1
    out = capsys.readouterr().out
    assert out.count("CLAIM REFUTED") == 2
    assert "LESS NOISE THAN CLAIMED" in out


def test_the_command_exits_with_1_when_noise_repeats(monkeypatch, capsys):
    monkeypatch.setattr(streams, "secrets", SimpleNamespace(token_bytes=bytes))
    assert command(monkeypatch, "--json") == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert not result["passed"]
    assert not result["noise"]["passed"]
    assert result["noise"]["correlations"]["starts"] > result["noise"]["correlation_limit"] == 7


def test_the_command_refuses_before_it_says_that_it_audits(monkeypatch, capsys):
    assert command(monkeypatch, "--set", "privacy.epsilon=inf") == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0][:29]) == ("", "error: there is no noise to a")


# The floating-point attack


def finer(values, grain):
    """Which values are no multiples of `grain`."""
    return np.mod(values, grain) != 0


def test_the_low_bits_of_float_noise_tell_the_input_and_the_grid_takes_them_away():
    """A sum of floats near 1 is a multiple of 2^-53; noise alone near 0 is finer. One output can prove an input."""
    from paraaegis.fixed_point import CHUNK, STEP, fixed_point_of

    def outputs(value, seed):
        values = np.full(CHUNK, value, dtype=np.float32)
        return Gaussian(math.inf, (0.25,)).perturb(values, 1, Noise(np.random.default_rng(seed)))

    place = slice(0, CHUNK)
    absent, present = outputs(0.0, 1)(0, place), outputs(1.0, 2)(0, place)
    near = present[np.abs(present) > 0.5]
    assert not finer(near, 2.0**-53).any()
    assert finer(absent[np.abs(absent) > 0.125], 2.0**-53).mean() > 0.1  # each such output shows that 1 was not sent
    steps = [fixed_point_of(outputs(value, seed), CHUNK) for value, seed in ((0.0, 1), (1.0, 2))]
    shifted = steps[1] - round(1 / STEP)
    low = [np.bincount(one & 255, minlength=256) for one in (steps[0], shifted)]
    statistic = sum(float(((one - CHUNK / 256) ** 2 / (CHUNK / 256)).sum()) for one in low)
    assert statistic < 2 * 255 + 6 * math.sqrt(4 * 255)  # the last eight bits are uniform in both worlds
