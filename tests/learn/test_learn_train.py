"""Local training: the contract of a Learner."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from learners import SETTINGS, rounds
from paraaegis.config import make_config
from paraaegis.errors import ConfigError, DataError, RunError, UpdateError
from paraaegis.learn.augment import draw_crops, resample
from paraaegis.learn.models import build
from paraaegis.learn.train import TorchLearner, to_vector
from paraaegis.runs.experiment import torch_experiment
from paraaegis.seeds import Purpose, stream
from paraaegis.types import Learner

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 40)


@pytest.fixture(autouse=True)
def one_thread():
    """As engines do, which run a learner a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learner(model="cnn", count=40, seed=0, client=0, **changes):
    settings = {
        "model": build(model, (8, 8, 3), 10, seed) if isinstance(model, str) else model,
        "images": IMAGES[:count],
        "labels": LABELS[:count],
        "test": (IMAGES[20:], LABELS[20:]),
        "lr": 0.05,
        "augment": False,
        "batches": lambda number: stream(seed, Purpose.BATCHES, client, number),
    }
    return TorchLearner(**(SETTINGS | settings | changes))


def test_a_torch_learner_is_a_learner():
    subject: Learner = learner()
    assert subject.samples == 40
    assert np.array_equal(subject.initial(), to_vector(build("cnn", (8, 8, 3), 10, 0)))


def test_initial_stays_what_it_was_after_training():
    subject = learner()
    first = subject.initial()
    subject.train(first, 0)
    assert np.array_equal(subject.initial(), first)


def test_training_lowers_the_loss():
    subject = learner()
    weights, first = subject.train(subject.initial(), 0)
    weights = rounds(subject, weights, range(1, 6))
    _, last = subject.train(weights, 6)
    assert last["loss"] < first["loss"] / 2


def test_nothing_writes_to_the_vectors_it_is_given():
    subject = learner()
    weights, delta = subject.initial(), np.ones_like(subject.initial())
    weights.flags.writeable = delta.flags.writeable = False
    trained, _ = subject.train(weights, 0)
    applied = subject.apply(weights, delta)
    subject.evaluate(weights)
    assert not any(np.shares_memory(weights, result) for result in (trained, applied))
    assert trained.dtype == applied.dtype == np.float32


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_depends_on_nothing_but_its_arguments(optimizer, augment):
    torch.manual_seed(1)
    first = rounds(learner(optimizer=optimizer, augment=augment), learner().initial(), range(2))
    torch.manual_seed(2)
    again = rounds(learner(optimizer=optimizer, augment=augment), learner().initial(), range(2))
    assert np.array_equal(first, again)


def test_training_leaves_torchs_generator_alone():
    before = torch.random.get_rng_state()
    rounds(learner(augment=True), learner().initial(), [0])
    assert torch.equal(before, torch.random.get_rng_state())


def test_another_round_or_client_draws_another_order():
    weights = learner().initial()
    first, *others = (rounds(learner(client=client), weights, [number]) for client, number in ((0, 0), (0, 1), (1, 0)))
    assert not any(np.array_equal(first, other) for other in others)


def test_learners_in_threads_do_what_they_do_alone():
    weights = learner().initial()

    def work(client):
        subject = learner(client=client, augment=True)
        return rounds(subject, weights, range(2)), subject.evaluate(weights)

    alone = [work(client) for client in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))
    for (a, scores), (b, again) in zip(alone, together, strict=True):
        assert np.array_equal(a, b)
        assert scores == again


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("how", [{"optimizer": "adam"}, {"momentum": 0.9}, {"momentum": 0.0}])
def test_a_fresh_learner_with_the_loaded_state_continues_bit_for_bit(model, how):
    veteran = learner(model, **how)
    weights = rounds(veteran, veteran.initial(), range(2))
    state = {name: array.copy() for name, array in veteran.state().items()}
    expected = rounds(veteran, weights, [2, 3])
    fresh = learner(model, **how)
    fresh.load(state)
    assert np.array_equal(rounds(fresh, weights, [2, 3]), expected)
    assert fresh.state().keys() == veteran.state().keys()
    assert all(np.array_equal(fresh.state()[name], array) for name, array in veteran.state().items())


