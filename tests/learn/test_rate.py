"""The learning rate by round: the schedules, and that every trainer follows them."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from paraaegis.config import make_config
from paraaegis.errors import ConfigError
from paraaegis.learn.attach import torch_learner
from paraaegis.learn.cuda import CudaLearner
from paraaegis.learn.optimizer import make_optimizer
from paraaegis.learn.rate import rate
from paraaegis.learn.train import TorchLearner
from paraaegis.runs import experiment
from paraaegis.runs.experiment import torch_experiment

SMALL = ["model.name=mlp", "federation.clients=2", "federation.rounds=5", "train.epochs=1", "train.lr=0.1"]


def rates(*settings):
    config = make_config({}, [*SMALL, *settings])
    return [rate(config.train, config.federation.rounds, number) for number in range(1, config.federation.rounds + 1)]


def test_the_rate_is_constant_unless_a_schedule_is_set():
    assert rates() == [0.1] * 5
    with pytest.raises(ConfigError, match=r"train\.last_lr = 0\.01 has no effect .* set train\.schedule"):
        rates("train.last_lr=0.01")


def test_a_schedule_leads_from_the_first_rate_to_the_last():
    assert rates("train.schedule=linear", "train.last_lr=0.02") == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02])
    half = 0.04 * (1 + np.cos(np.pi / 4))
    expected = [0.1, 0.02 + half, 0.06, 0.1 - half, 0.02]
    assert rates("train.schedule=cosine", "train.last_lr=0.02") == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_last_rate_is_a_hundredth_of_the_first_and_a_single_round_has_the_first(schedule):
    assert rates(f"train.schedule={schedule}")[-1] == pytest.approx(0.001)
    assert rates(f"train.schedule={schedule}", "federation.rounds=1") == [0.1]


def trained(number, kind, *settings):
    """A model after training in this round by the first client of an experiment."""
    config = make_config({}, ["engine.device=cpu", *SMALL, *settings])
    learner = torch_experiment(config, only="client-0").learners["client-0"]
    assert isinstance(learner, kind)
    return learner.train(learner.initial(), number)[0]


@pytest.mark.parametrize("kind", [TorchLearner, CudaLearner])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_built_in_trainer_trains_each_round_at_its_rate(kind, optimizer, monkeypatch):
    monkeypatch.setattr(experiment.train, "TorchLearner", kind)  # on a CPU too
    chosen, cosine = f"train.optimizer={optimizer}", ["train.schedule=cosine", "train.last_lr=0.02"]
    third = trained(3, kind, chosen, *cosine)
    np.testing.assert_array_equal(third, trained(3, kind, chosen, f"train.lr={rates(*cosine)[2]}"))
    assert not np.array_equal(third, trained(3, kind, chosen))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_captured_steps_follow_the_rate(optimizer):
    config = make_config({}, [*SMALL, "engine.device=cuda:0", f"train.optimizer={optimizer}", "train.schedule=linear"])
    fast = torch_experiment(config, only="client-0").learners["client-0"]
    weights, moved = fast.initial(), []
    for number in (1, 5, 1):
        fast.load({})  # forgets the optimiser's state
        moved.append(np.abs(fast.train(weights, number)[0] - weights).mean())
    assert moved[0] == pytest.approx(moved[2], rel=0.05)
    assert moved[1] < moved[0] / 10


def learner(**options):
    torch.manual_seed(0)
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return torch_learner(nn.Linear(3, 2), data=(inputs, (inputs.sum(dim=1) > 0).long()), **options)


def step(learner, number=1):
    first = learner.initial()
    return learner.train(first, number)[0] - first


def test_the_loop_over_the_users_data_takes_a_rate_or_a_function_of_the_round():
    assert np.array_equal(step(learner()), step(learner(lr=0.01)))
    config = make_config({}, [*SMALL, "train.schedule=linear"])
    scheduled = learner(lr=partial(rate, config.train, config.federation.rounds))
    assert np.array_equal(step(scheduled, 1), step(learner(lr=0.1)))
    assert np.array_equal(step(learner(lr=lambda number: 0.1 / number), 4), step(learner(lr=0.025), 4))


def test_a_rate_overrides_that_of_the_users_optimiser_which_otherwise_keeps_its_own():
    sgd = partial(torch.optim.SGD, lr=0.5)
    assert np.array_equal(step(learner(optimizer=sgd, lr=0.1)), step(learner(optimizer=partial(sgd, lr=0.1))))
    assert not np.array_equal(step(learner(optimizer=sgd)), step(learner(optimizer=sgd, lr=0.1)))


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
def test_an_impossible_rate_is_refused(lr):
    with pytest.raises(ConfigError, match=f"at least 0, got {lr}"):
        step(learner(lr=lambda _: lr))


def test_a_rate_is_refused_where_the_user_trains():
    with pytest.raises(ConfigError, match="lr= is for data="):
        torch_learner(nn.Linear(3, 2), train=lambda model: None, samples=1, lr=0.1)


def test_without_a_schedule_the_rate_stays_a_number():
    optimizer = make_optimizer("sgd", nn.Linear(3, 2), 0.05, 0.9)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05]
