"""The measured machine predicts what the protocol really sends, and gives every phase a cost."""

import numpy as np
import pytest

from paraaegis.methods import METHODS
from paraaegis.planning import measure as module
from paraaegis.planning.cost import Setting, estimate, priced_as
from paraaegis.planning.measure import measure
from toy import play

LENGTH, ROUNDS = 30_000, 3
UPDATES = np.random.default_rng(0).normal(0, 0.01, (5, 1, LENGTH)).astype(np.float32)
SETTINGS = {
    "fedavg": (),
    "dp-fedavg": (),
    "varying-dp": (),
    "lwe-secagg": (),
    "serial": (),
    "ckks-fedavg": (),
    "paraaegis-static": ("protect.ratio=0.2",),
    "paraaegis-dynamic": ("protect.ratio=0.2", "protect.decay=0.7"),
    "paraaegis-feedback": ("protect.ratio=0.01",),
}


@pytest.fixture(scope="module")
def machine():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE", 60_000)
        patch.setattr(module, "POINTS", ((20_000, 0.1), (60_000, 0.01), (60_000, 0.2)))
        return measure()


@pytest.mark.parametrize("method", SETTINGS)
def test_bytes_are_predicted_for_every_method_and_ratio(machine, method):
    noise = ("privacy.epsilon=8.0", "privacy.clip=1.0", "privacy.calibration=tight")
    played = play(UPDATES, f"protect.method={method}", *SETTINGS[method], *noise, rounds=ROUNDS)
    given = dict(setting.removeprefix("protect.").split("=") for setting in SETTINGS[method])
    lever = {name: float(value) for name, value in given.items()}
    found = estimate(machine, Setting(method=method, length=LENGTH, clients=5, rounds=ROUNDS, **lever))
    for direction, expected in (("up", found.bytes_up), ("down", found.bytes_down)):
        sent = sum(sum(getattr(line, f"bytes_{direction}").values()) for line in played.lines) / 5
        assert expected == pytest.approx(sent, rel=0.05)


def test_every_method_has_a_cost_that_is_not_negative(machine):
    assert set(machine.methods) == {priced_as(name) for name in METHODS}
    for cost in machine.methods.values():
        assert all(part >= 0 for line in (*cost.phases.values(), cost.crowd) for part in line)
        assert sum(cost.crowd) > 0
        assert sum(cost.phases["protect"]) > 0
    assert machine.methods["paraaegis-static"].exchanges == 2
    assert machine.methods["ckks-fedavg"].exchanges == 1


def test_more_values_and_more_ciphertexts_are_predicted_to_take_longer(machine):
    def seconds(**changed):
        fields = {"method": "paraaegis-static", "length": 10**6, "clients": 4, "rounds": 1, "ratio": 0.01} | changed
        return estimate(machine, Setting(**fields)).seconds

    assert seconds(length=10**7) > seconds()
    voting = ("paraaegis-static", "paraaegis-feedback")  # together: one short measurement may be lost in noise
    few, many = (sum(seconds(method=method, ratio=ratio) for method in voting) for ratio in (0.01, 0.5))
    assert many > few
