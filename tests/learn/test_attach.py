"""A torch model of one's own becomes a client; what cannot work is refused with the remedy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paraaegis.errors import ConfigError, DataError, LearnerError, RunError, UpdateError
from paraaegis.learn.attach import torch_learner
from paraaegis.learn.vector import to_vector
from paraaegis.protocol.learner import check_learners


def net(width=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def points(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 3, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def own_loop(model, inputs, targets, optimizer):
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return {"loss": loss}


def looped(**options):
    model, (inputs, targets) = net(), points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    accuracy = lambda model: {"accuracy": (model(inputs).argmax(1) == targets).float().mean()}  # noqa: E731
    return torch_learner(
        model,
        train=lambda model: own_loop(model, inputs, targets, optimizer),
        evaluate=accuracy,
        samples=len(targets),
        keep=[optimizer],
        **options,
    )


def test_a_loop_of_ones_own_trains_from_the_given_weights():
    learner = looped()
    first = learner.initial()
    trained, metrics = learner.train(first, 1)
    assert metrics["loss"] < 0.5
    assert learner.evaluate(trained)["accuracy"] > learner.evaluate(first)["accuracy"]
    np.testing.assert_array_equal(learner.initial(), first)  # training has not touched what was attached


@pytest.mark.parametrize(("layer", "has"), [(nn.BatchNorm1d(3), True), (nn.LayerNorm(3), False)])
def test_running_statistics_are_noticed(layer, has):
    learner = torch_learner(nn.Sequential(layer, nn.Linear(3, 2)), data=points())
    assert check_learners({"a": learner})["a"].has_batch_norm is has


def test_the_library_trains_on_data():
    learner = torch_learner(net(), data=points(), epochs=10, batch=8, optimizer=lambda p: torch.optim.Adam(p, lr=0.05))
    trained, metrics = learner.train(learner.initial(), 1)
    assert learner.samples == 40
    assert metrics["loss"] < 0.6
    assert not np.array_equal(trained, learner.initial())


@pytest.mark.parametrize("wrap", [lambda pair: pair, lambda pair: TensorDataset(*pair),
                                  lambda pair: DataLoader(TensorDataset(*pair), batch_size=10)])  # fmt: skip
def test_data_may_be_tensors_a_data_set_or_a_loader(wrap):
    learner = torch_learner(net(), data=wrap(points()))
    assert learner.samples == 40
    learner.train(learner.initial(), 1)


def test_a_last_batch_of_one_does_not_stop_batch_norm():
    learner = torch_learner(net(), data=points(33), batch=16)
    learner.train(learner.initial(), 1)
    assert learner.samples == 33


def test_a_loop_may_ask_for_the_round():
    rounds = []

    def loop(model, number):
        rounds.append(number)

    learner = torch_learner(net(), train=loop, samples=1)
    assert learner.train(learner.initial(), 7)[1] == {}
    assert rounds == [7]


def test_an_update_is_added_and_variances_stay_above_zero():
    learner = looped()
    weights = learner.initial()
    lowered = learner.apply(weights, np.full_like(weights, -5))
    model = net()
    names, start = {}, 0
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            names[name] = slice(start, start + tensor.numel())
            start += tensor.numel()
    np.testing.assert_array_equal(lowered[names["0.weight"]], weights[names["0.weight"]] - 5)
    assert (lowered[names["1.running_var"]] == 0).all()


def test_state_survives_a_restart():
    one, other = looped(), looped()
    weights, _ = one.train(one.initial(), 1)
    other.load(one.state())
    np.testing.assert_array_equal(one.train(weights, 2)[0], other.train(weights, 2)[0])
    assert int(other.model.state_dict()["1.num_batches_tracked"]) == int(
        one.model.state_dict()["1.num_batches_tracked"]
    )


@pytest.mark.parametrize("state", [{}, {"torch": np.zeros(3, np.uint8)}])
def test_a_state_that_does_not_fit_is_refused(state):
    with pytest.raises(RunError, match="does not fit"):
        looped().load(state)
    with pytest.raises(RunError, match="got keep= with 0"):
        torch_learner(net(), train=lambda model: None, samples=1).load(looped().state())


def test_the_model_can_be_had_back(tmp_path):
    learner = looped()
    trained, _ = learner.train(learner.initial(), 1)
    fresh = net()
    learner.save(tmp_path / "model.pt", trained)
    fresh.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    np.testing.assert_array_equal(to_vector(fresh), trained)


def grows(model):
    model.append(nn.Linear(2, 2))


def attached(**options):
    """A client's learner as a run has it."""
    return check_learners({"a": torch_learner(net(), samples=1, **options)})["a"]


