"""A finished run gets more rounds, and ends as if they had been planned from the start."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from paraaegis.cli.app import app
from paraaegis.config import make_config
from paraaegis.errors import ConfigError, RunError
from paraaegis.launch import run
from paraaegis.privacy.ledger import read_ledger
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from toy import ToyLearner, configure

UPDATES = np.random.default_rng(0).normal(0, 0.1, (4, 6, 40)).astype(np.float32)
NOISED = ("protect.method=dp-fedavg", "privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=tight")


class Learner(ToyLearner):
    """Its training depends on a state that must survive: how often it has trained."""

    def train(self, weights, number):
        trained, _ = super().train(weights, number)
        return trained + np.float32(0.01 * self.trained) * weights, {}


def learners(kind=Learner):
    return {f"client-{index}": kind(updates) for index, updates in enumerate(UPDATES)}


def config(rounds, *settings):
    return configure("federation.clients=4", f"federation.rounds={rounds}", "protect.method=fedavg", *settings)


def extended(out, *settings, first=2, then=4):
    federate(config(first, *settings), learners(), out)
    return federate(config(then, *settings), learners(), out, extend=True)


def facts(folder):
    """Everything that a run's rounds leave, except seconds, bytes and what is drawn afresh."""
    lines = [(one.round, one.metrics, one.clients, one.agreement) for one in folder.read_records()]
    releases = [(one.round, one.client, one.what, one.sigma, one.model) for one in read_ledger(folder.ledger)]
    return lines, sorted(releases)


@pytest.mark.parametrize("settings", [
    (),
    ("protect.method=ckks-fedavg",),
    ("protect.method=paraaegis-feedback", "protect.ratio=0.2", "protect.decay=0.9"),
    ("protect.method=paraaegis-feedback", "federation.fraction=0.5"),
    ("protect.method=paraaegis-static", "engine.checkpoint=3"),
    (*NOISED, "privacy.sigma=10"),
], ids=["fedavg", "ckks", "feedback", "sampled", "static", "fixed noise"])  # fmt: skip
@pytest.mark.parametrize(("first", "then"), [(2, 4), (1, 6)])
def test_an_extended_run_equals_one_that_was_so_long_from_the_start(settings, first, then, tmp_path):
    result = extended(tmp_path / "extended", *settings, first=first, then=then)
    whole = federate(config(then, *settings), learners(), tmp_path / "whole")
    assert (result.rounds, result.metrics, result.best_round) == (then, whole.metrics, whole.best_round)
    np.testing.assert_array_equal(np.load(result.model), np.load(whole.model))
    np.testing.assert_array_equal(np.load(result.best_model), np.load(whole.best_model))
    assert facts(RunFolder(tmp_path / "extended")) == facts(RunFolder(tmp_path / "whole"))
    assert RunFolder(tmp_path / "extended").read_config() == RunFolder(tmp_path / "whole").read_config()


