"""A pilot's noise is that of the samples which its clients have."""

import numpy as np
import pytest

from machine import MACHINE
from paraaegis.config import make_config
from paraaegis.planning.pilot import run_pilot
from paraaegis.planning.planner import Request, recommend
from paraaegis.privacy.budget import noise
from paraaegis.runs.run import federate
from toy import learners_of

SAMPLES = [40, 7, 90]
STATIC = ("protect.method=paraaegis-static", "privacy.calibration=paper")


@pytest.fixture(scope="module")
def piloted():
    """A study with noise, its pilot, and the configurations that the pilot ran."""
    config, ran = make_config({}, ["federation.clients=3", "federation.rounds=20", *STATIC]), []
    updates = np.random.default_rng(0).uniform(0, 0.3, (3, 400)).astype(np.float32)

    def run_one(chosen, out):
        ran.append(chosen)
        federate(chosen, learners_of(updates, SAMPLES), out)

    return config, run_pilot(config, 2, run_one=run_one), ran


def test_sites_of_unequal_size_are_piloted_with_the_noise_of_the_smallest(piloted):
    config, pilot, ran = piloted
    known = make_config(config.tables(), [f"federation.min_samples={min(SAMPLES)}"])
    assert pilot.min_samples == min(SAMPLES)
    assert ran[-1].privacy.sigma == pytest.approx(noise(known).sigmas[0])


def test_a_plan_with_a_pilot_guarantees_what_its_samples_allow(piloted):
    config, pilot, _ = piloted
    known = make_config(config.tables(), [f"federation.min_samples={min(SAMPLES)}"])
    assert recommend(config, Request(length=400), MACHINE, pilot).sigma == pytest.approx(noise(known).sigmas[0])
