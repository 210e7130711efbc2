"""Runs with record-level DP: every training is charged before it starts, and what is spent stops it."""

from collections import Counter

import numpy as np
import pytest

from paraaegis.config import make_config
from paraaegis.errors import ConfigError, LearnerError, PrivacyError, RunError
from paraaegis.learn.attach import TorchAttachment
from paraaegis.privacy.ledger import TRAINING, read_ledger
from paraaegis.privacy.records import record_privacy
from paraaegis.runs.run import federate
from paraaegis.types import Learner
from record_learners import SAMPLES, learners
from toy_runs import StoppedError, stop_at

RECORD = ("privacy.unit=record", "privacy.calibration=tight", "privacy.epsilon=8", "privacy.delta=1e-3",
          "privacy.sample_rate=0.25", "train.epochs=1", "federation.clients=3", "federation.rounds=3")  # fmt: skip
METHODS = {
    "fedavg": (),
    "dp-fedavg": (),
    "serial": (),
    "ckks-fedavg": (),
    "rlwe-fedavg": ("protect.method=ckks-fedavg", "protect.cipher=rlwe"),
    "paraaegis-static": ("protect.ratio=0.3",),
    "paraaegis-dynamic": ("protect.ratio=0.3",),
    "paraaegis-feedback": ("protect.ratio=0.3",),
    "static-rlwe": ("protect.method=paraaegis-static", "protect.cipher=rlwe", "protect.ratio=0.3"),
    "feedback-rlwe": ("protect.method=paraaegis-feedback", "protect.cipher=rlwe", "protect.ratio=0.3"),
}


def config_of(method="fedavg", *settings):
    named = (
        ()
        if any(one.startswith("protect.method") for one in METHODS.get(method, ()))
        else (f"protect.method={method}",)
    )
    return make_config({}, [*RECORD, *named, *METHODS.get(method, ()), *settings])


def run(out, method="fedavg", *settings, given=None, **options):
    return federate(config_of(method, *settings), given or learners(), out, **options)


def model_of(out):
    import torch

    return np.concatenate([one.numpy().ravel() for one in torch.load(out / "model.pt", weights_only=True).values()])


def lines_of(out):
    return read_ledger(out / "ledger.jsonl")


@pytest.mark.parametrize("method", METHODS)
def test_each_client_is_charged_a_training_per_round_before_anything_of_it_is_released(method, tmp_path):
    run(tmp_path, method)
    training = record_privacy(config_of(method))
    lines = [line for line in lines_of(tmp_path) if line.round and line.what not in ("metrics", "samples")]
    for client in ("client-0", "client-1", "client-2"):
        of = [line for line in lines if line.client == client]
        for number in (1, 2, 3):
            whats = [line.what for line in of if line.round == number]
            assert whats[0] == TRAINING
            assert len(whats) > whats.count(TRAINING) == 1
        trained = [line for line in of if line.what == TRAINING]
        assert all((one.sample_rate, one.steps, one.clip) == (0.25, 4, 1.0) for one in trained)
        assert all(one.sigma == pytest.approx(training.multiplier) for one in trained)
        assert not any(line.sigma for line in of if line.what != TRAINING)  # updates carry no noise of their own


@pytest.mark.parametrize("method", ["serial", "ckks-fedavg", "rlwe-fedavg", "paraaegis-feedback"])
def test_everything_encrypted_is_the_sum_of_the_same_trainings(method, tmp_path):
    run(tmp_path / "plain", "fedavg")
    settings = ("protect.ratio=1.0",) if method == "paraaegis-feedback" else ()
    run(tmp_path / "other", method, *settings)
    np.testing.assert_allclose(model_of(tmp_path / "other"), model_of(tmp_path / "plain"), atol=1e-4)


@pytest.mark.parametrize("method", ["paraaegis-static", "paraaegis-dynamic", "static-rlwe"])
def test_without_noise_on_updates_both_parts_add_up_to_plain_averaging(method, tmp_path):
    run(tmp_path / "plain", "fedavg")
    run(tmp_path / "other", method)
    np.testing.assert_allclose(model_of(tmp_path / "other"), model_of(tmp_path / "plain"), atol=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "paraaegis-feedback"])
def test_a_resumed_run_ends_with_the_same_bits_and_is_charged_once(method, tmp_path):
    run(tmp_path / "whole", method)
    with pytest.raises(StoppedError):
        run(tmp_path / "cut", method, on_record=stop_at(2))
    run(tmp_path / "cut", method)
    assert np.array_equal(model_of(tmp_path / "cut"), model_of(tmp_path / "whole"))
    charged = Counter((one.client, one.round) for one in lines_of(tmp_path / "cut") if one.what == TRAINING)
    assert set(charged.values()) == {1}
    assert len(charged) == 9


def test_a_round_trained_again_with_secret_noise_is_charged_again_and_the_spent_budget_ends_the_run(
    tmp_path, monkeypatch
):
    train = TorchAttachment.train

    def interrupted(learner, weights, number):
        return train(learner, weights, number) if number == 1 else 1 / 0

    monkeypatch.setattr(TorchAttachment, "train", interrupted)
    with pytest.raises(LearnerError):
        run(tmp_path, "fedavg", "privacy.noise=secret", "engine.workers=1")
    monkeypatch.setattr(TorchAttachment, "train", train)
    result = run(tmp_path, "fedavg", "privacy.noise=secret")
    trained = [
        (one.round, one.attempt) for one in lines_of(tmp_path) if (one.what, one.client) == (TRAINING, "client-0")
    ]
    assert trained == [(1, 0), (2, 0), (2, 1)]  # what the budget of three rounds pays
    assert result.rounds == 2
    assert (
        "client-0 is spent: its trainings and noised updates make ε = 7.998 of 8 at δ = 0.001 (unit: record)"
        in result.stopped
    )
    assert "training in round 3 would make it" in result.stopped


