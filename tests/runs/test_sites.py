"""What each site reports is kept next to the mean, and a metric that a site does not have leaves the mean alone."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraaegis.protocol.round_server import _means
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.result import read_done
from paraaegis.runs.run import federate
from screening import Screening
from toy import ToyLearner, configure

VALUES = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.floats(0, 1) | st.just(math.nan), min_size=1)


def config(clients, *more):
    return configure(f"federation.clients={clients}", "federation.rounds=3", "protect.method=fedavg", *more)


def sites(count=3):
    """As many sites, the last of which tests on one class."""
    return {f"client-{index}": Screening(index, single=index == count - 1) for index in range(count)}


class Measured(ToyLearner):
    """Its metrics are given."""

    def __init__(self, metrics, samples=10):
        super().__init__([np.ones(5)], samples)
        self.metrics = metrics

    def evaluate(self, weights):
        return self.metrics


@given(VALUES, st.lists(st.integers(1, 1000), min_size=4, max_size=4))
def test_a_mean_is_over_the_numbers_that_were_reported(values, counts):
    weights = dict(zip("abcd", counts, strict=True))
    mean = _means({site: {"auc": value} for site, value in values.items()}, weights)["auc"]
    known = {site: value for site, value in values.items() if not math.isnan(value)}
    if not known:
        assert math.isnan(mean)
        return
    expected = np.average(list(known.values()), weights=[weights[site] for site in known])
    assert mean == pytest.approx(expected)
    assert min(known.values()) - 1e-9 <= mean <= max(known.values()) + 1e-9


def test_an_infinite_value_is_not_hidden_by_the_other_sites():
    means = _means({"a": {"perplexity": math.inf}, "b": {"perplexity": 4.0}}, {"a": 1, "b": 1})
    assert math.isnan(means["perplexity"])


def test_means_keep_the_order_in_which_metrics_were_reported():
    assert list(_means({"a": {"recall": 1.0, "auc": 0.5}, "b": {"f1": 0.1}}, {"a": 1, "b": 1})) == [
        "recall",
        "auc",
        "f1",
    ]


def test_one_site_without_auc_does_not_hide_the_others(tmp_path):
    result = federate(config(3), sites(), tmp_path)
    assert math.isnan(result.sites["client-2"]["auc"])
    assert "recall_0" not in result.sites["client-2"]
    first, second = (result.sites[name] for name in ("client-0", "client-1"))
    for name in ("auc", "recall_0"):
        assert result.metrics[name] == pytest.approx((40 * first[name] + 50 * second[name]) / 90)
    assert result.samples == {"client-0": 40, "client-1": 50, "client-2": 60}


def test_what_sites_reported_is_read_back_from_the_folder(tmp_path):
    records = []
    result = federate(config(3), sites(), tmp_path, on_record=records.append)
    folder = RunFolder(tmp_path)
    np.testing.assert_equal([record.sites for record in folder.read_records()], [record.sites for record in records])
    np.testing.assert_equal(read_done(folder).sites, result.sites)
    assert read_done(folder).samples == result.samples


@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_run_keeps_every_sites_metrics(stop, tmp_path):
    def interrupt(record):
        if record.round == stop:
            raise KeyboardInterrupt

    whole = federate(config(3), sites(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        federate(config(3), sites(), tmp_path / "cut", on_record=interrupt)
    resumed = federate(config(3), sites(), tmp_path / "cut")
    np.testing.assert_equal((resumed.metrics, resumed.sites), (whole.metrics, whole.sites))
    assert resumed.samples == whole.samples
    records = [RunFolder(tmp_path / name).read_records() for name in ("whole", "cut")]
    np.testing.assert_equal(*[[record.sites for record in some] for some in records])


def test_the_lines_of_a_single_reporter_are_as_before(tmp_path):
    learners = {"a": Measured({"accuracy": 0.5}), "b": Measured({})}
    result = federate(config(2), learners, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    assert not any("sites" in line for line in lines)
    assert (result.sites, result.samples) == ({}, {})


def test_a_metric_that_no_site_has_is_named_and_empty(tmp_path):
    learners = {name: Measured({"auc": math.nan, "loss": 1.0}) for name in ("a", "b")}
    result = federate(config(2), learners, tmp_path)
    assert math.isnan(result.metrics["auc"])
    assert result.metrics["loss"] == 1.0
    assert json.loads((tmp_path / "result.json").read_text())["metrics"] == {"auc": None, "loss": 1.0}


def test_uniform_weights_tell_no_sample_counts(tmp_path):
    learners = {"a": Measured({"auc": 0.5}, samples=10), "b": Measured({"auc": 1.0}, samples=30)}
    result = federate(config(2, "federation.weights=uniform"), learners, tmp_path)
    assert result.samples == {}
    assert result.metrics["auc"] == pytest.approx(0.75)


def test_a_result_of_an_earlier_version_is_read(tmp_path):
    federate(config(2), {name: Measured({"accuracy": 0.5}) for name in ("a", "b")}, tmp_path)
    path = tmp_path / "result.json"
    earlier = json.loads(path.read_text())
    del earlier["sites"], earlier["samples"]
    path.write_text(json.dumps(earlier))
    assert read_done(RunFolder(tmp_path)).metrics == {"accuracy": 0.5}
