"""How fast this machine trains: the baseline for the overhead of protection."""

from __future__ import annotations

import os
import time

import numpy as np
import torch

from paraaegis.learn.models import build
from paraaegis.learn.train import TorchLearner

PIXELS, BATCH = 128, 32


def seconds_a_batch(batches: int) -> float:
    """Seconds per batch of 32 images of 128×128 pixels for ResNet-18 on all cores, after a warm-up round."""
    torch.set_num_threads(os.cpu_count() or 1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (BATCH * batches, PIXELS, PIXELS, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, BATCH * batches)
    learner = TorchLearner(
        model=build("resnet18", (PIXELS, PIXELS, 3), 10, 0),
        images=images,
        labels=labels,
        test=None,
        epochs=1,
        batch=BATCH,
        optimizer="sgd",
        lr=0.01,
        momentum=0.9,
        augment=True,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        batches=np.random.default_rng,
        device="auto",
    )
    weights, _ = learner.train(learner.initial(), 0)
    start = time.perf_counter()
    learner.train(weights, 1)
    return (time.perf_counter() - start) / batches
