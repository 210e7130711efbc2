"""What is promised to whom, derived from what a method really sends."""

import pytest

from paraaegis.config import Privacy, make_config
from paraaegis.methods import METHODS
from paraaegis.privacy.calibrate import epsilon_of, mu_of
from paraaegis.privacy.ledger import Release
from paraaegis.privacy.record_budget import training_release
from paraaegis.privacy.record_guarantee import guarantees
from paraaegis.privacy.records import Step, epsilon_of_steps
from paraaegis.runs.guarantees import run_guarantees
from paraaegis.types import RecordPrivacy
from toy import configure

NOISY = ("privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=tight", "federation.rounds=50",
         "federation.quorum=8", "privacy.noise=secret")  # fmt: skip
ADVERSARIES = ["server and network", "fellow clients", "holders of the model", "server with 1 client"]
SUMS = "computational, sums only"
KINDS = {  # against each of them under CKKS; under RLWE, where that differs, against the server with a client
    "fedavg": ("none", "none", "none", "none"),
    "dp-fedavg": ("dp", "dp", "dp", "dp"),
    "varying-dp": ("dp", "dp", "dp", "dp"),
    "lwe-secagg": ("computational dp", "dp", "dp", "computational dp"),
    "serial": ("computational", "dp", "dp", "dp"),
    "ckks-fedavg": ("computational", "none", "none", "none"),
    "paraaegis-static": ("dp given the partition", "none", "none", "none"),
    "paraaegis-dynamic": ("dp given the partition", "none", "none", "none"),
    "paraaegis-feedback": ("computational", "none", "none", "none"),
}
RLWE = {"serial": "computational dp", "ckks-fedavg": SUMS, "paraaegis-static": SUMS, "paraaegis-dynamic": SUMS,
        "paraaegis-feedback": SUMS}  # fmt: skip
TWICE = 2.155  # ε at twice the sensitivity, where it is 1 at the clip
DP_SGD = ("privacy.unit=record", "privacy.epsilon=4", "privacy.sample_rate=0.25")


def found(method, *settings):
    return run_guarantees(configure(f"protect.method={method}", *NOISY, *settings)).guarantees


@pytest.mark.parametrize("cipher", ["ckks", "rlwe"])
@pytest.mark.parametrize("method", METHODS)
def test_each_method_promises_what_it_sends(method, cipher):
    expected = [*KINDS[method][:3], RLWE.get(method, KINDS[method][3]) if cipher == "rlwe" else KINDS[method][3]]
    rows = found(method, f"protect.cipher={cipher}", "federation.quorum=9")
    for unit in ("client", "record"):
        assert [one.kind for one in rows if one.unit == unit] == expected
        assert [one.adversary for one in rows if one.unit == unit] == ADVERSARIES


@pytest.mark.parametrize("method", METHODS)
def test_an_epsilon_never_stands_without_adversary_unit_and_delta(method):
    for one in found(method):
        assert one.why
        assert one.adversary in ADVERSARIES
        assert (one.epsilon is None) == (one.delta is None) == ("dp" not in one.kind)
        if one.epsilon is not None:
            assert one.delta == 1e-5
            assert one.epsilon == pytest.approx({"client": 1.0, "record": TWICE}[one.unit], abs=1e-3)


@pytest.mark.parametrize("cipher", ["ckks", "rlwe"])
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"lwe-secagg", "varying-dp"}))
def test_with_record_level_dp_every_adversary_meets_an_epsilon_per_record(method, cipher):
    rows = found(method, *DP_SGD, f"protect.cipher={cipher}", "federation.quorum=9")
    records = [one for one in rows if one.unit == "record"]
    assert [(one.adversary, one.kind, one.delta) for one in records] == [(who, "dp", 1e-5) for who in ADVERSARIES]
    assert all(3.9 < one.epsilon <= 4 for one in records)
    assert "declines" in records[0].why
    assert not any("dp" in one.kind for one in rows if one.unit == "client")  # the noise is in the training


def test_seeded_training_is_a_simulation():
    records = [one for one in found("fedavg", *DP_SGD, "privacy.noise=seeded") if one.unit == "record"]
    assert {one.kind for one in records} == {"simulated dp"}


