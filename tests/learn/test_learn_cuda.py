"""The fast learner does what the plain one does. On a CPU its steps run uncaptured; on CUDA, as it is meant to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from learners import Exact, check_rounds_agree, close, cuda, learner, on_each_device, rounds
from paraaegis.config import make_config
from paraaegis.errors import RunError, UpdateError
from paraaegis.learn.cuda import CudaLearner, take_turns
from paraaegis.learn.train import TorchLearner
from paraaegis.runs.experiment import at_a_time, torch_experiment
from paraaegis.types import Learner


@pytest.fixture(autouse=True)
def one_thread():
    """As engines do, which run a learner a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@on_each_device
@pytest.mark.parametrize("how", [{}, {"augment": False}, {"momentum": 0.0}, {"optimizer": "adam", "lr": 1e-4}])
def test_rounds_give_the_weights_that_the_plain_learner_gives(how, device):
    fast, plain = learner(device=device, **how), learner(TorchLearner, device=device, **how)
    check_rounds_agree(fast, plain, device)


@on_each_device
@pytest.mark.parametrize(
    ("count", "batch", "steps"), [(17, 8, 4), (18, 8, 6), (16, 8, 4), (5, 8, 2), (3, 1, 6), (9, 8, 2)]
)
def test_batches_of_every_size_are_trained_on_except_a_last_one_of_one_sample(count, batch, steps, device):
    fast, plain = (learner(kind, count=count, batch=batch, device=device) for kind in (Exact, TorchLearner))
    assert close(rounds(fast, fast.initial(), [0]), rounds(plain, fast.initial(), [0]), device)
    assert fast.state()["buffer.1.num_batches_tracked"] == steps


@on_each_device
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_loaded_state_continues_and_either_learner_takes_the_others(optimizer, device):
    how = {"optimizer": optimizer, "lr": 1e-3, "device": device}
    veteran = learner(**how)
    weights = rounds(veteran, veteran.initial(), range(2))
    state = veteran.state()
    expected = rounds(veteran, weights, [2])
    for kind in (Exact, TorchLearner):
        fresh = learner(kind, **how)
        fresh.load(state)
        assert close(rounds(fresh, weights, [2]), expected, device)
        assert {name: array.shape for name, array in fresh.state().items()} == {
            name: array.shape for name, array in state.items()
        }
        veteran.load(fresh.state())
    assert veteran.state()["buffer.1.num_batches_tracked"] == 36
    assert all(array.flags.c_contiguous for array in veteran.state().values())


@on_each_device
def test_a_new_learner_remembers_nothing_and_its_state_forgets_what_was_learned(device):
    subject, new = learner(device=device), learner(device=device)
    assert not any(array.any() for array in new.state().values())
    first = rounds(subject, subject.initial(), [0])
    assert subject.state()["optimizer.momentum_buffer.0.weight"].any()
    subject.load(new.state())
    assert close(rounds(subject, subject.initial(), [0]), first, device)


@on_each_device
def test_what_does_not_fit_is_refused(device):
    subject = learner(device=device)
    for call in (lambda: subject.train(subject.initial()[:-1], 0), lambda: subject.evaluate(subject.initial()[:-1])):
        with pytest.raises(UpdateError, match="got shape"):
            call()
    with pytest.raises(RunError, match="must fit its model and sgd"):
        subject.load({"surplus": np.zeros(1)})


@on_each_device
def test_evaluation_agrees_with_the_plain_learners_and_disturbs_nothing(device):
    quiet, watched, plain = learner(device=device), learner(device=device), learner(TorchLearner, device=device)
    a = b = quiet.initial()
    for number in range(3):
        assert watched.evaluate(b * 1.1) == pytest.approx(plain.evaluate(b * 1.1), rel=1e-2, abs=0.05)
        a, _ = quiet.train(a, number)
        b, _ = watched.train(b, number)
    assert close(a, b, device)
    assert learner(test=None, device=device).evaluate(a) == {}