def test_two_runs_with_secret_noise_differ_and_two_seeded_ones_do_not(tmp_path):
    given = learners()  # the same learners, as in a notebook
    for name, noise in (("a", "seeded"), ("b", "secret"), ("c", "secret"), ("d", "seeded")):
        run(tmp_path / name, "fedavg", f"privacy.noise={noise}", given=given)
    a, b, c, d = (model_of(tmp_path / name) for name in "abcd")
    assert np.array_equal(a, d)
    assert not np.allclose(a, b, atol=1e-3)
    assert not np.allclose(b, c, atol=1e-3)


def test_participations_pay_for_that_many_rounds_only(tmp_path):
    few = ("federation.rounds=6", "federation.fraction=0.34", "privacy.participations=2", "federation.quorum=1")
    run(tmp_path, "fedavg", *few)
    trained = Counter(one.client for one in lines_of(tmp_path) if one.what == TRAINING)
    assert max(trained.values()) <= 2
    assert sum(trained.values()) == 6
    whole = record_privacy(config_of("fedavg", "federation.rounds=6"))
    assert record_privacy(config_of("fedavg", *few)).multiplier < whole.multiplier


def test_a_fraction_of_the_clients_trains_and_only_they_are_charged(tmp_path):
    run(tmp_path, "fedavg", "federation.fraction=0.67")
    trained = Counter(one.round for one in lines_of(tmp_path) if one.what == TRAINING)
    assert trained == {1: 2, 2: 2, 3: 2}


def test_without_noise_trainings_are_in_the_ledger_and_cost_nothing(tmp_path):
    run(tmp_path, "fedavg", "privacy.epsilon=inf")
    trained = [one for one in lines_of(tmp_path) if one.what == TRAINING]
    assert len(trained) == 9
    assert not any(one.sigma for one in trained)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_built_in_models_train_privately_with_either_optimiser(optimizer, tmp_path):
    from paraaegis.runs.run import run_here

    config = config_of("fedavg", f"train.optimizer={optimizer}", "train.lr=0.01", "model.name=cnn-gn",
                       "privacy.delta=1e-4", "federation.rounds=1", "privacy.sample_rate=0.5")  # fmt: skip
    run_here(config, tmp_path, False, lambda _: None)
    assert [one.steps for one in lines_of(tmp_path) if one.what == TRAINING] == [2, 2, 2]


# What is refused


def test_more_rounds_would_need_more_noise_from_the_first_on(tmp_path):
    run(tmp_path, "fedavg")
    with pytest.raises(RunError, match="the noise of its training is calibrated to 3 rounds, and 4 rounds would need"):
        run(tmp_path, "fedavg", "federation.rounds=4", extend=True)


class Own(Learner):
    samples = SAMPLES

    def initial(self):
        return np.zeros(3, dtype=np.float32)

    def train(self, weights, number):
        return weights, {}


def test_an_object_that_trains_itself_is_refused(tmp_path):
    given = {f"client-{i}": Own() for i in range(3)}
    with pytest.raises(ConfigError, match=r"the learner of client-0 \(a Own\) has its own; use torch_learner"):
        run(tmp_path, "fedavg", given=given)


def test_a_learner_whose_dp_sgd_is_not_the_accounted_one_does_not_train(tmp_path):
    class Changing(Own):
        record_privacy = record_privacy(config_of())

        def train(self, weights, number):
            self.record_privacy = None
            return weights, {}

    given = {f"client-{i}": Changing() for i in range(3)}
    with pytest.raises(PrivacyError, match="would not train with the DP-SGD that was accounted for"):
        run(tmp_path, "fedavg", given=given)


def test_a_learner_of_another_unit_is_set_back(tmp_path):
    given = learners()
    run(tmp_path / "private", "fedavg", given=given)
    federate(make_config({}, ["federation.clients=3", "federation.rounds=1", "protect.method=fedavg"]), given,
             tmp_path / "plain")  # fmt: skip
    assert all(one.record_privacy is None for one in given.values())


def test_a_delta_too_large_for_the_largest_client_is_refused(tmp_path):
    with pytest.raises(PrivacyError, match=r"at most 1/\(10 · 60\) = 0\.00166 for client-0"):
        run(tmp_path, "fedavg", "privacy.delta=0.01")


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        (["privacy.calibration=paper"], 'needs privacy.calibration = "tight"'),
        (["privacy.sigma=0.5"], "privacy.sigma = 0.5 is noise on updates"),
        (["privacy.inside_clip=1.0"], "privacy.inside_clip = 1 is noise on updates"),
        (["privacy.unit=client", "privacy.sample_rate=0.2"], "privacy.sample_rate = 0.2 has no effect with"),
        (["privacy.unit=client", "privacy.sample_rate=0.25", "privacy.group=2"], "privacy.group = 2 has no effect"),
        (["protect.method=lwe-secagg"], "updates carry none; use method ckks-fedavg"),
        (["protect.method=varying-dp"], "updates carry none; use method fedavg"),
        (["privacy.epsilon=51"], "at most 50 .* got 51"),
    ],
)  # fmt: skip
def test_settings_that_contradict_record_level_dp_are_refused_with_the_remedy(settings, refusal, tmp_path):
    with pytest.raises(ConfigError, match=refusal):
        run(tmp_path, "fedavg", *settings)