@pytest.mark.parametrize(("returned", "said"), [
    ([0.5], "train of a's learner must return a dict of numbers by name as metrics, got list"),
    (0.5, "train of a's learner must return a dict of numbers by name as metrics, got float"),
    ({"loss": "low"}, "train of a's learner returned str for 'loss'"),
    ({"loss": torch.zeros(2)}, "train of a's learner returned Tensor for 'loss'"),
])  # fmt: skip
def test_what_a_loop_must_not_return_is_named(returned, said):
    learner = attached(train=lambda model: returned)
    with pytest.raises(LearnerError, match=said):
        learner.train(learner.initial(), 1)


def test_metrics_do_not_hold_on_to_torchs_graph():
    learner = torch_learner(net(), train=lambda model: {"loss": model(points()[0]).sum()}, samples=1)
    assert not learner.train(learner.initial(), 1)[1]["loss"].requires_grad


def test_an_evaluation_without_a_result_is_refused():
    learner = attached(train=lambda model: None, evaluate=lambda model: None)
    with pytest.raises(LearnerError, match=r"evaluate of a's learner must return a dict .*, got NoneType"):
        learner.evaluate(learner.initial())


def test_the_librarys_batches_depend_on_the_round_alone():
    """A resumed run, or another number of threads, trains on the same batches."""
    trained = []
    for _ in range(2):
        learner = torch_learner(net(), data=points(), batch=8)
        trained.append([learner.train(learner.initial(), number)[0] for number in (1, 2)])
        torch.rand(7)  # what else uses torch's generator
    np.testing.assert_array_equal(trained[0], trained[1])


def test_a_model_that_changes_its_shape_is_refused():
    learner = torch_learner(net(), train=grows, samples=1)
    with pytest.raises(UpdateError, match="must not add or remove layers"):
        learner.train(learner.initial(), 1)


def test_a_metric_that_is_undefined_on_a_sites_data_may_be_nan():
    learner = attached(train=lambda model: None, evaluate=lambda model: {"auc": float("nan"), "f1": torch.tensor(1.0)})
    metrics = learner.evaluate(learner.initial())
    assert np.isnan(metrics["auc"])
    assert metrics["f1"] == 1.0


def test_a_loss_that_is_nan_is_refused_in_the_round_that_it_happens():
    learner = torch_learner(net(), data=(torch.full((8, 3), float("nan")), torch.zeros(8, dtype=torch.long)))
    with pytest.raises(UpdateError, match="the loss became nan in round 3"):
        learner.train(learner.initial(), 3)


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3), 0


@pytest.mark.parametrize(("arguments", "error", "said"), [
    ({}, ConfigError, "either train=, your own loop, or data="),
    ({"train": print, "data": points()}, ConfigError, "either train=, your own loop, or data="),
    ({"train": print}, ConfigError, "needs samples="),
    ({"train": print, "samples": 0}, DataError, "at least 1, got 0"),
    ({"train": print, "samples": 2.5}, DataError, r"at least 1, got 2\.5"),
    ({"data": (torch.zeros(0, 3), torch.zeros(0))}, DataError, "no samples"),
    ({"data": Endless()}, DataError, "must have a length"),
    ({"data": points(), "epochs": 0}, ConfigError, "epochs must be at least 1"),
    ({"data": (points()[0], points(9)[1])}, DataError, "a pair of tensors.* got 2 tensors with 40 and 9 entries"),
    ({"data": points()[:1]}, DataError, "a pair of tensors.* got 1 tensor with 40 entries"),
])  # fmt: skip
def test_what_cannot_be_attached_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        torch_learner(net(), **arguments)


@pytest.mark.parametrize(("model", "said"), [
    ("resnet18", "must be a torch.nn.Module, got str"),
    (nn.ReLU(), "no floating-point parameters"),
    (nn.LazyLinear(2), "weight has no size yet; call the model once on an example"),
    (nn.LazyBatchNorm1d(affine=False), "running_mean has no size yet"),
    (nn.Linear(3, 2, device="meta"), "on the device meta and has no values"),
    (nn.Linear(3, 2).double(), r"weight is torch\.float64; models are shared in float32"),
    (nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1, device="meta")]), "on several devices, cpu, meta"),
])  # fmt: skip
def test_a_model_that_cannot_be_shared_is_refused(model, said):
    for given in ({"train": print, "samples": 1}, {"data": points()}):
        with pytest.raises(ConfigError, match=said):
            torch_learner(model, **given)
