"""On digits, seed 0, the methods stand to each other as the paper says, and feedback as this project claims."""

from pathlib import Path

import pytest
import torch

from paraaegis.config import load_config
from paraaegis.launch import run

DIGITS = Path(__file__).parents[2] / "configs" / "digits.toml"
METHODS = ["fedavg", "dp-fedavg", "ckks-fedavg", "paraaegis-static", "paraaegis-feedback"]


def configuration(method):
    """Seed 0, ratio 10%, and half of the file's rounds, which are enough to tell."""
    config = load_config(DIGITS, [f"protect.method={method}", "federation.rounds=7"])
    assert (config.seed, config.protect.ratio) == (0, 0.1)
    return config


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("accuracy")
    for method in METHODS:
        run(configuration(method), root / method)
    return root


@pytest.fixture(scope="module")
def percent(folders):
    """Final accuracy of each method."""
    return {method: 100 * run_again(folders, method).metrics["accuracy"] for method in METHODS}


def run_again(folders, method):
    """The result that lies in the folder."""
    return run(configuration(method), folders / method)


def test_fedavg_learns_digits(percent):
    assert percent["fedavg"] > 97


def test_ckks_fedavg_ends_with_fedavgs_very_model(percent, folders):
    assert abs(percent["ckks-fedavg"] - percent["fedavg"]) <= 1
    ours, theirs = (torch.load(folders / name / "model.pt", weights_only=True) for name in ("ckks-fedavg", "fedavg"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_dp_fedavg_is_far_below(percent):
    assert percent["dp-fedavg"] < 50


def test_static_at_a_tenth_lies_between(percent):
    assert percent["dp-fedavg"] + 20 < percent["paraaegis-static"] < percent["fedavg"]


def test_feedback_at_a_tenth_is_within_two_points_of_fedavg(percent):
    assert percent["paraaegis-feedback"] >= percent["fedavg"] - 2
