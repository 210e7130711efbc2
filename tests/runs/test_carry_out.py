"""One orchestration for every transport: what a folder was begun with is how it is continued."""

import numpy as np
import pytest

from paraaegis.config import make_config
from paraaegis.deploy.flower_app import connector
from paraaegis.errors import ConfigError, RunError
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import make_parameters
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from toy import configure, learners_of

UPDATES = np.random.default_rng(1).normal(0, 0.1, (3, 3, 50)).astype(np.float32)
SETTINGS = ("federation.clients=3", "federation.rounds=3", "protect.method=paraaegis-feedback", "protect.ratio=0.2")


def stopped_after_a_round(out, *settings):
    def stop(record):
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federate(configure(*SETTINGS, *settings), learners_of(UPDATES), out, on_record=stop)
    return RunFolder(out)


@pytest.mark.parametrize("noise", ["seeded", "secret"])
def test_a_run_across_a_network_is_not_continued_in_one_process(tmp_path, noise):
    """Its clients' residuals and optimisers lie at the nodes: begun anew, they would change the result unseen."""
    folder = stopped_after_a_round(tmp_path / "run", f"privacy.noise={noise}")
    server, _ = folder.restore()
    folder.save(server, {})
    folder.keys.unlink()
    before = folder.checkpoint.read_bytes()
    with pytest.raises(RunError, match="holds a run across a network"):
        federate(configure(*SETTINGS, f"privacy.noise={noise}"), learners_of(UPDATES), folder.path)
    assert not folder.keys.exists()
    assert folder.checkpoint.read_bytes() == before


def test_a_run_of_one_process_is_not_continued_across_a_network(tmp_path):
    folder = stopped_after_a_round(tmp_path / "run")
    server, clients = folder.restore()
    connect = connector(configure(*SETTINGS), folder, transport=None)
    with pytest.raises(RunError, match="holds a run of the local engine"), connect(server, clients, False):
        pass


def test_an_interrupted_run_with_secret_noise_has_another_attempt_on_disk_before_anything_is_sent(tmp_path):
    folder = stopped_after_a_round(tmp_path / "run", "privacy.noise=secret")
    before = folder.restore()[0].attempt
    seen = []

    def look(record):
        if record.round == 2:
            seen.append(folder.restore()[0].attempt)

    federate(configure(*SETTINGS, "privacy.noise=secret"), learners_of(UPDATES), folder.path, on_record=look)
    assert seen == [before + 1]


def test_runs_with_secret_noise_have_names_of_their_own_and_simulations_the_configurations(tmp_path):
    runs = {}
    for name, noise in (("a", "secret"), ("b", "secret"), ("c", "seeded"), ("d", "seeded")):
        runs[name] = stopped_after_a_round(tmp_path / name, f"privacy.noise={noise}").restore()[0].run
    assert runs["a"] != runs["b"]
    assert runs["c"] == runs["d"]


def test_an_engine_that_federate_does_not_have_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"engine.name must be 'local', got 'flower'"):
        federate(configure(*SETTINGS, "engine.name=flower"), learners_of(UPDATES), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_quorum_that_was_never_worked_out_is_refused():
    config = make_config({}, ["federation.clients=3"])
    with pytest.raises(ConfigError, match=r"federation.quorum must be between 1 and the 3 clients"):
        make_parameters(config, config.names, 10, config.names[:1])


def test_the_first_start_of_a_local_run_leaves_no_checkpoint_before_its_first_round(tmp_path):
    seen = []

    def look(record):
        seen.append((tmp_path / "run" / "checkpoint.npz").exists())

    federate(configure(*SETTINGS, "engine.checkpoint=2"), learners_of(UPDATES), tmp_path / "run", on_record=look)
    assert seen[0] is False
    assert ServerState().run == ""  # as in checkpoints of before runs had names, which are read
