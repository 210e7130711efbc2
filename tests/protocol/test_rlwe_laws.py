"""Under RLWE every method gives what it gives under CKKS, to the last bit: the sums are the same integers."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from golden import RECORDS, SAMPLES, cases
from golden import settings as golden_settings
from golden import updates as golden_updates
from hand import Hand, served
from masked import RLWE
from paraaegis.errors import UpdateError
from paraaegis.methods import METHODS
from toy import configure, play

ENCRYPT = [name for name, method in METHODS.items() if "ckks" in method.ciphers(configure())]
KEPT = json.loads(RECORDS.read_text())
CASES = [name for name in KEPT if name.split(",")[0] in ENCRYPT]


@pytest.mark.parametrize("name", CASES)
def test_every_golden_case_has_the_same_outcome_under_rlwe(name, monkeypatch):
    """All of a record except what counts bytes, and except for releases, which say masked where CKKS has hidden."""
    real = configure
    for module in ("golden", "hand"):
        monkeypatch.setattr(f"{module}.configure", lambda *given: real(*given, RLWE))
    record = cases()[name]()
    same = ("model", "residuals", "clients")
    assert {key: record[key] for key in same} == {key: KEPT[name][key] for key in same}


def told(lines):
    """A run's lines without what is measured, and without bytes."""
    kept = [msgspec.to_builtins(line) for line in lines]
    for line in kept:
        del line["seconds"], line["bytes_up"], line["bytes_down"]
    return kept


@pytest.mark.parametrize("method", ENCRYPT)
@pytest.mark.parametrize("split", SAMPLES)
def test_metrics_and_clients_are_those_of_ckks(method, split):
    runs = [
        play(golden_updates(), *golden_settings(method), cipher, rounds=4, samples=SAMPLES[split])
        for cipher in ("protect.cipher=ckks", RLWE)
    ]
    assert told(runs[0].lines) == told(runs[1].lines)
    assert len(told(runs[0].lines)) == 4
    np.testing.assert_array_equal(runs[0].model, runs[1].model)
    for name in runs[0].engine.states:
        for one, other in [(runs[0].residual(name), runs[1].residual(name))]:
            assert (one is None) == (other is None)
            assert one is None or np.array_equal(one, other)


quick = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def small_updates(draw):
    clients, rounds, length = draw(st.integers(3, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 40))
    values = st.floats(-100, 100, width=32)
    return draw(arrays(np.float32, (clients, rounds, length), elements=values))


@pytest.mark.parametrize("method", [name for name in ENCRYPT if name != "paraaegis-feedback"])
@quick
@given(updates=small_updates(), ratio=st.sampled_from([0.0, 0.3, 1.0]))
def test_without_noise_every_method_equals_ckks(method, updates, ratio):
    both = [
        play(updates, f"protect.method={method}", f"protect.ratio={ratio}", cipher, rounds=updates.shape[1])
        for cipher in ("protect.cipher=ckks", RLWE)
    ]
    np.testing.assert_array_equal(both[0].model, both[1].model)


NOISY = ("privacy.epsilon=1.0", "privacy.clip=1.0")


@quick
@given(updates=small_updates())
def test_ratio_zero_equals_dp_fedavg_with_the_same_noise(updates):
    ours = play(updates, "protect.method=paraaegis-static", "protect.ratio=0", RLWE, *NOISY, rounds=updates.shape[1])
    theirs = play(updates, "protect.method=dp-fedavg", *NOISY, rounds=updates.shape[1])
    np.testing.assert_array_equal(ours.model, theirs.model)


@quick
@given(updates=small_updates())
def test_ratio_one_equals_everything_under_ckks(updates):
    for method in ("paraaegis-static", "paraaegis-feedback"):
        noisy = NOISY if method == "paraaegis-static" else ()
        ours = play(updates, f"protect.method={method}", "protect.ratio=1", RLWE, *noisy, rounds=updates.shape[1])
        theirs = play(updates, "protect.method=ckks-fedavg", rounds=updates.shape[1])
        np.testing.assert_array_equal(ours.model, theirs.model)


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback", "paraaegis-static"])
def test_double_is_exact_for_small_updates_on_its_own_grid(method):
    drawn = np.random.default_rng(4).integers(-(2**12), 2**12, (5, 3, 300))
    updates = (drawn * 5 / 2**17).astype(np.float32)
    found = [
        play(updates, f"protect.method={method}", "protect.ratio=0.3", cipher, f"protect.profile={profile}", rounds=3)
        for cipher, profile in (("protect.cipher=ckks", "precise"), (RLWE, "double"))
    ]
    np.testing.assert_array_equal(found[0].model, found[1].model)


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
def test_double_is_within_half_a_step_for_each_client(method):
    updates = np.random.default_rng(5).normal(0, 0.05, (5, 1, 300)).astype(np.float32)
    found = [play(updates, f"protect.method={method}", "protect.ratio=0.3", RLWE, f"protect.profile={profile}")
             for profile in ("wide", "double")]  # fmt: skip
    gap = np.abs(found[0].model - found[1].model).max()
    assert 0 < gap <= 5 * 2.0**-18 * 1.01


def test_double_refuses_larger_updates_and_names_the_profile_that_fits():
    with pytest.raises(UpdateError, match="profile 'wide' would fit"):
        play(np.full((5, 1, 20), 6.0), "protect.method=ckks-fedavg", RLWE, "protect.profile=double")


def test_clients_in_processes_of_their_own_agree_with_clients_in_one():
    setting = (golden_updates(), "protect.method=ckks-fedavg", RLWE)
    alone, together = served(Hand(*setting, rounds=4)), play(*setting, rounds=4)
    np.testing.assert_array_equal(alone.model(), together.model)
    assert told(alone.lines) == told(together.lines)
