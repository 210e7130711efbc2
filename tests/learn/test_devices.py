"""Devices by name: which there are, which are refused and when, and what training does on each."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paraaegis.config import load_config, make_config
from paraaegis.errors import ConfigError
from paraaegis.launch import run
from paraaegis.learn import cuda, devices, train
from paraaegis.learn.devices import find_device
from paraaegis.runs.experiment import torch_experiment

SMALL = ["model.name=mlp", "federation.clients=2", "federation.rounds=1", "train.epochs=1"]


@pytest.fixture
def machine(monkeypatch):
    """A machine with this many GPUs, and perhaps MPS, as torch describes it."""

    def having(gpus=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return having


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps"])
def test_the_names_of_devices(name):
    assert make_config({}, [f"engine.device={name}"]).engine.device == name


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:x", "cuda0", "mps:0", "cpu:0", "", "CPU"])
def test_any_other_name_is_refused_with_those_that_are_allowed(name):
    with pytest.raises(ConfigError) as refused:
        make_config({"engine": {"device": name}})
    assert "engine.device must be auto, cpu, cuda, cuda:N for GPU number N (from 0), or mps" in str(refused.value)
    assert f"got {name!r}" in str(refused.value)


@pytest.mark.parametrize(("gpus", "mps", "name", "found"), [
    (0, False, "auto", "cpu"),
    (0, True, "auto", "cpu"),
    (0, True, "mps", "mps"),
    (2, False, "auto", "cuda:0"),
    (2, False, "cuda", "cuda:0"),
    (2, False, "cuda:1", "cuda:1"),
    (2, False, "cpu", "cpu"),
])  # fmt: skip
def test_a_device_is_found_by_its_name(gpus, mps, name, found, machine):
    machine(gpus, mps)
    assert find_device(name) == torch.device(found)


@pytest.mark.parametrize(("gpus", "mps", "name", "there"), [
    (0, False, "cuda", "cpu"),
    (0, True, "cuda:0", "cpu, mps"),
    (2, False, "cuda:2", "cpu, cuda:0, cuda:1"),
    (1, False, "mps", "cpu, cuda:0"),
])  # fmt: skip
def test_a_device_that_is_not_there_is_refused_with_those_that_are(gpus, mps, name, there, machine):
    machine(gpus, mps)
    with pytest.raises(ConfigError, match=f"engine.device is '{name}', but torch finds only {there} here"):
        find_device(name)


def test_it_is_refused_before_any_work(machine, tmp_path):
    machine()
    with pytest.raises(ConfigError, match=r"engine\.device is 'cuda:3'"):
        run(make_config({}, ["engine.device=cuda:3", "data.folder=/nowhere"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_configuration_for_another_machine_can_be_read(machine, tmp_path):
    machine()
    (tmp_path / "study.toml").write_text('[engine]\ndevice = "cuda:3"\n')
    assert load_config(tmp_path / "study.toml").engine.device == "cuda:3"


def test_the_experiment_trains_on_the_chosen_gpu(machine, monkeypatch):
    class Made(train.TorchLearner):
        def __init__(self, **settings):
            self.device = settings["device"]

    machine(2)
    monkeypatch.setattr(cuda, "CudaLearner", Made)
    monkeypatch.setattr(devices, "gpu_name", str)
    experiment = torch_experiment(make_config({}, [*SMALL, "engine.device=cuda:1"]))
    assert [one.device for one in experiment.learners.values()] == ["cuda:1", "cuda:1"]
    assert experiment.gpu == "cuda:1"


class LikeMps(str):
    """The CPU under the name that a learner checks."""

    type = "mps"


class NoFloat64(TorchDispatchMode):
    """Refuses what MPS does not have."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for part in tree_leaves((args, result)):
            if isinstance(part, torch.Tensor) and part.dtype == torch.float64:
                raise TypeError(f"{function} got or made a tensor of float64")
        return result


@pytest.fixture
def on_mps(monkeypatch):
    """A client's learner that takes the CPU for MPS."""
    monkeypatch.setattr(train, "find_device", lambda _: LikeMps("cpu"))

    def make(*settings):
        return torch_experiment(make_config({}, [*SMALL, "engine.device=cpu", *settings])).learners["client-0"]

    return make


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_on_mps_nothing_is_float64(optimizer, on_mps):
    with NoFloat64():
        learner = on_mps(f"train.optimizer={optimizer}", "train.schedule=cosine")
        trained, metrics = learner.train(learner.initial(), 1)
        learner.load(learner.state())
        assert learner.evaluate(trained)["accuracy"] > 0.3
    assert metrics["loss"] > 0


def test_elsewhere_losses_are_added_up_in_float64():
    learner = torch_experiment(make_config({}, [*SMALL, "engine.device=cpu"])).learners["client-0"]
    with NoFloat64(), pytest.raises(TypeError, match="float64"):
        learner.train(learner.initial(), 1)


def test_on_mps_one_client_trains_at_a_time(on_mps, monkeypatch):
    learner, seen = on_mps(), []
    for name in ("_begin", "_normal"):
        original = getattr(learner, name)
        monkeypatch.setattr(learner, name, lambda *given, to=original: seen.append(train._mps.locked()) or to(*given))
    learner.evaluate(learner.train(learner.initial(), 1)[0])
    assert all(seen)
    assert len(seen) > 2
    assert not train._mps.locked()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_learner_stays_on_its_gpu():
    last = devices.devices()[-1]
    learner = torch_experiment(make_config({}, [*SMALL, f"engine.device={last}"])).learners["client-0"]
    learner.train(learner.initial(), 1)
    assert {str(tensor.device) for tensor in learner._model.parameters()} == {last}
    assert str(learner._stream.device) == last