def test_records_of_one_person_get_an_epsilon_per_person():
    one, five = (found("fedavg", *DP_SGD, f"privacy.group={count}")[-1] for count in (1, 5))
    assert (one.unit, five.unit) == ("record", "person with up to 5 records")
    assert 3.9 < five.epsilon <= 4


def test_noise_that_clients_share_protects_less_against_a_server_that_they_help():
    """With a client's key it opens an upload, which has a seventh of the variance of a sum over eight."""
    rows = found("ckks-fedavg", "privacy.inside_clip=1.0")
    fellow, helped = rows[1], rows[3]
    assert fellow.epsilon == pytest.approx(1.0, abs=1e-3)
    assert helped.epsilon == pytest.approx(epsilon_of(mu_of(1.0, 1e-5) * 7**0.5, 1e-5), rel=1e-3)
    masked = found("ckks-fedavg", "privacy.inside_clip=1.0", "protect.cipher=rlwe", "federation.quorum=9")[3]
    assert (masked.kind, masked.epsilon) == ("computational dp", pytest.approx(1.0, abs=1e-3))


def training(number, sigma=2.0):
    return training_release(RecordPrivacy(0.25, 4, 1.0, sigma), "a", number, 0, simulated=False)


def update(number, sigma=0.0, **seen):
    seen = dict.fromkeys(("server", "clients"), "noised" if sigma else "clear") | seen
    return Release(round=number, client="a", what="update", clip=1.0 if sigma else 0.0, sigma=sigma, **seen)


RECORD = Privacy(unit="record", calibration="tight")


def of_records(*releases):
    return [one for one in guarantees(releases, RECORD) if one.unit == "record"]


def test_a_ledger_with_both_kinds_of_training_counts_noised_updates_as_an_upper_bound():
    alone = of_records(training(1), update(1))[0].epsilon
    both = of_records(training(1), update(1), update(2, sigma=8.0))[0].epsilon
    assert alone < both < alone + epsilon_of(2 / 8.0, 1e-5)
    assert both == pytest.approx(epsilon_of_steps([(Step(0.25, 2.0), 4), (Step(1.0, 4.0), 1)], 1e-5))


def test_an_update_without_any_noise_voids_the_epsilon_of_the_others_and_says_so():
    for row in of_records(training(1), update(1), update(2)):
        assert (row.kind, row.epsilon) == ("none", None)
        assert row.why.startswith("1 update came from training without DP-SGD")
    hidden = of_records(training(1), update(1), update(2, server="hidden"))
    assert [row.kind for row in hidden] == ["computational", "none", "none", "none"]


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (Release(round=2, client="a", what="votes", server="hidden", clients="clear"), "dp given the partition"),
        (Release(round=1, client="a", what="votes", server="hidden", clients="clear"), "dp"),
    ],
)
def test_the_conditions_of_noised_updates_hold_for_a_record_too(other, kind):
    rows = of_records(training(1), update(1), update(2, sigma=8.0), other)
    assert {row.kind for row in rows} == {kind}
    assert all("except 1 update with noise on the update" in row.why for row in rows)
    assert [row.adversary for row in rows if "declines" in row.why] == [ADVERSARIES[0], ADVERSARIES[3]]


def test_masks_that_a_record_relies_on_are_a_condition_of_its_epsilon():
    masked = update(2, sigma=8.0, server="summed", clients="summed")
    assert of_records(training(1), update(1), masked)[0].kind == "computational dp"


def test_noise_too_small_for_the_distributions_is_added_up():
    steps = [(Step(0.25, 2.0), 4), (Step(1.0, 0.01), 1)]
    apart = epsilon_of_steps(steps[:1], 5e-6) + epsilon_of(100.0, 5e-6)
    assert epsilon_of_steps(steps, 1e-5) == pytest.approx(apart)


def test_the_papers_noise_is_stated_as_what_it_is_at_client_level():
    settings = ["protect.method=dp-fedavg", "federation.rounds=50", "federation.min_samples=947",
                "privacy.calibration=paper"]  # fmt: skip
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
