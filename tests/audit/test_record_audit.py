"""The audit of record-level DP finds nothing against the code as it is, and finds every fault that is planted here."""

import math
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from paraaegis.audit import record_setup
from paraaegis.audit.record_checks import as_claimed, check_records
from paraaegis.audit.records import Game, audit, everything, play_games, stands
from paraaegis.crypto.streams import system
from paraaegis.errors import ConfigError
from paraaegis.learn import owned_loop, private
from paraaegis.learn.private import PrivateGradient
from paraaegis.privacy import records
from toy import configure

FEW = 500
BASE = ("privacy.epsilon=1.0", "privacy.clip=1.5", "privacy.unit=record", "privacy.calibration=tight")
CONFIG = configure(*BASE, "privacy.sample_rate=0.1")
RATES = (0.02, 0.1, 0.5, 1.0)


def sampled(rate, *settings):
    return configure(*BASE, f"privacy.sample_rate={rate}", *settings)


def contradicted(config=CONFIG):
    """What the measurements show that is not as claimed."""
    check = check_records(config, 2)
    kinds = {f"draws between {kind}": size for kind, size in check.repeats.items()}
    kinds |= {f"noise between {kind}": size for kind, size in check.correlations.items()}
    wrong = {one.what for one in check.measurements if not as_claimed(one)}
    wrong |= {kind for kind, size in kinds.items() if size > check.correlation_limit}
    assert check.passed == (not wrong)
    return wrong


def refuted(config=CONFIG):
    """Whether games prove more than is claimed."""
    finding = play_games(Game(config), FEW)
    assert stands(finding) == (0 < finding.epsilon_bound < finding.epsilon_claimed)
    return finding.epsilon_bound > finding.epsilon_claimed


# The code as it is


@pytest.mark.parametrize("rate", RATES)
def test_games_prove_something_and_no_more_than_the_claim(rate):
    finding = play_games(Game(sampled(rate)), FEW)
    assert stands(finding)
    assert finding.unit == "record"
    assert 0.2 * finding.epsilon_claimed < finding.epsilon_bound < finding.epsilon_claimed


@pytest.mark.parametrize("rate", RATES)
def test_sampling_clipping_and_noise_are_as_claimed(rate):
    assert not contradicted(sampled(rate))


def test_an_audit_needs_no_seed_and_has_a_claim_of_its_own():
    result = audit(next(iter(everything().values())), trials=FEW)
    assert result.passed
    assert (result.rounds, result.steps, result.people) == (2, 4, 5_000)
    assert result.training.repeats.keys() == {"starts", "rounds"}
    assert result.training.correlations.keys() == {"starts", "rounds", "steps", "parameters"}


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_person_with_several_records_is_audited_as_one(rate):
    finding = play_games(Game(sampled(rate, "privacy.group=2")), FEW)
    assert stands(finding)
    assert finding.unit == "person with up to 2 records"
    assert finding.epsilon_bound > 0.5 * finding.epsilon_claimed


# Clipping


def unclipped(monkeypatch):
    real = PrivateGradient._gather

    def gather(self, *rest):
        privacy, self.privacy = self.privacy, replace(self.privacy, clip=math.inf)
        real(self, *rest)
        self.privacy = privacy

    monkeypatch.setattr(PrivateGradient, "_gather", gather)


def clipped_by_parameter(monkeypatch):
    real = PrivateGradient._gather

    def gather(self, gradients, *rest):
        norms = {name: one.flatten(1).norm(dim=1).clamp(min=self.privacy.clip) for name, one in gradients.items()}
        clipped = {name: one * (self.privacy.clip / norms[name])[:, None, None] for name, one in gradients.items()}
        privacy, self.privacy = self.privacy, replace(self.privacy, clip=math.inf)
        real(self, clipped, *rest)
        self.privacy = privacy

    monkeypatch.setattr(PrivateGradient, "_gather", gather)


@pytest.mark.parametrize("fault", [unclipped, clipped_by_parameter])
def test_gradients_that_are_not_clipped_as_a_whole_are_caught(fault, monkeypatch):
    fault(monkeypatch)
    assert refuted()
    assert contradicted() == {"norm"}


