"""The benchmarks measure what they name; no test looks at a time."""

from pathlib import Path

import pytest

from paraaegis.bench.ciphers import CLIENTS
from paraaegis.bench.he import bench_he
from paraaegis.bench.round import bench_round, bench_vote


def test_he_reports_every_setting_with_its_costs_and_an_error_that_its_profile_allows():
    bench = bench_he(20_000, 1, None, lambda _: None)
    found = {setting.name: setting for setting in bench.settings}
    ciphers = ("precise", "compact", "rlwe-wide", "rlwe-double")
    assert set(found) == {*ciphers, *(f"{cipher}-all-cores" for cipher in ciphers)}
    for setting in found.values():
        assert min(setting.encrypt_ns, setting.add_ns, setting.decrypt_ns, setting.peak_mb) > 0
        assert setting.max_error < CLIENTS * 2.0**-18
    for exact in ("precise", "rlwe-wide"):
        assert found[exact].max_error == found[f"{exact}-all-cores"].max_error < CLIENTS * 2.0**-22
    assert found["compact"].bytes_up < found["precise"].bytes_up < 10
    assert (found["rlwe-wide"].bytes_up, found["rlwe-double"].bytes_up) == (6.25, 3.125)
    assert bench.ratio_all_cores["time"] > 0


def test_he_compares_rlwe_with_ckks_the_other_projects_and_plain_values():
    bench = bench_he(3_000, 1, Path("benchmarks/peers.py"), lambda _: None)
    wide, authors = (next(each for each in bench.settings if each.name == name) for name in ("rlwe-wide", "authors"))
    assert set(bench.ratios) == {"rlwe-wide", "rlwe-double"}
    assert set(bench.ratios["rlwe-wide"]) == {"precise", "compact", "authors", "nvflare", "fedavg"}
    assert bench.ratios["rlwe-wide"]["authors"] == {
        "time": authors.encrypt_ns / wide.encrypt_ns,
        "up": authors.bytes_up / wide.bytes_up,
        "down": authors.bytes_down / wide.bytes_down,
    }
    assert bench.ratios["rlwe-double"]["fedavg"] == {"up": 4 / 3.125, "down": 4 / 3.125}


def test_vote_reports_phases_and_the_size_of_a_ballot():
    bench = bench_vote(100_000, 0.1, repeats=1)
    assert set(bench.client) == {"order", "places", "select", "ballot", "noise"}
    assert set(bench.server) == {"tally", "elect"}
    assert 5_900 < bench.bytes_ballot < 6_000


@pytest.mark.parametrize(("cipher", "phases"), [("ckks", 3), ("rlwe", 4)])
def test_round_reports_shares_of_training_by_ratio(cipher, phases):
    bench = bench_round(train_seconds=100.0, length=50_000, repeats=1, settings=[f"protect.cipher={cipher}"])
    assert set(bench.overhead) == set(bench.combine_seconds) == {"0.01", "0.1", "1.0"}
    for ratio, share in bench.overhead.items():
        assert len(bench.client_seconds[ratio]) == phases
        assert share == sum(bench.client_seconds[ratio].values()) / 100
