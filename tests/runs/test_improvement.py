"""The best round and its model; runs that end because the model no longer improves."""

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

from paraaegis.cli.app import app
from paraaegis.config import make_config
from paraaegis.engines.local import LocalTransport
from paraaegis.errors import ConfigError, RunError
from paraaegis.launch import run
from paraaegis.privacy.ledger import read_ledger
from paraaegis.protocol.records import RoundRecord
from paraaegis.report.collect import collect
from paraaegis.report.findings import results
from paraaegis.runs.assemble import make_parameters
from paraaegis.runs.check import check_early, resolve
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.improvement import Improvement
from paraaegis.runs.run import carry_out, federate
from toy import ToyLearner, configure, federation_of

PEAK = [0.25, 0.5, 0.75, 0.5, 0.5, 0.75, 0.5, 0.5, 0.5, 0.5]  # accuracy after each round: best after the third


class Measured(ToyLearner):
    """Its accuracy after each round is given."""

    def __init__(self, accuracies):
        steps = np.diff([0.0, *accuracies])
        super().__init__([np.array([step, 0, 0, 0], np.float32) for step in steps])


def learners(accuracies=PEAK, kind=Measured):
    return {f"client-{index}": kind(accuracies) for index in range(2)}


def config(*settings):
    several = ("federation.clients=2", "federation.rounds=10", "privacy.attempts=20")  # the model often stays the same
    return configure(*several, "protect.method=fedavg", *settings)


def followed(values, *settings, metric="accuracy"):
    improvement = Improvement(config(*settings))
    for number, value in enumerate(values, 1):
        improvement.take(RoundRecord(round=number, ratio=0, elected=0, metrics={metric: value}))
        if improvement.stopped:
            return improvement, number
    return improvement, None


@pytest.mark.parametrize(("metric", "values", "best", "stops"), [
    ("accuracy", [0.5, 0.6, 0.6, 0.6], 2, 4),  # equal is no improvement
    ("loss", [0.5, 0.4, 0.6, 0.6], 2, 4),
    ("rmse", [0.5, 0.4, 0.3, 0.2], 4, None),
    ("auc", [0.9, 0.4, 0.95, 0.2], 3, None),
    ("auc", [math.nan, math.nan, math.nan, 0.9], 4, None),  # nothing to improve on yet
    ("auc", [0.9, math.nan, math.nan, 0.99], 1, 3),
])  # fmt: skip
def test_the_direction_follows_the_metric_and_nan_is_no_improvement(metric, values, best, stops):
    improvement, stopped = followed(values, "train.stop_after=2", metric=metric)
    assert (improvement.best_round, stopped) == (best, stops)


def test_rounds_that_report_nothing_do_not_count():
    improvement = Improvement(config("train.stop_after=1"))
    improvement.take(RoundRecord(round=1, ratio=0, elected=0, metrics={"accuracy": 0.5}))
    for number in (2, 3, 4):
        improvement.take(RoundRecord(round=number, ratio=0, elected=0))
    assert (improvement.best_round, improvement.stopped) == (1, "")


def test_a_metric_that_is_not_reported_is_replaced_by_the_one_shown(caplog):
    improvement = Improvement(config("train.stop_metric=acc"))
    for number, value in enumerate([0.5, 0.9, 0.6], 1):
        improvement.take(RoundRecord(round=number, ratio=0, elected=0, metrics={"loss": 0.5, "f1": value}))
    assert improvement.best_round == 2
    assert caplog.messages == [
        "train.stop_metric is 'acc', which was not reported; using f1 instead (reported: loss, f1)"
    ]


def test_a_misspelt_metric_loses_no_released_noise(tmp_path):
    secret = ("protect.method=dp-fedavg", "privacy.clip=1", "privacy.epsilon=50", "privacy.calibration=tight")
    result = federate(
        config(*secret, "privacy.noise=secret", "federation.rounds=4", "train.stop_metric=acc"), learners(), tmp_path
    )
    noised = [release.round for release in read_ledger(result.model.parent / "ledger.jsonl") if release.sigma]
    assert (result.rounds, result.stopped, sorted(noised)) == (4, "", [1, 1, 2, 2, 3, 3, 4, 4])


