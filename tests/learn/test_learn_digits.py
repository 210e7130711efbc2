"""Central training on real data."""

from __future__ import annotations

import pytest

from paraaegis.learn.data import load
from paraaegis.learn.models import build
from paraaegis.learn.train import TorchLearner
from paraaegis.seeds import Purpose, stream


@pytest.mark.parametrize(("model", "least"), [("mlp", 0.95), ("cnn", 0.97)])
def test_digits_are_learned_centrally(model, least):
    digits = load("digits")
    learner = TorchLearner(
        model=build(model, digits.shape, digits.classes, seed=0),
        images=digits.train_images,
        labels=digits.train_labels,
        test=(digits.test_images, digits.test_labels),
        epochs=2,
        batch=32,
        optimizer="sgd",
        lr=0.05,
        momentum=0.9,
        augment=digits.augment,
        mean=digits.mean,
        std=digits.std,
        batches=lambda number: stream(0, Purpose.BATCHES, 0, number),
        device="cpu",
    )
    weights = learner.initial()
    assert learner.evaluate(weights)["accuracy"] < 0.3
    for number in range(2):
        weights, _ = learner.train(weights, number)
    assert learner.evaluate(weights)["accuracy"] > least
