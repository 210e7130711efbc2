"""A pilot of a run with record-level DP trains with the noise of the whole run."""

import pytest

from paraaegis.config import make_config
from paraaegis.errors import UpdateError
from paraaegis.planning.pilot import run_pilot
from paraaegis.privacy.records import record_privacy
from paraaegis.runs.run import federate
from record_learners import learners


def test_a_pilot_trains_with_the_noise_of_the_whole_run():
    config = make_config({}, ["privacy.unit=record", "privacy.calibration=tight", "privacy.epsilon=8",
                              "privacy.delta=1e-3", "federation.clients=3", "federation.rounds=30",
                              "protect.method=paraaegis-feedback"])  # fmt: skip
    ran = []

    def run_one(short, out):
        ran.append(short)
        federate(short, learners(), out)

    run_pilot(config, 2, run_one=run_one)
    assert len(ran) == 4
    assert {short.federation.rounds for short in ran} == {2}
    plain, *private = ran
    assert plain.privacy.unit == "client"  # plain averaging
    for short in private:
        assert record_privacy(short).multiplier == pytest.approx(record_privacy(config).multiplier, rel=2e-3)


def test_plain_averaging_that_diverges_without_dp_sgd_is_run_with_it():
    config = make_config({}, ["privacy.unit=record", "privacy.epsilon=8", "privacy.delta=1e-3", "federation.clients=3",
                              "federation.rounds=30", "protect.method=paraaegis-feedback"])  # fmt: skip
    names = []

    def run_one(short, out):
        federate(short, learners(), out)
        if short.privacy.unit == "client":
            raise UpdateError("the loss became nan")

    run_pilot(config, 2, progress=names.append, run_one=run_one)
    assert names[:2] == ["fedavg", "fedavg with DP-SGD"]
    assert len(names) == 5
