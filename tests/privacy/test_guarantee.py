"""What is promised to whom, derived from what a method really sends."""

import pytest

from paraaegis.config import make_config
from paraaegis.methods import METHODS
from paraaegis.runs.guarantees import run_guarantees
from toy import configure

NOISY = ("privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=tight", "federation.rounds=50",
         "federation.quorum=8", "privacy.noise=secret")  # fmt: skip
KINDS = {
    "fedavg": ("none", "none", "none"),
    "dp-fedavg": ("dp", "dp", "dp"),
    "varying-dp": ("dp", "dp", "dp"),
    "lwe-secagg": ("computational dp", "dp", "dp"),
    "serial": ("computational", "dp", "dp"),
    "ckks-fedavg": ("computational", "none", "none"),
    "paraaegis-static": ("dp given the partition", "none", "none"),
    "paraaegis-dynamic": ("dp given the partition", "none", "none"),
    "paraaegis-feedback": ("computational", "none", "none"),
}


@pytest.mark.parametrize("method", METHODS)
def test_each_method_promises_what_it_sends(method):
    found = run_guarantees(configure(f"protect.method={method}", *NOISY)).guarantees
    assert tuple(one.kind for one in found) == KINDS[method]
    assert [one.adversary for one in found] == ["server and network", "fellow clients", "holders of the model"]


@pytest.mark.parametrize("method", METHODS)
def test_an_epsilon_never_stands_without_adversary_unit_and_delta(method):
    for one in run_guarantees(configure(f"protect.method={method}", *NOISY)).guarantees:
        assert one.why
        if one.epsilon is not None:
            assert "dp" in one.kind
            assert (one.adversary, one.unit, one.delta) == (one.adversary, "client", 1e-5)
            assert one.epsilon == pytest.approx(1.0, abs=1e-3)


def test_the_papers_noise_is_stated_as_what_it_is_at_client_level():
    settings = ["protect.method=dp-fedavg", "federation.rounds=50", "federation.min_samples=947"]
    found = run_guarantees(make_config({}, settings))
    assert (found.noise_multiplier, found.sigma) == (pytest.approx(33.93, abs=0.01), pytest.approx(0.0717, abs=1e-4))
    assert found.guarantees[0].epsilon == pytest.approx(5288, abs=1)


def test_a_replaced_client_needs_twice_the_noise():
    one, other = (run_guarantees(configure("protect.method=dp-fedavg", *NOISY, f"privacy.unit={unit}"))
                  for unit in ("client", "client-replace"))  # fmt: skip
    assert other.sigma == pytest.approx(2 * one.sigma)
    assert other.guarantees[0].epsilon == pytest.approx(one.guarantees[0].epsilon)


def test_without_noise_nothing_is_promised():
    found = run_guarantees(make_config({}, ["protect.method=dp-fedavg", "privacy.epsilon=inf"]))
    assert {one.kind for one in found.guarantees} == {"none"}


@pytest.mark.parametrize(("noise", "kind"), [("seeded", "simulated dp"), ("secret", "dp")])
def test_seeded_noise_promises_a_simulation_and_no_more(noise, kind):
    found = run_guarantees(configure("protect.method=dp-fedavg", *NOISY, f"privacy.noise={noise}")).guarantees
    assert {one.kind.partition(",")[0] for one in found} == {kind}


@pytest.mark.parametrize(("noise", "kind"), [("seeded", "simulated computational"), ("secret", "computational")])
def test_a_seeded_order_of_votes_hides_nothing_from_who_knows_the_seed(noise, kind):
    found = run_guarantees(configure("protect.method=paraaegis-feedback", f"privacy.noise={noise}"))
    assert found.guarantees[0].kind == kind
    assert found.simulation == (noise == "seeded")
    plain = run_guarantees(configure("protect.method=ckks-fedavg", f"privacy.noise={noise}"))
    assert plain.guarantees[0].kind == "computational"
    assert not plain.simulation
