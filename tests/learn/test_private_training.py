"""A round of DP-SGD: plain training without noise and clipping, and nothing that keeps or repeats what it saw."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from paraaegis.errors import ConfigError
from paraaegis.learn.attach import torch_learner
from paraaegis.learn.augment import draw_crops, resample
from paraaegis.learn.models import build
from paraaegis.learn.train import TorchLearner, from_vector, to_vector
from paraaegis.protocol.learner import protect_records
from paraaegis.seeds import Purpose, stream
from paraaegis.types import RecordPrivacy
from private import attached, net, points

BARE = RecordPrivacy(0.3, 12, float("inf"), 0.0)
EVERY = RecordPrivacy(1.0, 3, 1.0, 0.0)
RNG = np.random.default_rng(0)
PHOTOS, LABELS = RNG.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), RNG.integers(0, 10, 40)
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, 0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
}


def built_in(privacy, kind="cnn-gn", **changes):
    settings = {
        "model": build(kind, (8, 8, 3), 10, 0), "images": PHOTOS, "labels": LABELS, "test": None, "epochs": 2,
        "batch": 8, "optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "augment": False, "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.3, 0.4), "batches": lambda number: stream(0, Purpose.RECORDS, 0, number), "device": "cpu",
    }  # fmt: skip
    return TorchLearner(**(settings | changes), record_privacy=privacy)


def plain_rounds(model, optimizer, inputs, targets, draws, rate, rounds):
    """Rounds of training as anyone would write them, on the samples that `draws` gives for each step."""
    for number in rounds:
        for rows, change in draws(number):
            optimizer.zero_grad()
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)  # also of a step without samples
            if len(rows):
                loss = F.cross_entropy(model(change(inputs[rows])), targets[rows], reduction="sum")
                (loss / (rate * len(targets))).backward()
            optimizer.step()


def sampled(rng, count, privacy, augment=False):
    drawn = [np.flatnonzero(rng.random(count) < privacy.sample_rate) for _ in range(privacy.steps)]
    for rows in drawn:
        crops = torch.from_numpy(draw_crops(len(rows), rng)) if augment else None
        yield rows, (lambda x, crops=crops: x) if crops is None else (lambda x, crops=crops: resample(x, crops))


@pytest.mark.parametrize("batch", [1, 5, 1000])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_without_noise_and_clipping_a_model_of_ones_own_trains_as_in_a_plain_loop(optimizer, batch):
    inputs, targets = points()
    learner = attached(net(), BARE, optimizer=OPTIMIZERS[optimizer], batch=batch)
    weights = learner.initial()
    for number in (1, 2):
        weights, _ = learner.train(weights, number)
    model = net()

    def draws(number):
        rng = np.random.default_rng(number)
        return sampled(rng, 40, BARE)

    plain_rounds(model, OPTIMIZERS[optimizer](model.parameters()), inputs, targets, draws, BARE.sample_rate, (1, 2))
    np.testing.assert_allclose(weights, to_vector(model), rtol=1e-3, atol=2e-5)
    assert not np.allclose(weights, learner.initial(), atol=1e-2)


@pytest.mark.parametrize("kind", ["mlp", "cnn-gn"])
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.9)])
@pytest.mark.parametrize("augment", [False, True])
def test_without_noise_and_clipping_a_built_in_model_trains_as_in_a_plain_loop(kind, optimizer, momentum, augment):
    lr = 0.001 if optimizer == "adam" else 0.01
    learner = built_in(BARE, kind, optimizer=optimizer, momentum=momentum, lr=lr, augment=augment)
    weights, _ = learner.train(learner.initial(), 1)
    model = build(kind, (8, 8, 3), 10, 0)
    make = (
        torch.optim.Adam(model.parameters(), lr)
        if optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr, momentum)
    )
    scaled = (PHOTOS / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    inputs = torch.from_numpy(scaled.astype(np.float32)).permute(0, 3, 1, 2)
    draws = lambda number: sampled(stream(0, Purpose.RECORDS, 0, number), 40, BARE, augment)  # noqa: E731
    plain_rounds(model, make, inputs, torch.from_numpy(LABELS), draws, BARE.sample_rate, [1])
    # Adam divides by gradients, so those near zero amplify rounding; so does the maximum of crops' equal pixels.
    near = np.isclose(weights, to_vector(model), rtol=1e-3, atol=1e-4)
    assert near.mean() >= (0.99 if augment or optimizer == "adam" else 1.0)


@pytest.mark.parametrize("clip", [0.05, float("inf")])
def test_how_many_gradients_are_in_memory_at_a_time_changes_nothing(clip):
    noised = RecordPrivacy(0.5, 5, clip, 0.0 if clip == float("inf") else 1.0)
    models = []
    for batch in (1, 3, 1000):
        learner = built_in(noised, batch=batch)
        models.append(learner.train(learner.initial(), 1)[0])
    np.testing.assert_allclose(models[0], models[1], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(models[0], models[2], rtol=1e-3, atol=1e-5)


def test_a_round_is_a_function_of_the_model_and_its_number_when_seeded():
    learner = built_in(RecordPrivacy(0.5, 5, 1.0, 1.0), momentum=0.0)
    first = learner.initial()
    again = [learner.train(first, number)[0] for number in (1, 2, 1)]
    assert np.array_equal(again[0], again[2])
    assert not np.allclose(again[0], again[1])


def test_frozen_parameters_and_buffers_stay_as_they_were_received():
    model = net(nn.GroupNorm(2, 4))
    model[0].requires_grad_(False)
    model.register_buffer("table", torch.ones(5))
    learner = attached(model, RecordPrivacy(0.5, 5, 1.0, 1.0))
    received = learner.initial() + 1
    trained, _ = learner.train(received, 1)
    moved = np.flatnonzero(trained != received)
    names = list(itertools.chain.from_iterable([name] * one.numel() for name, one in model.state_dict().items()))
    assert {names[at] for at in moved} == {"1.weight", "1.bias", "3.weight", "3.bias"}


def test_a_sample_whose_loss_is_not_a_number_is_left_out_of_the_metric():
    inputs, targets = points()
    inputs[7] = float("nan")
    learner = attached(net(), EVERY, (inputs, targets))
    trained, metrics = learner.train(learner.initial(), 1)
    assert np.isfinite(trained).all()
    assert 0 < metrics["loss"] < 5


def test_a_client_with_one_sample_trains():
    learner = attached(net(), RecordPrivacy(0.5, 20, 1.0, 1.0), points(1))
    assert np.isfinite(learner.train(learner.initial(), 1)[0]).all()


# What would let one record count more than once


class Remembering(nn.Module):
    """Adds what it computed for the samples before to the next ones."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.last, self.all = nn.Linear(3, 2), how, None, {"seen": []}
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if self.how == "attribute":
            if self.last is not None:
                x = x + self.last[0]
            self.last = (x.detach(), None)
        elif self.how == "list":
            self.all["seen"].append(x)
        else:
            self.mean = 0.9 * self.mean + x.detach().mean(0)
        return self.layer(x)


