"""Learners of one's own in a run: their names, metrics and models are checked."""

import numpy as np
import pytest

from paraaegis.config import make_config
from paraaegis.errors import ConfigError, LearnerError, ParaAegisError
from paraaegis.launch import run
from paraaegis.privacy.ledger import read_ledger
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from toy import ToyLearner, configure
from toy_runs import StoppedError, stop_at, toy_config, toys

NAMED = "federation.names=['hospital-a', 'hospital-b']"


def test_a_run_with_names_is_the_same_run_under_other_names(tmp_path):
    """On the data of an experiment, by the whole way from the configuration to the ledger."""
    short = ["federation.rounds=2", "federation.fraction=0.5", "federation.clients=2", "model.name=mlp",
             "protect.method=dp-fedavg"]  # fmt: skip
    plain, named = (run(make_config({}, [*short, *more]), tmp_path / str(len(more))) for more in ([], [NAMED]))
    assert plain.metrics == named.metrics
    ledgers = [read_ledger(tmp_path / folder / "ledger.jsonl") for folder in ("0", "1")]
    called = {"client-0": "hospital-a", "client-1": "hospital-b"}
    told = [sorted((release.round, called.get(release.client, release.client)) for release in one) for one in ledgers]
    assert told[0] == told[1]


def test_learners_of_your_own_go_by_the_names_of_the_configuration(tmp_path):
    learners = dict(zip(("hospital-b", "hospital-a"), toys().values(), strict=True))
    federate(configure("federation.rounds=1", "protect.method=fedavg", NAMED), learners, tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_records()[0].clients == ["hospital-a", "hospital-b"]
    with pytest.raises(
        ConfigError, match=r"federation\.names lists hospital-a, hospital-b, got learners of client-0, "
    ):
        federate(configure("protect.method=fedavg", NAMED), toys(), tmp_path / "other")


class Measuring(ToyLearner):
    """Its metrics are what it was told to return."""

    found: object = {}

    def evaluate(self, weights):
        return self.found


def test_a_metric_may_be_numpys(tmp_path):
    learners = {name: Measuring([np.ones(5)]) for name in ("a", "b")}
    learners["a"].found = {"accuracy": np.float32(0.5)}
    assert federate(toy_config(), learners, str(tmp_path)).metrics == {"accuracy": 0.5}


@pytest.mark.parametrize("found", [{"accuracy": "high"}, {"accuracy": None}, 0.5])
def test_a_metric_that_is_none_is_refused_by_its_kind(found, tmp_path):
    learners = {name: Measuring([np.ones(5)]) for name in ("a", "b")}
    learners["a"].found = found
    with pytest.raises(ParaAegisError, match=r"evaluate of a's learner .*(number|dict of numbers by name)"):
        federate(toy_config(), learners, tmp_path)


def test_another_number_of_learners_than_clients_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"federation\.clients is 2, got 3 learners"):
        federate(toy_config(), toys(3), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("settings", [
    ("protect.method=nothing",),
    ("federation.min_samples=11",),
    ("protect.method=paraaegis-feedback", "protect.ratio=0.01"),  # of five values none is elected
])  # fmt: skip
def test_a_federation_that_cannot_be_run_is_refused_before_anything_is_written(settings, tmp_path):
    with pytest.raises(ParaAegisError):
        federate(toy_config(*settings), toys(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a/b", "../up", ""])
def test_a_learner_may_have_any_name_or_is_refused_at_once(name, tmp_path):
    """A name that a checkpoint cannot hold must not be found out when the run is to go on."""
    learners = dict(zip([name, "other"], toys().values(), strict=True))
    try:
        with pytest.raises(StoppedError):
            federate(toy_config(), learners, tmp_path / "out", on_record=stop_at(1))
    except ConfigError:
        assert not (tmp_path / "out").exists()
        return
    assert federate(toy_config(), learners, tmp_path / "out").rounds == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_does_not_lose_the_run(value, tmp_path):
    learners = toys()
    for learner in learners.values():
        learner.evaluate = lambda weights: {"perplexity": value}
    with pytest.raises(StoppedError):
        federate(toy_config(), learners, tmp_path, on_record=stop_at(1))
    result = federate(toy_config(), learners, tmp_path)
    assert result.rounds == 3
    assert federate(toy_config(), learners, tmp_path).rounds == 3


class InPlace(ToyLearner):
    """One that changes what it is given, in the method of this name."""

    def __init__(self, method):
        super().__init__(np.ones((1, 4)))
        self.method = method

    def train(self, weights, number):
        if self.method == "train":
            weights += 1
        return super().train(weights, number)

    def apply(self, weights, delta):
        if self.method == "apply":
            delta += 1
        return super().apply(weights, delta)

    def evaluate(self, weights):
        if self.method == "evaluate":
            weights += 1
        return super().evaluate(weights)


@pytest.mark.parametrize("method", ["train", "apply", "evaluate"])
def test_a_learner_that_changes_what_it_is_given_is_stopped(method, tmp_path):
    config = configure("federation.clients=2", "federation.rounds=2", "protect.method=fedavg")
    with pytest.raises(LearnerError, match=f"{method} .*of .'s learner failed: ValueError: .*read-only"):
        federate(config, {"a": InPlace(method), "b": InPlace(method)}, tmp_path / "run")


def test_clients_with_different_models_stop_before_anything_is_mixed(tmp_path):
    learners = toys(3)
    learners["client-1"] = ToyLearner(np.ones((1, 6)))
    with pytest.raises(ParaAegisError, match="the model of client-1 has 6 values, that of client-0 5"):
        federate(toy_config("federation.clients=3"), learners, tmp_path)
    learners["client-1"] = ToyLearner(np.ones((1, 5)))
    learners["client-1"].initial = lambda: np.ones(5, np.float32)
    with pytest.raises(ParaAegisError, match=r"first models of client-0 and client-1 differ; .*torch\.manual_seed"):
        federate(toy_config("federation.clients=3"), learners, tmp_path)
    assert not (tmp_path / "rounds.jsonl").exists()
    assert not (tmp_path / "checkpoint.npz").exists()


def test_an_update_that_is_not_finite_stops_the_run_and_nothing_of_its_round_is_kept(tmp_path):
    learners = toys()
    learners["client-1"].updates = [np.ones(5, np.float32), np.full(5, np.nan, np.float32)]
    with pytest.raises(ParaAegisError, match="client-1 in round 2 gave NaN or infinity"):
        federate(toy_config(), learners, tmp_path)
    mended = toys()
    mended["client-1"].updates = [np.ones(5, np.float32), np.ones(5, np.float32)]
    assert federate(toy_config(), mended, tmp_path).rounds == 3
