"""The cost model prices what RLWE sends next to its masked values: shares up, shares and their sums down."""

import numpy as np
import pytest

from paraaegis.planning import measure as module
from paraaegis.planning.cost import Setting, estimate
from paraaegis.planning.measure import measure
from toy import play

LENGTH, ROUNDS = 30_000, 3
METHODS = {"ckks-fedavg": 1.0, "paraaegis-feedback": 0.01, "paraaegis-static": 0.2}


@pytest.fixture(scope="module", params=["wide", "double"])
def machine(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE", 60_000)
        patch.setattr(module, "POINTS", ((20_000, 0.1), (60_000, 0.01), (60_000, 0.2)))
        return measure(request.param, ("fedavg", *METHODS))


@pytest.mark.parametrize("clients", [5, 10])
@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_predicted_for_any_number_of_clients(machine, method, clients):
    updates = np.random.default_rng(0).normal(0, 0.01, (clients, 1, LENGTH)).astype(np.float32)
    given = (f"protect.method={method}", f"protect.ratio={METHODS[method]}", "protect.cipher=rlwe",
             f"protect.profile={machine.profile}", "privacy.epsilon=8.0", "privacy.clip=1.0",
             "privacy.calibration=tight")  # fmt: skip
    played = play(updates, *given, rounds=ROUNDS)
    setting = Setting(method=method, length=LENGTH, clients=clients, rounds=ROUNDS, ratio=METHODS[method])
    found = estimate(machine, setting)
    for direction, expected in (("up", found.bytes_up), ("down", found.bytes_down)):
        sent = sum(sum(getattr(line, f"bytes_{direction}").values()) for line in played.lines) / clients
        assert expected == pytest.approx(sent, rel=0.08)


def test_opening_is_an_exchange_of_its_own(machine):
    exchanges = {name: machine.methods[name].exchanges for name in METHODS}
    assert exchanges == {"ckks-fedavg": 2, "paraaegis-feedback": 3, "paraaegis-static": 3}
