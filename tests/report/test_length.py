"""The size of a model is read from what a round's record shows of it, and from runs of the same model otherwise."""

import numpy as np

from machine import MACHINE
from paraaegis.report.collect import collect
from paraaegis.report.explorer import explorer
from paraaegis.runs.run import federate
from toy import ToyLearner, configure

NOISE = ("privacy.epsilon=8.0", "privacy.clip=1.0", "privacy.calibration=tight")
FORMS = {"plain": (), "ring": ("protect.lwe=ring", *NOISE), "matrix": ("protect.lwe=matrix", *NOISE)}


def test_every_run_of_a_model_shows_its_size(tmp_path):
    for name, settings in FORMS.items():
        learners = {f"client-{i}": ToyLearner(np.full((1, 400), 0.5), 10) for i in range(3)}
        method = "protect.method=lwe-secagg" if settings else "protect.method=fedavg"
        shared = ("federation.clients=3", "federation.rounds=1", "federation.min_samples=5")
        federate(configure(*shared, method, *settings), learners, tmp_path / name)
    runs = collect([tmp_path])[0]
    assert [run["length"] for run in explorer(MACHINE, runs)["measured"]] == [400] * 3
