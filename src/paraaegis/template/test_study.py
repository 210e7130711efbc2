"""Run with `pytest`. Two rounds of the study end with a model that can tell patients apart."""

from pathlib import Path

from sites import make

from paraaegis import federate, load_config


def test_the_study_runs(tmp_path):
    config = load_config(Path(__file__).with_name("study.toml"), ["federation.rounds=2"])
    learners = {name: make(config, name) for name in config.names}
    result = federate(config, learners, tmp_path / "run")
    assert result.metrics["auc"] > 0.5
    assert result.model.exists()