def test_without_its_state_a_fresh_learner_goes_elsewhere():
    veteran = learner()
    weights = rounds(veteran, veteran.initial(), range(2))
    assert not np.array_equal(rounds(learner(), weights, [2]), rounds(veteran, weights, [2]))


def test_a_state_is_a_copy_of_contiguous_arrays():
    subject = learner(optimizer="adam")
    weights, _ = subject.train(subject.initial(), 0)
    state = subject.state()
    before = {name: array.copy() for name, array in state.items()}
    subject.train(weights, 1)
    assert all(array.flags.c_contiguous for array in state.values())
    assert all(np.array_equal(before[name], array) for name, array in state.items())
    assert state["buffer.1.num_batches_tracked"] == 10
    assert state["optimizer.step.0.weight"] == 10


def test_loading_the_state_of_a_new_learner_forgets_the_old_one():
    subject, new = learner(), learner()
    weights = subject.initial()
    fresh = new.state()
    subject.train(weights, 0)
    subject.load(fresh)
    assert np.array_equal(rounds(subject, weights, [0]), rounds(new, weights, [0]))


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    subject = learner()
    subject.train(subject.initial(), 0)
    before = subject.state()
    adams = learner(optimizer="adam")
    adams.train(adams.initial(), 0)
    for wrong in (
        adams.state(),
        before | {"surplus": np.zeros(1)},
        before | {"optimizer.momentum_buffer.0.bias": np.zeros(3, np.float32)},
        {name: array for name, array in before.items() if name != "buffer.1.num_batches_tracked"},
    ):
        with pytest.raises(RunError, match="must fit its model and sgd"):
            subject.load(wrong)
    assert all(np.array_equal(before[name], array) for name, array in subject.state().items())


def test_evaluating_between_rounds_changes_nothing():
    quiet, watched = learner(), learner()
    a = b = quiet.initial()
    for number in range(3):
        a, _ = quiet.train(a, number)
        watched.evaluate(b * 2)
        b, _ = watched.train(b, number)
        watched.evaluate(b)
    assert np.array_equal(a, b)
    assert quiet.state()["buffer.1.num_batches_tracked"] == watched.state()["buffer.1.num_batches_tracked"]


def test_evaluation_does_not_depend_on_its_batches(monkeypatch):
    subject = learner()
    weights = rounds(subject, subject.initial(), [0])
    whole = subject.evaluate(weights)
    assert 0 <= whole["accuracy"] <= 1
    monkeypatch.setattr("paraaegis.learn.train.TEST_BATCH", 3)
    assert subject.evaluate(weights) == pytest.approx(whole, rel=1e-5)


def test_a_learner_without_a_test_set_has_nothing_to_report():
    assert learner(test=None).evaluate(learner().initial()) == {}


def test_apply_adds_in_float32():
    subject = learner()
    weights = subject.initial()
    delta = RNG.normal(0, 1e-3, weights.size).astype(np.float32)
    assert np.array_equal(subject.apply(weights, delta), weights + delta)


def test_apply_multiplies_what_is_learnt_and_not_what_is_measured():
    subject = learner(server_lr=1.5)
    weights = subject.initial()
    step = subject.apply(weights, np.ones_like(weights)) - weights
    measured = ("running_mean", "running_var")
    expected = [
        np.full(tensor.numel(), 1.0 if name.endswith(measured) else 1.5)
        for name, tensor in build("cnn", (8, 8, 3), 10, 0).state_dict().items()
        if tensor.is_floating_point()
    ]
    assert np.allclose(step, np.concatenate(expected), atol=1e-6)


def test_a_classroom_passes_the_factor_of_the_mean_update_on():
    slow, fast = (
        torch_experiment(make_config({"train": {"server_lr": rate}})).learners["client-0"] for rate in (0.5, 2)
    )
    ones = np.ones_like(slow.initial())
    assert (slow.apply(0 * ones, ones).min(), fast.apply(0 * ones, ones).max()) == (0.5, 2)


