"""Runs of different studies are shown next to each other, but not compared."""

import numpy as np
import pytest

from paraaegis.report.collect import collect
from paraaegis.report.figures import figures
from paraaegis.report.findings import headline, over_seeds, overhead
from paraaegis.report.page import page
from paraaegis.runs.run import federate
from toy import ToyLearner, configure


def a_run(out, length=40, samples=10, first=0.0, method="paraaegis-feedback", seed=0):
    learners = {name: ToyLearner(np.full((1, length), 0.5), samples) for name in ("client-0", "client-1")}
    for learner in learners.values():
        learner.initial = lambda: np.full(length, first, np.float32)
    settings = ["federation.clients=2", "federation.rounds=1", "federation.min_samples=5", f"seed={seed}"]
    federate(configure(*settings, f"protect.method={method}"), learners, out)


def compared(tmp_path, **other):
    """Plain averaging of one model, and a protected run of another one."""
    a_run(tmp_path / "cancer-plain", method="fedavg")
    a_run(tmp_path / "sepsis-feedback", **other)
    return collect([tmp_path])[0]


@pytest.mark.parametrize("other", [{"length": 400}, {"samples": 20}, {"first": 0.25}])
def test_runs_of_another_model_or_other_data_are_not_compared_with_plain_averaging(other, tmp_path):
    runs = compared(tmp_path, **other)
    assert headline(runs).startswith("cancer-plain reached 50.0 %")
    assert [overhead(runs, run) for run in runs] == [1.0, None]


def test_runs_of_the_same_learners_are(tmp_path):
    assert "plain averaging" in headline(compared(tmp_path))


def test_models_of_different_sizes_have_figures_of_their_own(tmp_path):
    runs = compared(tmp_path, length=400)
    drawn = [name for name in figures(runs) if "against time" in name]
    assert drawn == [f"Accuracy against time, learners passed to federate, {n} values, own" for n in (40, 400)]
    assert "<title>2 runs" in page(runs, [])


def test_without_plain_averaging_only_one_study_is_compared(tmp_path):
    a_run(tmp_path / "a", first=0.1)
    a_run(tmp_path / "b", length=400, first=0.4)
    runs, _ = collect([tmp_path])
    assert headline(runs).startswith("paraaegis-feedback (a) reached the highest accuracy")


def test_seeds_of_different_models_are_not_taken_together(tmp_path):
    a_run(tmp_path / "a", seed=1)
    a_run(tmp_path / "b", length=400, seed=2)
    assert over_seeds(collect([tmp_path])[0])[1] == []
    a_run(tmp_path / "c", seed=2, first=0.25)  # another seed, another first model
    assert len(over_seeds(collect([tmp_path])[0])[1]) == 1
