"""Learners on small random images, with the settings that tests of the fast learner share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paraaegis.learn.cuda import CudaLearner
from paraaegis.learn.models import build
from paraaegis.seeds import Purpose, stream

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 10, 45)
IMAGES = (RNG.integers(0, 200, (45, 16, 16, 3)) + 5 * LABELS[:, None, None, None]).astype(np.uint8)

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])


class Exact(CudaLearner):
    """In float32 on CUDA too, to compare with the plain learner."""

    precision = torch.float32


SETTINGS = {"epochs": 2, "batch": 8, "optimizer": "sgd", "momentum": 0.9, "mean": (0.5, 0.4, 0.3),
            "std": (0.2, 0.3, 0.4), "device": "cpu"}  # fmt: skip


def learner(kind=Exact, model="cnn", count=45, client=0, **changes):
    settings = {
        "model": build(model, (16, 16, 3), 10, 0),
        "images": IMAGES[:count],
        "labels": LABELS[:count],
        "test": (IMAGES, LABELS),
        "lr": 0.01,
        "augment": True,
        "batches": lambda number: stream(0, Purpose.BATCHES, client, number),
    }
    return kind(**(SETTINGS | settings | changes))


def rounds(subject, weights, numbers):
    for number in numbers:
        weights, _ = subject.train(weights, number)
    return weights


def check_rounds_agree(fast, plain, device):
    """Two rounds change the weights, and alike; a third one has the same loss."""
    weights = plain.initial()
    expected = rounds(plain, weights, range(2))
    assert close(rounds(fast, weights, range(2)), expected, device)
    assert not close(weights, expected, device)
    assert fast.train(weights, 3)[1]["loss"] == pytest.approx(plain.train(weights, 3)[1]["loss"], rel=1e-2)


def close(a, b, device="cpu"):
    """On CUDA, convolutions may be summed in another order, and in TF32."""
    return np.linalg.norm(a - b) <= (1e-6 if device == "cpu" else 5e-3) * np.linalg.norm(b)
