"""What a learner says is checked before anything of it leaves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hand import Hand
from paraaegis.errors import LearnerError, ProtocolError, UpdateError
from paraaegis.protocol.client import start
from paraaegis.protocol.learner import check_learners
from paraaegis.protocol.messages import Hello
from paraaegis.types import Learner
from toy import ToyLearner
from two_clients import FEDAVG, FEEDBACK, LENGTH, ME, PEER, STATIC, hand, refused, with_learner


def test_the_first_model_is_the_learners():
    learner = ToyLearner(np.ones((1, 3)))
    learner.initial = lambda: np.array([1, 2, 3], dtype=np.float32)
    playing = Hand(np.ones((1, 3)), *FEDAVG)
    checked = check_learners({ME: learner})[ME]
    assert start(replace(playing.silos[ME], learner=checked)).weights.tolist() == [1, 2, 3]


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(settings, bad):
    playing = hand(*settings)
    playing.learners[ME].updates[0][3] = bad
    refused(playing, playing.begin(1), "client-0 in round 1 gave NaN or infinity", UpdateError)
    playing.learners[ME].updates[0][3] = 1.0
    playing.send(ME, playing.begin(1))


@pytest.mark.parametrize(("model", "came"), [
    (np.zeros(LENGTH + 1, np.float32), "40 values, as many as its first model has, got 41"),
    (np.zeros((1, LENGTH), np.float32), r"one numpy vector of float32, got ndarray of float32 and shape \(1, 40\)"),
    (np.zeros(LENGTH), r"one numpy vector of float32, got ndarray of float64 and shape \(40,\)"),
    ([0.0] * LENGTH, "one numpy vector of float32, got list"),
    (None, "one numpy vector of float32, got NoneType; did it return nothing"),
])  # fmt: skip
def test_what_a_learner_returns_must_be_a_model(model, came):
    playing = hand()
    for returned in (model, (model, {})):
        playing.learners[ME].train = lambda weights, number, returned=returned: returned
        refused(playing, playing.begin(1), f"train of client-0's learner must return .*{came}", LearnerError)
    playing = hand(*FEDAVG)
    first = playing.round(1)
    playing.learners[ME].apply = lambda weights, delta: model
    refused(playing, playing.begin(2, first), f"apply of client-0's learner must return .*{came}", LearnerError)


@pytest.mark.parametrize(("returned", "why"), [
    (([], {}, 1), r"must return \(weights, metrics\) or the weights alone, got 3 values"),
    ((np.zeros(LENGTH, np.float32), [0.5]), "a dict of numbers by name as metrics, got list"),
    ((np.zeros(LENGTH, np.float32), {"loss": "low"}), "returned str for 'loss'; return a number"),
    ((np.zeros(LENGTH, np.float32), {"f1": "0.5"}), "returned str for 'f1'; return a number"),
])  # fmt: skip
def test_metrics_that_are_none_are_refused(returned, why):
    playing = hand()
    playing.learners[ME].train = lambda weights, number: returned
    refused(playing, playing.begin(1), f"client-0's learner .*{why}", LearnerError)


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_refused_with_the_remedy(loss):
    playing = hand()
    playing.learners[ME].train = lambda weights, number: (weights, {"loss": loss, "f1": np.nan})
    why = f"training of client-0 in round 1 gave a loss of {loss}; lower the learning rate"
    refused(playing, playing.begin(1), why, UpdateError)
    playing.learners[ME].train = lambda weights, number: (weights, {"loss": 0.5, "f1": np.nan})
    playing.send(ME, playing.begin(1))


def test_clients_do_not_share_a_learner():
    one, other = ToyLearner(np.ones((1, 3))), ToyLearner(np.ones((1, 3)))
    with pytest.raises(LearnerError, match=r"a and c have the same learner, .*; build a model and a learner for each"):
        check_learners({"a": one, "b": other, "c": one})


def test_clients_do_not_share_a_torch_model_but_may_share_its_description():
    def learners(model):
        made = {name: ToyLearner(np.ones((1, 3))) for name in ("a", "b")}
        for learner in made.values():
            learner.model = model
        return made

    with pytest.raises(LearnerError, match=r"a and b have the same model, .*; build a model"):
        check_learners(learners(torch.nn.Linear(2, 1)))
    check_learners(learners("linear"))


def test_an_error_of_a_learner_names_its_client_and_keeps_its_traceback():
    playing = hand()
    playing.learners[ME].train = lambda weights, number: {}["labels"]
    with pytest.raises(LearnerError, match="train in round 1 of client-0's learner failed: KeyError: 'la") as refusal:
        playing.send(ME, playing.begin(1))
    assert isinstance(refusal.value.__cause__, KeyError)


def test_what_training_measures_goes_to_the_clients_own_log_alone():
    playing, logged = hand(*FEDAVG), []
    playing.silos[ME] = replace(playing.silos[ME], log_metrics=lambda *line: logged.append(line))
    playing.learners[ME].train = lambda weights, number: (weights + 1, {"loss": 0.25})
    reply = playing.send(ME, playing.begin(1))
    assert logged == [("train", 1, {"loss": 0.25})]
    assert reply.report.metrics == {}


@pytest.mark.parametrize(("state", "why"), [([1.0], "a dict of numpy arrays"), ({"step": 3}, "a dict of numpy arrays")])
def test_a_state_that_cannot_be_stored_is_refused(state, why):
    playing = hand()
    playing.learners[ME].state = lambda: state
    with pytest.raises(LearnerError, match=f"state of client-0's learner must return {why}"):
        playing.silos[ME].learner.state()


def test_a_first_model_that_changes_is_refused():
    """As at a node, which makes its learner again for every message."""
    playing = hand()
    silo = with_learner(playing.silos[ME])
    playing.learners[ME].initial = lambda: np.ones(LENGTH, np.float32)
    with pytest.raises(LearnerError, match=r"first model of client-0 .*torch\.manual_seed"):
        start(silo)


@pytest.mark.parametrize("samples", [0, -1, 2.5, None, True])
def test_samples_must_be_a_count(samples):
    learner = ToyLearner(np.ones((1, 3)))
    learner.samples = samples
    with pytest.raises(LearnerError, match="samples of a's learner must be a whole number of at least 1"):
        check_learners({"a": learner})


def test_a_learner_needs_three_things_alone():
    class Least(Learner):
        samples = 3

        def initial(self):
            return np.zeros(4, np.float32)

        def train(self, weights, number):
            return weights + 1

    (learner,) = check_learners({"a": Least()}).values()
    trained, metrics = learner.train(learner.initial(), 1)
    assert learner.apply(trained, trained).tolist() == [2.0] * 4
    assert (metrics, learner.evaluate(trained), learner.state()) == ({}, {}, {})


def test_an_update_beyond_the_reach_of_ckks_is_refused_and_nothing_leaves():
    playing = hand("protect.method=ckks-fedavg", updates=np.full((2, 3, LENGTH), 1e6))
    refused(playing, playing.begin(1), "supports sums within", UpdateError)


def test_a_client_with_too_few_samples_does_not_join():
    with pytest.raises(ProtocolError, match=r"client-0 has too few samples: .* at least 10"):
        hand(*FEDAVG, "federation.min_samples=10", samples=[9, 10])
    assert isinstance(hand(*FEDAVG, "federation.min_samples=10", samples=[10, 10]).hellos[PEER], Hello)


def test_a_client_without_samples_does_not_join():
    with pytest.raises(LearnerError, match="samples of client-0's learner must be a whole number of at least 1"):
        hand(*FEDAVG, samples=[0, 10])
