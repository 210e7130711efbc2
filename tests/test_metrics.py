"""Which metric is shown, how it is written, and which of two values is better."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paraaegis.errors import ConfigError
from paraaegis.metrics import better, choose, heading, lower_is_better, named, scaled, text
from paraaegis.report.figures import limits, pareto

NAMES = st.lists(st.sampled_from(["accuracy", "loss", "auc", "recall_0", "recall_1"]), unique=True, min_size=1)
POINTS = st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(0, 9).map(float)), min_size=1)


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        (["loss", "auc", "accuracy"], "accuracy"),
        (["loss", "recall_1", "auc"], "recall_1"),
        (["loss"], "loss"),
        ([], "accuracy"),
    ],
)
def test_accuracy_is_only_the_default(reported, shown):
    assert choose(None, reported) == shown


@given(NAMES, st.data())
def test_any_reported_metric_can_be_chosen_and_no_other(names, data):
    wanted = data.draw(st.sampled_from(names))
    assert choose(wanted, iter(names)) == wanted
    with pytest.raises(ConfigError) as refused:
        choose("mAP", iter(names))
    assert ", ".join(names) in str(refused.value)
    assert "'mAP'" in str(refused.value)


def test_a_metric_is_refused_only_once_something_is_reported():
    assert choose("auc", []) == "auc"


@pytest.mark.parametrize("name", ["loss", "val_loss", "error", "mae", "MSE", "rmse", "perplexity", "test_error"])
def test_errors_are_better_when_they_are_lower(name):
    assert lower_is_better(name)
    assert better(name, 1.0, 2.0)


@pytest.mark.parametrize("name", ["accuracy", "auc", "recall_0", "loss_ratio", "f1"])
def test_scores_are_better_when_they_are_higher(name):
    assert not lower_is_better(name)
    assert better(name, 2.0, 1.0)


@given(st.sampled_from(["auc", "loss"]), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_of_two_values_at_most_one_is_better_and_nan_never_is(name, one, other):
    assert better(name, one, other) + better(name, other, one) == (one != other)
    assert not better(name, math.nan, one)
    assert not better(name, one, math.nan)


def test_accuracies_are_percent_and_all_else_has_four_digits():
    assert text("accuracy", scaled("accuracy", 0.9132)) == named("accuracy", 91.32) == "91.3 %"
    assert named("val_accuracy", scaled("val_accuracy", 0.5), 2) == "val_accuracy 50.00 %"
    assert named("auc", scaled("auc", 0.91)) == "auc 0.9100"
    assert text("mse", 0.0000123456) == "1.235e-05"
    assert (heading("accuracy"), heading("auc")) == ("accuracy, %", "auc")


@given(POINTS, st.sampled_from(["accuracy", "rmse"]))
def test_a_front_has_what_nothing_beats_whichever_way_is_better(points, metric):
    def beats(other, point):
        return other[0] <= point[0] and (
            better(metric, other[1], point[1]) or (other[0] < point[0] and other[1] == point[1])
        )

    expected = {point for point in points if not any(beats(other, point) for other in points)}
    assert set(pareto(points, metric)) == expected


def test_where_lower_is_better_the_front_descends():
    assert pareto([(1, 3.0), (2, 1.0), (2, 2.0), (3, 1.5), (4, math.nan)], "loss") == [(1, 3.0), (2, 1.0)]


@given(st.sampled_from(["accuracy", "auc", "loss"]), st.lists(st.floats(-1e6, 1e6) | st.just(math.nan)))
def test_an_axis_has_room_for_every_value(metric, values):
    if metric == "accuracy":
        values = [min(abs(value), 100) for value in values]
    low, high = limits(metric, values)
    assert low <= 0 < high
    assert all(low <= value <= high for value in values if not math.isnan(value))


def test_scores_that_fit_share_an_axis():
    assert limits("accuracy", [3.0]) == (0, 104)
    assert limits("auc", [0.5, 0.7]) == (0, 1.04)
    assert limits("loss", [0.5]) == (0, 0.52)