def test_apply_keeps_every_variance_from_falling_below_zero():
    subject = learner()
    weights = subject.initial()
    model = subject.apply(weights, np.full_like(weights, -5))
    names = build("cnn", (8, 8, 3), 10, 0).state_dict()
    floats = {name: t.numel() for name, t in names.items() if t.is_floating_point()}
    starts = dict(zip(floats, np.cumsum([0, *floats.values()]), strict=False))
    clamped = np.zeros(weights.size, np.bool_)
    for name in ("1.running_var", "5.running_var"):
        clamped[starts[name] : starts[name] + floats[name]] = True
    assert clamped.sum() == 96
    assert (model[clamped] == 0).all()
    assert np.array_equal(model[~clamped], (weights - np.float32(5))[~clamped])
    assert np.isfinite(subject.evaluate(model)["loss"])


def test_apply_lets_nothing_hide_a_value_that_is_not_a_number():
    subject = learner()
    assert np.isnan(subject.apply(subject.initial(), np.full(subject.initial().size, np.nan, np.float32))).all()


def test_a_vector_of_another_length_is_refused():
    subject = learner()
    short = subject.initial()[:-1]
    for call in (
        lambda: subject.train(short, 0),
        lambda: subject.evaluate(short),
        lambda: subject.apply(subject.initial(), short),
        lambda: subject.apply(short, short),
    ):
        with pytest.raises(UpdateError, match="got shape"):
            call()


@pytest.mark.parametrize(
    ("count", "batch", "steps"), [(17, 8, 4), (18, 8, 6), (16, 8, 4), (5, 8, 2), (3, 1, 6), (1, 8, 2), (9, 8, 2)]
)
def test_a_last_batch_of_one_sample_is_left_out_if_others_remain(count, batch, steps):
    subject = learner(count=count, batch=batch)
    subject.train(subject.initial(), 0)
    assert subject.state()["buffer.1.num_batches_tracked"] == steps


def test_resnet18_trains_on_small_images_whose_last_batch_would_have_one_sample():
    subject = learner("resnet18", count=5, batch=2, epochs=1, lr=0.001)
    assert np.isfinite(subject.train(subject.initial(), 0)[0]).all()


def test_images_that_cannot_be_written_are_taken():
    images = IMAGES.copy()
    images.flags.writeable = False
    assert learner(images=images).samples == 40


def test_pixels_are_normalised_by_channel():
    class Spy(torch.nn.Linear):
        def forward(self, x):
            self.seen = x
            return super().forward(x.flatten(1))

    spy = Spy(192, 10)
    subject = learner(spy)
    subject.evaluate(subject.initial())
    expected = (IMAGES[20:] / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4]
    assert np.allclose(spy.seen.permute(0, 2, 3, 1), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"optimizer": "lion"}, ConfigError, "sgd, adam, got 'lion'"),
        ({"epochs": 0}, ConfigError, "at least 1, got 0 and 8"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, DataError, "got 0 and 0"),
        ({"labels": LABELS[:3]}, DataError, "got 40 and 3"),
    ],
)
def test_a_learner_that_cannot_train_is_refused(wrong, error, words):
    with pytest.raises(error, match=words):
        learner(**wrong)


# augmentation


def crop_and_flip(images, rng):
    return resample(images, torch.from_numpy(draw_crops(len(images), rng)))


def test_augmentation_is_drawn_from_the_generator_alone():
    images = torch.rand(6, 3, 32, 32)
    first, again, other = (crop_and_flip(images, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == images.shape


def test_a_crop_stays_inside_the_image():
    """A plane that rises from left to right, or from top to bottom, stays within its range and keeps its slope."""
    ramp = torch.arange(32.0).expand(32, 32)
    images = torch.stack([ramp, ramp.T]).expand(200, 2, 32, 32)
    crops = crop_and_flip(images, np.random.default_rng(0))
    assert crops.min() >= 0
    assert crops.max() <= 31
    across = crops[:, 0, 0, 16] - crops[:, 0, 0, 15]
    down = crops[:, 1, 16, 0] - crops[:, 1, 15, 0]
    assert 0.3 < (across < 0).float().mean() < 0.7
    assert (down > 0).all()
    area = across.abs() * down
    assert area.min() > 0.3
    assert area.max() <= 1.0001
    assert crops[:, 1, 0, 0].std() > 1