@on_each_device
def test_nothing_writes_to_the_vectors_it_is_given_or_gave(device):
    subject: Learner = learner(device=device)
    weights = subject.initial()
    weights.flags.writeable = False
    trained, _ = subject.train(weights, 0)
    kept = trained.copy()
    subject.evaluate(weights)
    subject.train(weights, 1)
    assert np.array_equal(trained, kept)
    assert trained.dtype == np.float32


@on_each_device
def test_learners_in_threads_do_what_they_do_alone(device):
    weights = learner().initial()

    def work(subject):
        return rounds(subject, weights, range(3)), subject.evaluate(weights)["loss"]

    alone = [work(learner(client=client, device=device)) for client in range(4)]
    subjects = [learner(client=client, device=device) for client in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, subjects))
    for (a, loss), (b, again) in zip(alone, together, strict=True):
        assert close(b, a, device)
        assert again == pytest.approx(loss, rel=1e-3)


def test_learners_in_turns_do_what_they_do_alone():
    busy, most = set(), 0

    class Watched(Exact):
        def _write(self, weights):
            nonlocal most
            busy.add(self)
            most = max(most, len(busy))
            time.sleep(0.02)  # the others come meanwhile, if they may
            super()._write(weights)

        def _read(self):
            vector = super()._read()
            busy.remove(self)
            return vector

    weights = learner().initial()
    alone = [rounds(learner(client=client), weights, [0]) for client in range(5)]
    subjects = [learner(Watched, client=client) for client in range(5)]
    take_turns(subjects, 2)
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(lambda subject: rounds(subject, weights, [0]), subjects))
    assert most == 2
    for a, b in zip(alone, together, strict=True):
        assert close(b, a)


@pytest.mark.parametrize(
    ("method", "clients", "expected"),
    [
        ("fedavg", 10, 10),
        ("ckks-fedavg", 10, 5),
        ("serial", 5, 3),
        ("paraaegis-static", 10, 10),
        ("ckks-fedavg", 1, 1),
        ("ckks-fedavg", 50, 5),
    ],
)
def test_clients_that_encrypt_all_at_once_share_a_gpu_by_halves(method, clients, expected):
    config = make_config({"federation": {"clients": clients}, "protect": {"method": method}, "engine": {"workers": 10}})
    assert at_a_time(config) == expected


def test_a_classroom_lets_its_learners_share_one_gpu(monkeypatch):
    monkeypatch.setattr("paraaegis.learn.train.TorchLearner", Exact)  # which runs on a CPU too
    config = make_config({"federation": {"clients": 4}, "protect": {"method": "ckks-fedavg"}, "engine": {"workers": 4}})
    turns = {learner.turns for learner in torch_experiment(config).learners.values()}
    assert [one._value for one in turns] == [2]


@cuda
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_bfloat16_learns_on_cuda(optimizer):
    subject = learner(CudaLearner, optimizer=optimizer, lr=0.002, augment=False, device="cuda")
    weights, first = subject.train(subject.initial(), 0)
    weights = rounds(subject, weights, range(1, 20))
    assert subject.train(weights, 20)[1]["loss"] < first["loss"] / 2


@cuda
def test_bfloat16_stays_near_float32_on_cuda():
    plain, fast = (learner(kind, device="cuda", epochs=1) for kind in (TorchLearner, CudaLearner))
    start = plain.initial()
    moved = rounds(plain, start, [0]) - start
    assert np.linalg.norm(rounds(fast, start, [0]) - start - moved) < 0.2 * np.linalg.norm(moved)


@cuda
def test_more_learners_than_torch_has_streams_train_at_once_on_cuda():
    subjects = [learner(client=client, device="cuda", epochs=1) for client in range(40)]
    weights = subjects[0].initial()
    with ThreadPoolExecutor(40) as pool:
        together = list(pool.map(lambda subject: rounds(subject, weights, [0]), subjects))
    for client in (0, 8, 39):
        plain = learner(TorchLearner, client=client, device="cuda", epochs=1)
        assert close(together[client], rounds(plain, weights, [0]), "cuda")