def test_built_in_models_have_two_metrics():
    with pytest.raises(ConfigError, match="must be accuracy or loss, which the built-in models report, got 'auc'"):
        check_early(make_config({}, ["train.stop_metric=auc"]))


@pytest.mark.parametrize("method", ["fedavg", "paraaegis-feedback"])
def test_a_run_ends_after_the_round_that_was_under_way(method, tmp_path):
    settings = ("train.stop_after=2", f"protect.method={method}", "protect.ratio=1.0")
    result = federate(config(*settings), learners(), tmp_path)
    assert (result.rounds, result.best_round) == (6, 3)  # rounds 4 and 5 were no better, which showed during round 6
    assert "2 rounds without improvement (train.stop_after); the best was accuracy 75.0 %" in result.stopped
    assert "10 rounds were planned" in result.stopped
    assert result.metrics["accuracy"] == 0.75  # of the last model, which every client has
    assert [record.round for record in RunFolder(tmp_path).read_records()] == [1, 2, 3, 4, 5, 6]
    assert max(release.round for release in read_ledger(tmp_path / "ledger.jsonl")) == 6


def test_the_rounds_are_those_of_a_run_that_was_planned_so_short(tmp_path):
    stopped = federate(config("train.stop_after=2"), learners(), tmp_path / "stopped")
    short = federate(config("federation.rounds=6"), learners(), tmp_path / "short")
    assert (short.stopped, short.metrics) == ("", stopped.metrics)
    np.testing.assert_array_equal(np.load(short.model), np.load(stopped.model))


def test_a_run_that_is_at_its_last_round_anyway_has_not_stopped_early(tmp_path):
    result = federate(config("train.stop_after=2", "federation.rounds=6"), learners(), tmp_path)
    assert (result.rounds, result.stopped) == (6, "")


def test_a_run_that_stopped_is_over_when_it_is_started_again(tmp_path):
    first = federate(config("train.stop_after=2"), learners(), tmp_path)
    assert federate(config("train.stop_after=2"), learners(), tmp_path) == first


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("killed", [2, 5, 6])
def test_an_interrupted_run_stops_where_a_whole_one_does_and_keeps_the_best_model(every, killed, tmp_path):
    class KilledError(Exception):
        pass

    def kill(record):
        if record.round == killed:
            raise KilledError

    settings = ("train.stop_after=2", f"engine.checkpoint={every}")
    whole = federate(config(*settings), learners(), tmp_path / "whole")
    with pytest.raises(KilledError):
        federate(config(*settings), learners(), tmp_path / "run", on_record=kill)
    result = federate(config(*settings), learners(), tmp_path / "run")
    assert (result.rounds, result.best_round, result.stopped) == (whole.rounds, whole.best_round, whole.stopped)
    np.testing.assert_array_equal(np.load(result.best_model), np.load(whole.best_model))
    np.testing.assert_array_equal(np.load(result.model), np.load(whole.model))


