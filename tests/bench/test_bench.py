"""The benchmarks measure what they name; no test looks at a time."""

from paraaegis.bench.he import CLIENTS, bench_he
from paraaegis.bench.round import bench_round, bench_vote


def test_he_reports_every_setting_with_its_costs_and_an_error_that_its_profile_allows():
    bench = bench_he(20_000, 1, None, lambda _: None)
    found = {setting.name: setting for setting in bench.settings}
    assert set(found) == {"precise", "compact", "precise-all-cores", "compact-all-cores"}
    for setting in found.values():
        assert min(setting.encrypt_ns, setting.add_ns, setting.decrypt_ns, setting.peak_mb) > 0
        assert setting.max_error < 1e-5
    assert found["precise"].max_error < CLIENTS * 2.0**-22
    assert found["compact"].bytes_up < found["precise"].bytes_up < 10
    assert bench.ratio_all_cores["time"] > 0


def test_vote_reports_phases_and_the_size_of_a_ballot():
    bench = bench_vote(100_000, 0.1, repeats=1)
    assert set(bench.client) == {"order", "places", "select", "ballot", "noise"}
    assert set(bench.server) == {"tally", "elect"}
    assert 5_900 < bench.bytes_ballot < 6_000


def test_round_reports_shares_of_training_by_ratio():
    bench = bench_round(train_seconds=100.0, length=50_000, repeats=1)
    assert set(bench.overhead) == set(bench.combine_seconds) == {"0.01", "0.1", "1.0"}
    for ratio, share in bench.overhead.items():
        assert share == sum(bench.client_seconds[ratio].values()) / 100
