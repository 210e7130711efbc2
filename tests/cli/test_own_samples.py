"""The paper's noise of a study with learners of one's own depends on their samples, never on those of digits."""

import sys

import pytest

from commands import call
from machine import MACHINE
from paraaegis.config import load_config
from paraaegis.planning import measure

STUDY = """
learner = "nowhere:make"
[federation]
names = ["alpha", "beta"]
[privacy]
calibration = "paper"
[protect]
method = "paraaegis-static"
"""


@pytest.fixture
def paraaegis(monkeypatch, capsys, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: call(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize("command", [("privacy",), ("plan", "--model", "1000")])
def test_noise_that_depends_on_unknown_samples_is_not_guaranteed(paraaegis, command):
    status, out, err = paraaegis(command[0], "study.toml", *command[1:])
    assert (status, out) == (2, "")
    assert "depends on the smallest number of samples of any client" in err
    assert "set federation.min_samples" in err
    assert "measuring" not in err


@pytest.mark.parametrize("known", ["federation.min_samples=40", "privacy.calibration=tight"])
def test_noise_is_guaranteed_once_it_is_known(paraaegis, known):
    status, out, _ = paraaegis("privacy", "study.toml", "--set", known)
    assert status == 0
    assert "σ" in out


def test_a_built_in_models_size_is_not_that_of_ones_own(paraaegis):
    status, _, err = paraaegis("plan", "study.toml", "--model", "cnn", "--set", "privacy.calibration=tight")
    assert status == 2
    assert "--model must be a number of values with learner" in err


SITES = """
import torch
from paraaegis import torch_learner

def make(config, client):
    size = 30 if client == "alpha" else 90
    inputs = torch.randn(size, 50, generator=torch.Generator().manual_seed(size))
    torch.manual_seed(0)
    model = torch.nn.Linear(50, 2)
    labels = (inputs[:, 0] > 0).long()
    accuracy = lambda model: {"accuracy": (model(inputs).argmax(1) == labels).float().mean()}
    return torch_learner(model, data=(inputs, labels), evaluate=accuracy)
"""


def test_a_pilot_counts_the_samples_of_unequal_sites_and_its_plan_keeps_them(paraaegis, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "measure", lambda *_, **__: MACHINE)
    (tmp_path / "unequal_sites.py").write_text(SITES)
    (tmp_path / "study.toml").write_text(STUDY.replace("nowhere", "unequal_sites"))
    status, _, err = paraaegis("plan", "study.toml", "--pilot", "--pilot-rounds", "2", "--write", "plan.toml",
                               "--set", "privacy.epsilon=1000")  # fmt: skip
    assert status == 0, err
    assert load_config(tmp_path / "plan.toml").federation.min_samples == 30
    assert paraaegis("privacy", "plan.toml")[0] == 0


def test_a_site_with_too_few_samples_is_refused_with_what_can_be_done(paraaegis, tmp_path):
    (tmp_path / "few_samples.py").write_text(SITES)
    (tmp_path / "study.toml").write_text(STUDY.replace("nowhere", "few_samples"))
    status, _, err = paraaegis("run", "study.toml", "--set", "federation.min_samples=50", "--out", "run")
    assert status == 2
    assert "alpha has 30 samples, but needs at least 50: lower federation.min_samples, or leave alpha out" in err