def test_a_run_killed_between_its_last_checkpoint_and_its_result_is_not_continued(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("paraaegis.runs.run.complete", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            federate(config("train.stop_after=2"), learners(), tmp_path)
    result = federate(config("train.stop_after=2"), learners(), tmp_path)
    assert (result.rounds, result.best_round) == (6, 3)


def test_the_best_and_the_last_model_are_kept(tmp_path):
    result = federate(config(), learners(), tmp_path)
    assert (result.rounds, result.best_round, result.stopped) == (10, 3, "")
    assert (np.load(result.best_model)[0], np.load(result.model)[0]) == (0.75, 0.5)
    assert json.loads((tmp_path / "result.json").read_text())["best_round"] == 3


def test_the_best_model_is_that_of_the_chosen_metric(tmp_path):
    class Losing(Measured):
        def evaluate(self, weights):
            return {"accuracy": float(weights[0]), "loss": float(weights[0])}

    result = federate(config("train.stop_metric=loss"), learners(kind=Losing), tmp_path)
    assert (result.best_round, np.load(result.best_model)[0]) == (1, 0.25)


def test_without_metrics_there_is_no_best_model_and_a_warning(tmp_path, caplog):
    class Silent(Measured):
        def evaluate(self, weights):
            return {}

    result = federate(config("train.stop_after=1"), learners(kind=Silent), tmp_path)
    assert (result.rounds, result.best_round) == (10, 0)
    assert caplog.text.count("round 1 reported no metrics; train.stop_after has no effect") == 1
    with pytest.raises(RunError, match="holds no best"):
        result.best_model.exists()


def test_the_built_in_models_are_kept_for_plain_torch(tmp_path):
    import torch

    settings = ["model.name=mlp", "federation.clients=2", "federation.rounds=2", "train.epochs=1", "train.lr=0.01"]
    result = run(make_config({}, [*settings, "protect.method=fedavg"]), tmp_path)
    best, last = (torch.load(path, weights_only=True) for path in (result.best_model, result.model))
    assert (result.best_model.name, result.best_round) == ("best.pt", 2)
    assert all(torch.equal(best[name], last[name]) for name in last)


def test_starting_over_removes_the_best_model(tmp_path):
    federate(config(), learners(), tmp_path)
    with pytest.raises(ZeroDivisionError):
        federate(config(), learners(), tmp_path, fresh=True, on_record=lambda _: 1 / 0)
    assert not list(tmp_path.glob("best*"))


def test_noise_that_was_planned_for_all_rounds_stays_unspent(tmp_path):
    noised = make_config({}, ["federation.clients=2", "federation.rounds=10", "protect.method=dp-fedavg",
                              "privacy.calibration=tight", "train.stop_after=2"])  # fmt: skip
    flat = {f"client-{index}": ToyLearner([np.zeros(4, np.float32)]) for index in range(2)}
    for learner in flat.values():
        learner.evaluate = lambda _: {"accuracy": 0.5}
    assert federate(noised, flat, tmp_path).rounds == 4
    releases = [one for one in read_ledger(tmp_path / "ledger.jsonl") if one.sigma]
    assert sorted({one.round for one in releases}) == [1, 2, 3, 4]
    shown = CliRunner().invoke(app, ["privacy", str(tmp_path)]).stdout
    assert "40.0% of the budget" in shown


class Remote(LocalTransport):
    """As if the clients were at nodes: they keep their own states, and the server has no model."""

    remote, weights = True, None

    def checkpoint(self):
        return {}


def test_a_server_without_a_model_stops_on_the_metrics_that_clients_report(tmp_path):
    planned, folder, transports = resolve(config("train.stop_after=2"), [10]), RunFolder(tmp_path), []

    @contextmanager
    def connect(state, stored, over):
        with Remote(federation_of(planned, learners()).clients) as transport:
            transports.append(transport)
            yield make_parameters(planned, planned.names, 4, planned.names[:1], state.run), transport

    with folder.claimed(planned, fresh=False):
        folder.ledger.touch()
        result = carry_out(planned, folder, connect)
    assert (result.rounds, result.best_round) == (6, 3)
    assert "2 rounds without improvement" in result.stopped
    assert {state.applied for state in transports[0].states.values()} == {6}  # all were told the last aggregate
    assert not list(tmp_path.glob("*.npz"))
    with pytest.raises(RunError, match="holds no best model"):
        result.best_model.exists()


def test_reports_show_how_many_of_the_planned_rounds_were_done(tmp_path):
    federate(config("train.stop_after=2"), learners(), tmp_path / "early")
    federate(config(), learners(), tmp_path / "whole")
    runs, problems = collect([tmp_path])
    headings, rows = results(runs)
    cells = {row[0]: row[headings.index("rounds")] for row in rows}
    assert cells == {"early (stopped)": "6 of 10", "whole": "10"}
    assert problems == []
