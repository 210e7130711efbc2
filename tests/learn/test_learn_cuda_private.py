"""With DP-SGD the fast learner does what the plain one does, whatever the size of a piece."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from learners import Exact, check_rounds_agree, close, cuda, on_each_device, rounds
from learners import learner as any_learner
from paraaegis.learn.cuda import CudaLearner
from paraaegis.learn.train import TorchLearner
from paraaegis.types import RecordPrivacy

PRIVACY = RecordPrivacy(sample_rate=0.4, steps=4, clip=1.0, multiplier=1.0)


def learner(kind=Exact, privacy=PRIVACY, **changes):
    return any_learner(kind, **({"model": "cnn-gn", "lr": 0.1, "record_privacy": privacy} | changes))


@on_each_device
@pytest.mark.parametrize("batch", [1, 4, 64])  # 45 samples at rate 0.4: many pieces, or one that is mostly padding
@pytest.mark.parametrize("how", [{}, {"augment": False}, {"optimizer": "adam", "lr": 1e-3}])
def test_private_rounds_give_the_weights_that_the_plain_learner_gives(how, batch, device):
    fast, plain = (learner(kind, batch=batch, device=device, **how) for kind in (Exact, TorchLearner))
    check_rounds_agree(fast, plain, device)


@on_each_device
@pytest.mark.parametrize(
    "privacy",
    [RecordPrivacy(0.4, 4, 0.5, 0.0), RecordPrivacy(1.0, 2, 1e9, 0.0), RecordPrivacy(1e-9, 3, 1.0, 2.0)],
    ids=["no noise", "no clipping", "nobody drawn"],
)
def test_every_kind_of_step_agrees_with_the_plain_learner(privacy, device):
    fast, plain = (learner(kind, privacy, device=device) for kind in (Exact, TorchLearner))
    assert close(rounds(fast, fast.initial(), [0]), rounds(plain, fast.initial(), [0]), device)


@on_each_device
def test_noise_reaches_the_weights(device):
    quiet = RecordPrivacy(PRIVACY.sample_rate, PRIVACY.steps, PRIVACY.clip, 0.0)
    a, b = (learner(privacy=privacy, device=device) for privacy in (PRIVACY, quiet))
    assert not close(rounds(a, a.initial(), [0]), rounds(b, a.initial(), [0]), device)


@pytest.mark.parametrize("kind", [Exact, TorchLearner])
def test_a_training_that_failed_leaves_nothing_to_the_next(kind, monkeypatch):
    subject = learner(kind)
    expected = rounds(learner(kind), subject.initial(), [0])
    with monkeypatch.context() as patch:
        patch.setattr(subject, "_finish", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            subject.train(subject.initial(), 0)
    assert close(rounds(subject, subject.initial(), [0]), expected)


def fail(*_):
    raise RuntimeError("out of memory")


@on_each_device
def test_private_learners_in_threads_do_what_they_do_alone(device):
    make = partial(learner, device=device)
    weights = make().initial()
    alone = [rounds(make(client=client), weights, range(2)) for client in range(4)]
    subjects = [make(client=client) for client in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda subject: rounds(subject, weights, range(2)), subjects))
    for a, b in zip(alone, together, strict=True):
        assert close(b, a, device)


@cuda
def test_private_training_in_bfloat16_learns_on_cuda():
    privacy = RecordPrivacy(0.5, 8, 1.0, 0.05)
    subject = learner(CudaLearner, privacy, augment=False, device="cuda", lr=0.1, momentum=0.9)
    weights, first = subject.train(subject.initial(), 0)
    weights = rounds(subject, weights, range(1, 20))
    assert np.isfinite(weights).all()
    assert subject.train(weights, 20)[1]["loss"] < first["loss"] / 2


@cuda
def test_the_steps_of_private_training_are_captured_on_cuda():
    subject = learner(CudaLearner, device="cuda")
    assert [type(step.graph) for step in subject._steps.values()] == [torch.cuda.CUDAGraph] * 2