def test_a_built_in_model_is_trained_further_with_its_optimiser(tmp_path):
    import torch

    def short(rounds):
        settings = ["model.name=mlp", "federation.clients=2", "train.epochs=1", "protect.method=fedavg"]
        return make_config({}, [*settings, "engine.device=cpu", f"federation.rounds={rounds}"])

    run(short(1), tmp_path / "extended")
    result, whole = run(short(3), tmp_path / "extended", extend=True), run(short(3), tmp_path / "whole")
    ours, theirs = (torch.load(one.model, weights_only=True) for one in (result, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_can_be_extended_again_and_leaves_no_keys(tmp_path):
    extended(tmp_path)
    assert federate(config(6), learners(), tmp_path, extend=True).rounds == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "best.npy", "config.toml", "last.npz", "learners.json", "ledger.jsonl", "metrics.jsonl", "model.npy",
        "result.json", "rounds.jsonl",
    ]  # fmt: skip
    assert (tmp_path / "last.npz").stat().st_mode & 0o777 == 0o600


def test_each_round_is_measured_once_in_the_clients_log(tmp_path):
    extended(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sorted((line["client"], line["round"]) for line in lines) == [
        (f"client-{client}", number) for client in range(4) for number in (1, 2, 3, 4)
    ]


def test_without_being_asked_to_a_run_is_not_extended(tmp_path):
    federate(config(2), learners(), tmp_path)
    with pytest.raises(RunError, match=r"federation.rounds was 2, now 4; .*--extend to add rounds to this run"):
        federate(config(4), learners(), tmp_path)
    assert federate(config(2), learners(), tmp_path).rounds == 2


def test_extending_to_what_it_has_changes_nothing(tmp_path):
    first = federate(config(2), learners(), tmp_path)
    assert federate(config(2), learners(), tmp_path, extend=True) == first


@pytest.mark.parametrize("killed", ["before the first new round", "after it"])
def test_a_run_killed_while_it_is_extended_goes_on(killed, tmp_path):
    federate(config(2), learners(), tmp_path / "run")
    number = {"before the first new round": 2, "after it": 3}[killed]

    class KilledError(Exception):
        pass

    def kill(record):
        if record.round == number:
            raise KilledError

    with pytest.raises(KilledError):
        federate(config(4), learners(), tmp_path / "run", on_record=kill, extend=True)
    result = federate(config(4), learners(), tmp_path / "run", extend=True)
    whole = federate(config(4), learners(), tmp_path / "whole")
    np.testing.assert_array_equal(np.load(result.model), np.load(whole.model))


@pytest.mark.parametrize("settings", [(), ("train.stop_after=1",)])
@pytest.mark.parametrize("again", [True, False])
def test_a_run_killed_after_its_result_was_removed_is_extended_by_the_same_command(
    settings, again, tmp_path, monkeypatch
):
    first = federate(config(3, *settings), learners(), tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("paraaegis.runs.extend.write_config", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            federate(config(6), learners(), tmp_path / "run", extend=True)
    if again:
        result, whole = (federate(config(6), learners(), tmp_path / to, extend=to == "run") for to in ("run", "whole"))
        np.testing.assert_array_equal(np.load(result.model), np.load(whole.model))
        assert facts(RunFolder(tmp_path / "run")) == facts(RunFolder(tmp_path / "whole"))
    else:
        assert federate(config(3, *settings), learners(), tmp_path / "run").rounds == first.rounds


@pytest.mark.parametrize("step", ["pathlib.Path.unlink", "paraaegis.runs.extend.write_config"])
def test_a_kill_in_the_middle_of_extending_leaves_a_run_that_can_be_extended(step, tmp_path, monkeypatch):
    federate(config(2), learners(), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(step, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            federate(config(4), learners(), tmp_path, extend=True)
    assert federate(config(2), learners(), tmp_path).rounds == 2
    assert federate(config(4), learners(), tmp_path, extend=True).rounds == 4


# Runs that stopped early


class Flat(ToyLearner):
    def evaluate(self, weights):
        return {"accuracy": 0.5}


STOPPING = ("train.stop_after=2",)


def test_a_run_that_stopped_early_is_taken_to_its_end(tmp_path):
    assert federate(config(6, *STOPPING), learners(Flat), tmp_path / "run").rounds == 4
    result = federate(config(6), learners(Flat), tmp_path / "run", extend=True)
    whole = federate(config(6), learners(Flat), tmp_path / "whole")
    assert (result.rounds, result.stopped) == (6, "")
    np.testing.assert_array_equal(np.load(result.model), np.load(whole.model))


def test_a_run_that_would_stop_at_once_is_refused(tmp_path):
    federate(config(6, *STOPPING), learners(Flat), tmp_path)
    with pytest.raises(RunError, match=r"would end at once: 2 rounds .*\. Set train.stop_after to a larger number"):
        federate(config(8, *STOPPING), learners(Flat), tmp_path, extend=True)


def test_noise_that_was_left_over_may_be_spent_up_to_the_planned_rounds(tmp_path):
    federate(config(6, *STOPPING, *NOISED), learners(Flat), tmp_path / "run")
    result = federate(config(6, *NOISED), learners(Flat), tmp_path / "run", extend=True)
    whole = federate(config(6, *NOISED), learners(Flat), tmp_path / "whole")
    np.testing.assert_array_equal(np.load(result.model), np.load(whole.model))


# What is refused


@pytest.mark.parametrize(("settings", "why"), [
    (NOISED, r"the noise of dp-fedavg is calibrated to 2 rounds .*privacy.sigma could be extended"),
    (("train.schedule=cosine",), "train.schedule = 'cosine' spreads over federation.rounds"),
    (("privacy.noise=secret",), "keys .* were erased when it ended"),
])  # fmt: skip
def test_what_would_not_be_the_same_run_is_refused_and_keeps_no_checkpoint(settings, why, tmp_path):
    first = federate(config(2, *settings), learners(), tmp_path)
    assert not (tmp_path / "last.npz").exists()
    with pytest.raises(RunError, match=why):
        federate(config(4, *settings), learners(), tmp_path, extend=True)
    assert federate(config(2, *settings), learners(), tmp_path) == first


def test_nothing_but_the_number_of_rounds_may_change(tmp_path):
    federate(config(2), learners(), tmp_path)
    with pytest.raises(
        RunError, match=r"a different configuration: train\.lr was 0\.05, now 0\.1; choose another --out"
    ):
        federate(config(4, "train.lr=0.1"), learners(), tmp_path, extend=True)


def test_fewer_rounds_are_refused(tmp_path):
    federate(config(4), learners(), tmp_path)
    with pytest.raises(RunError, match=r"has 4 rounds; to extend it, federation.rounds must be larger, got 3"):
        federate(config(3), learners(), tmp_path, extend=True)


def test_an_unfinished_run_must_end_first(tmp_path):
    with pytest.raises(ZeroDivisionError):
        federate(config(3), learners(), tmp_path, on_record=lambda _: 1 / 0)
    with pytest.raises(RunError, match=r"holds an unfinished run; let it end first, with federation.rounds = 3"):
        federate(config(4), learners(), tmp_path, extend=True)


def test_a_folder_without_a_run_or_without_its_last_checkpoint_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no run to extend"):
        federate(config(4), learners(), tmp_path / "run", extend=True)
    federate(config(2), learners(), tmp_path / "run")
    (tmp_path / "run" / "last.npz").unlink()
    with pytest.raises(RunError, match=r"last\.npz is gone"):
        federate(config(4), learners(), tmp_path / "run", extend=True)


def test_starting_over_and_extending_exclude_each_other(tmp_path):
    with pytest.raises(ConfigError, match="choose one of them"):
        federate(config(4), learners(), tmp_path, fresh=True, extend=True)


def test_a_run_across_a_network_is_not_extended(tmp_path):
    with pytest.raises(ConfigError, match="across a network, clients delete their states and keys"):
        run(make_config({}, ["engine.name=flower"]), tmp_path, extend=True)


# The command


def test_the_command_extends_a_run(tmp_path):
    def call(*arguments):
        small = ["model.name=mlp", "federation.clients=2", "train.epochs=1", "protect.method=fedavg"]
        words = [word for setting in small for word in ("--set", setting)]
        return CliRunner().invoke(app, ["run", *words, *arguments])

    def rounds(number):
        return ["--set", f"federation.rounds={number}", "--out", str(tmp_path / "run")]

    assert call(*rounds(1)).exit_code == 0
    done = call(*rounds(2), "--extend")
    assert (done.exit_code, "round 2/2" in done.stdout) == (0, True)
    assert isinstance(call("--extend").exception, ConfigError)