@pytest.mark.parametrize(("how", "where"), [("attribute", "last"), ("list", "all"), ("buffer", "mean")])
def test_a_model_that_keeps_its_samples_is_refused(how, where):
    learner = attached(nn.Sequential(Remembering(how)), EVERY)
    with pytest.raises(ConfigError, match=rf"layer '0' \(Remembering\) keeps .* in self\.{where}, .* local variable"):
        learner.train(learner.initial(), 1)


def test_a_model_may_keep_what_does_not_come_from_its_samples():
    class Counting(nn.Linear):
        calls, table = 0, None

        def forward(self, x):
            self.calls += 1
            self.table = torch.arange(3.0)
            return super().forward(x + self.table)

    learner = attached(Counting(3, 2), EVERY)
    learner.train(learner.initial(), 1)
    assert learner.model.calls > 0


def test_gradients_that_an_interrupted_round_left_behind_are_dropped():
    inputs, targets = points()
    learner = attached(net(), RecordPrivacy(1.0, 1, 1.0, 0.0), (inputs, targets), batch=8, lr=1.0)
    first, good = learner.initial(), targets.clone()
    wanted, _ = learner.train(first, 1)
    targets[39] = 99  # not a class
    with pytest.raises((IndexError, RuntimeError)):
        learner.train(first, 2)
    targets[39] = good[39]
    learner._owned.optimizer.state.clear()
    np.testing.assert_allclose(learner.train(first, 1)[0], wanted, rtol=1e-5)


def test_what_an_optimiser_learnt_without_privacy_is_dropped():
    learner = torch_learner(net(), data=points(), optimizer=OPTIMIZERS["adam"])
    for number in (1, 2, 3):
        learner.train(learner.initial(), number)
    learner.protect_records(EVERY, np.random.default_rng)
    fresh = attached(net(), EVERY, optimizer=OPTIMIZERS["adam"])
    np.testing.assert_array_equal(learner.train(learner.initial(), 1)[0], fresh.train(fresh.initial(), 1)[0])


def test_each_run_gives_a_learner_its_own_generators():
    noisy = RecordPrivacy(0.5, 2, 1.0, 1.0)
    learner = torch_learner(net(), data=points())
    trained = []
    for seed in (1, 2):
        protect_records("a", learner, noisy, lambda number, seed=seed: np.random.default_rng([seed, number]))
        trained.append(learner.train(learner.initial(), 1)[0])
    assert not np.allclose(*trained)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.InstanceNorm1d(4, track_running_stats=True)]
)
def test_layers_that_mix_samples_are_refused_by_name_with_the_remedy(layer):
    with pytest.raises(
        ConfigError, match=rf"layer '1' is a {type(layer).__name__}, .* nn.GroupNorm\(groups, channels\)"
    ):
        attached(net(layer), EVERY)


@pytest.mark.parametrize("kind", ["cnn", "resnet18"])
def test_built_in_models_with_batch_norm_are_refused(kind):
    with pytest.raises(ConfigError, match=r"is a BatchNorm2d, .* cnn-gn and resnet18-gn"):
        built_in(EVERY, kind)


def test_switching_records_off_again_trains_plainly():
    learner = attached(net(), RecordPrivacy(0.5, 2, 1.0, 5.0))
    learner.protect_records(None, np.random.default_rng)
    plain = torch_learner(net(), data=points())
    assert learner.record_privacy is None
    np.testing.assert_array_equal(learner.train(learner.initial(), 1)[0], plain.train(plain.initial(), 1)[0])


def test_a_loss_that_is_no_number_is_named():
    learner = attached(net(), EVERY, loss=lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"))
    with pytest.raises(RuntimeError, match="scalar"):
        learner.train(learner.initial(), 1)


def test_the_model_given_is_where_a_round_starts():
    learner, model = attached(net(), RecordPrivacy(1e-9, 1, 1.0, 0.0)), net()
    from_vector(model, learner.initial() * 2)
    trained, _ = learner.train(learner.initial() * 2, 1)  # nothing is drawn and no noise is added
    np.testing.assert_allclose(trained, to_vector(model), atol=1e-6)