def test_division_by_the_records_drawn_is_caught(monkeypatch):
    real_add, real_finish = PrivateGradient.add, PrivateGradient.finish
    drawn = Counter()

    def add(self, inputs, *rest):
        drawn[self] += len(inputs)
        real_add(self, inputs, *rest)

    def finish(self, noise):
        self._expected = max(1, drawn.pop(self, 0))
        real_finish(self, noise)

    monkeypatch.setattr(PrivateGradient, "add", add)
    monkeypatch.setattr(PrivateGradient, "finish", finish)
    assert "norm" in contradicted()


# Noise


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("factor", [0.5, 0.0])
def test_too_little_noise_is_proved_by_games_and_measured(factor, rate, monkeypatch):
    real = PrivateGradient.draw_noise
    monkeypatch.setattr(PrivateGradient, "draw_noise", lambda self, rng: factor * real(self, rng))
    assert refuted(sampled(rate))
    assert contradicted(sampled(rate)) == {"deviation"}


def test_two_percent_less_noise_is_measured(monkeypatch):
    real = PrivateGradient.draw_noise
    monkeypatch.setattr(PrivateGradient, "draw_noise", lambda self, rng: 0.98 * real(self, rng))
    assert contradicted() == {"deviation"}


def noise_of(monkeypatch, generator):
    """Draw noise from `generator(gradient, step)`, with the step of this training and start."""
    real = PrivateGradient.draw_noise
    steps = Counter()

    def draw_noise(self, _):
        steps[self] += 1
        return real(self, generator(self, steps[self] - 1))

    monkeypatch.setattr(PrivateGradient, "draw_noise", draw_noise)


def test_the_same_noise_in_every_round_is_caught(monkeypatch):
    keys = {}
    noise_of(
        monkeypatch,
        lambda gradient, step: np.random.default_rng([keys.setdefault(gradient, len(keys)), step % 30]),
    )
    assert contradicted() == {"noise between rounds"}


def test_the_same_noise_after_a_restart_is_caught(monkeypatch):
    noise_of(monkeypatch, lambda _, step: np.random.default_rng(step))
    assert contradicted() == {"noise between starts"}


