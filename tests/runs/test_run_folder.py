"""A run's folder is its own: a damaged or foreign one is refused, and a stopped run goes on."""

import subprocess
import sys

import numpy as np
import pytest

from paraaegis.errors import ParaAegisError, RunError
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from toy import ToyLearner, configure
from toy_runs import StoppedError, stop_at, toy_config, toys


@pytest.fixture
def half(tmp_path):
    """The folder of a run that stopped in its third round."""
    with pytest.raises(StoppedError):
        federate(toy_config(), toys(), tmp_path, on_record=stop_at(2))
    assert (tmp_path / "checkpoint.npz").exists()
    return tmp_path


def test_a_folder_that_is_no_runs_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not a run's folder: it holds thesis\.txt"):
        federate(toy_config(), toys(), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert not (tmp_path / "config.toml").exists()


def test_a_folder_that_another_process_runs_in_is_refused(tmp_path):
    holder = (
        "import sys; from pathlib import Path; from paraaegis.config import Config;"
        "from paraaegis.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).claimed(Config(), False): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout.readline() == b"held\n"
        for fresh in (False, True):
            with pytest.raises(
                RunError, match=r"another process is running in .*; wait for it or choose another --out"
            ):
                federate(toy_config(), toys(), tmp_path, fresh=fresh)
        first.stdin.close()
        first.wait(30)
    federate(toy_config(), toys(), tmp_path, fresh=True)


def test_a_stopped_run_goes_on_and_shows_the_rounds_it_had(half, tmp_path_factory):
    shown = []
    result = federate(toy_config(), toys(), half, on_record=lambda line: shown.append(line.round))
    assert shown == [1, 2, 3]
    whole = federate(toy_config(), toys(), tmp_path_factory.mktemp("whole"))
    assert (result.rounds, result.metrics) == (whole.rounds, whole.metrics)


@pytest.mark.parametrize("name", ["checkpoint.npz", "rounds.jsonl", "config.toml", "keys"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_damaged_file_is_refused_by_name_and_fresh_helps(half, name, damage):
    path = half / name
    path.write_bytes({"cut": path.read_bytes()[:10], "noise": b"\x91" * 64 + b"\n", "empty": b""}[damage])
    with pytest.raises(ParaAegisError, match=str(half)) as caught:
        federate(toy_config(), toys(), half)
    assert "--fresh" in str(caught.value) or name == "keys"
    assert federate(toy_config(), toys(), half, fresh=True).rounds == 3


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_result_is_refused_by_name(tmp_path, content):
    federate(toy_config(), toys(), tmp_path)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        federate(toy_config(), toys(), tmp_path)


def test_other_learners_than_the_checkpoints_are_refused(half):
    others = {name.replace("client", "silo"): learner for name, learner in toys().items()}
    with pytest.raises(ParaAegisError):
        federate(toy_config(), others, half)


def test_a_run_with_secret_noise_that_goes_on_uses_no_order_twice(tmp_path):
    """The interrupted round may have been sent: the same order with other noise would link and average the two."""
    seen = []

    class Watched(ToyLearner):
        def evaluate(self, weights):
            return {"accuracy": 0.0}

    def learners():
        return {f"client-{i}": Watched(np.ones((1, 40))) for i in range(3)}

    def stop(line):
        if line.round == 2:
            raise KeyboardInterrupt

    config = configure("federation.clients=3", "federation.rounds=4", "privacy.noise=secret")
    with pytest.raises(KeyboardInterrupt):
        federate(config, learners(), tmp_path / "run", on_record=stop)
    attempts = RunFolder(tmp_path / "run").restore()[0].attempt
    federate(config, learners(), tmp_path / "run", on_record=seen.append)
    assert attempts == 0
    with pytest.raises(KeyboardInterrupt):
        federate(config, learners(), tmp_path / "again", on_record=stop)
    with pytest.raises(KeyboardInterrupt):
        federate(config, learners(), tmp_path / "again", on_record=stop)
    assert RunFolder(tmp_path / "again").restore()[0].attempt == 1
    assert [line.round for line in seen] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["checkpoint.npz", "rounds.jsonl"])
def test_where_privacy_was_spent_a_damaged_file_is_no_reason_to_start_over(tmp_path, name):
    config = toy_config("federation.rounds=4", "privacy.noise=secret", "privacy.epsilon=1.0", "privacy.clip=1.0")

    with pytest.raises(StoppedError):
        federate(config, toys(), tmp_path, on_record=stop_at(2))
    (tmp_path / name).write_bytes(b"\x91" * 64 + b"\n")
    with pytest.raises(RunError, match=rf"{name} is damaged.*; restore the file, or choose another --out"):
        federate(config, toys(), tmp_path)


def test_where_nobody_knows_what_was_spent_starting_over_is_not_advised(tmp_path):
    settings = ("federation.rounds=4", "privacy.noise=secret", "privacy.epsilon=1.0", "privacy.clip=1.0")

    with pytest.raises(StoppedError):
        federate(toy_config(*settings), toys(), tmp_path, on_record=stop_at(2))
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "checkpoint.npz").write_bytes(b"no checkpoint")
    with pytest.raises(RunError) as caught:
        federate(toy_config(*settings), toys(), tmp_path)
    assert "--fresh" not in str(caught.value)