def test_the_same_noise_in_every_step_is_caught(monkeypatch):
    keys = {}
    noise_of(
        monkeypatch,
        lambda gradient, step: np.random.default_rng([keys.setdefault(gradient, len(keys)), step // 30]),
    )
    assert contradicted() == {"noise between steps"}


def test_the_same_noise_in_every_parameter_is_caught(monkeypatch):
    monkeypatch.setattr(
        PrivateGradient,
        "draw_noise",
        lambda self, rng: torch.from_numpy(np.tile(rng.standard_normal(self.length // 2), 2)),
    )
    assert "noise between parameters" in contradicted()


# Sampling


def sample_twice(monkeypatch, what):
    """Sample as if this part of the configuration were twice as large."""

    def poisson(samples, privacy, rng):
        return real(samples, replace(privacy, **{what: 2 * getattr(privacy, what)}), rng)

    real = private.poisson
    monkeypatch.setattr(private, "poisson", poisson)


def test_sampling_twice_as_often_is_caught(monkeypatch):
    sample_twice(monkeypatch, "sample_rate")
    assert "rate" in contradicted()
    assert refuted()


def test_twice_as_many_steps_are_caught(monkeypatch):
    sample_twice(monkeypatch, "steps")
    assert "steps" in contradicted()


@pytest.mark.parametrize("rate", RATES[:-1])
def test_shuffled_batches_passed_off_as_poisson_samples_are_caught(rate, monkeypatch):
    def shuffled(samples, privacy, rng):
        turns = round(privacy.steps * privacy.sample_rate)
        orders = (rng.permutation(samples) for _ in range(turns))
        return (rows for order in orders for rows in np.array_split(order, privacy.steps // turns))

    monkeypatch.setattr(private, "poisson", shuffled)
    assert contradicted(sampled(rate)) == {"turns", "batches"}


@pytest.mark.parametrize("rate", RATES[:-1])
def test_batches_of_a_fixed_size_are_caught(rate, monkeypatch):
    def fixed(samples, privacy, rng):
        size = round(samples * privacy.sample_rate)
        return (rng.choice(samples, size, replace=False) for _ in range(privacy.steps))

    monkeypatch.setattr(private, "poisson", fixed)
    assert contradicted(sampled(rate)) == {"batches"}


def test_one_batch_for_all_steps_is_caught(monkeypatch):
    real = private.poisson
    monkeypatch.setattr(private, "poisson", lambda *rest: [next(real(*rest))] * rest[1].steps)
    assert "turns" in contradicted()


@pytest.mark.parametrize("rate", RATES[:-1])
def test_the_same_batches_in_every_round_are_caught(rate, monkeypatch):
    real, keys = private.poisson, {}
    monkeypatch.setattr(record_setup, "record_draws", lambda _: started(keys))

    def poisson(samples, privacy, rng):
        return real(samples, privacy, np.random.default_rng(rng.start))

    def started(keys):
        start = len(keys)
        keys[start] = True

        def generator(_):
            rng = system()
            return Named(rng.bit_generator, start)

        return lambda _client: generator

    monkeypatch.setattr(private, "poisson", poisson)
    assert contradicted(sampled(rate)) == {"draws between rounds"}


class Named(np.random.Generator):
    """A generator that knows which start it belongs to."""

    def __init__(self, bits, start):
        super().__init__(bits)
        self.start = start


def test_batches_by_the_public_seed_are_caught_after_a_restart(monkeypatch):
    real, round_of = private.poisson, Counter()

    def poisson(samples, privacy, rng):
        round_of["round"] += 1
        return real(samples, privacy, np.random.default_rng(round_of["round"] % 2))

    monkeypatch.setattr(private, "poisson", poisson)
    assert contradicted() == {"draws between starts"}


def test_seeded_draws_in_place_of_secret_ones_are_caught(monkeypatch):
    monkeypatch.setattr(record_setup, "record_draws", lambda _: lambda _client: np.random.default_rng)
    assert contradicted() == {"draws between starts", "noise between starts"}


# Accounting


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_group_that_accounting_forgets_is_caught(rate, monkeypatch):
    real = records._event
    apart = records._apart
    monkeypatch.setattr(records, "_event", lambda step, _: real(step, 1))
    monkeypatch.setattr(records, "_apart", lambda steps, _: apart(steps, 1))
    caches = (records.multiplier_for, records._epsilon)
    for cache in caches:
        cache.cache_clear()
    try:
        assert refuted(sampled(rate, "privacy.group=3"))
    finally:
        for cache in caches:
            cache.cache_clear()


def test_noise_for_single_records_where_persons_have_several_is_caught(monkeypatch):
    config = sampled(1.0, "privacy.group=3")
    real = record_setup.record_privacy

    def forgetful(config):
        return real(msgspec.structs.replace(config, privacy=msgspec.structs.replace(config.privacy, group=1)))

    monkeypatch.setattr(record_setup, "record_privacy", forgetful)
    assert refuted(config)


# What else leaves


def test_a_change_of_the_model_outside_of_the_noised_steps_is_caught(monkeypatch):
    real = owned_loop.OwnedLoop._run_privately

    def leaking(self, gradient, draw, model, number):
        metrics = real(self, gradient, draw, model, number)
        with torch.no_grad():
            next(model.parameters())[0, 0] += 1
        return metrics

    monkeypatch.setattr(owned_loop.OwnedLoop, "_run_privately", leaking)
    assert contradicted() == {"unexplained"}


def test_training_without_dp_is_caught(monkeypatch):
    monkeypatch.setattr(owned_loop.OwnedLoop, "protect_records", lambda *_: None)
    assert {"norm", "turns"} <= contradicted()


# What cannot be audited


def test_noise_that_is_switched_off_and_too_few_games_are_refused():
    with pytest.raises(ConfigError, match="no noise to audit"):
        audit(configure(*BASE[1:]))
    with pytest.raises(ConfigError, match="at least 500 trials"):
        audit(CONFIG, trials=499)
    with pytest.raises(ConfigError, match='must be "record" to audit training, got'):
        audit(configure("privacy.epsilon=1.0", "privacy.clip=1.0"))
