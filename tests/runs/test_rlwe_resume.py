"""A local run under RLWE that was stopped within a round continues with it, and its checkpoints hold no share."""

import numpy as np
import pytest

from paraaegis.protocol import round as algorithm
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from toy import configure, learners_of
from toy_runs import StoppedError

UPDATES = np.round(np.random.default_rng(3).normal(size=(4, 3, 20)) * 64) / 64
SETTINGS = ("federation.clients=4", "federation.rounds=3", "protect.cipher=rlwe", "protect.ratio=0.5")


@pytest.mark.parametrize("noise", ["seeded", "secret"])
@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
def test_a_run_stopped_after_shares_were_requested_loses_no_round(method, noise, tmp_path, monkeypatch):
    config = configure(*SETTINGS, f"protect.method={method}", f"privacy.noise={noise}")
    whole = federate(config, learners_of(UPDATES), tmp_path / "whole")
    real = algorithm.open_sum

    def stopped(server, record, *rest):
        survivors = yield from real(server, record, *rest)
        if record.round == 2:
            raise StoppedError
        return survivors

    with monkeypatch.context() as patch:
        patch.setattr(algorithm, "open_sum", stopped)
        with pytest.raises(StoppedError):
            federate(config, learners_of(UPDATES), tmp_path / "stopped")
    with np.load(tmp_path / "stopped" / "checkpoint.npz") as stored:
        assert not [name for name in stored.files if name.endswith("/share")]
    federate(config, learners_of(UPDATES), tmp_path / "stopped")
    lines = RunFolder(tmp_path / "stopped").read_records()
    assert [len(line.clients) for line in lines] == [4, 4, 4]
    if method == "ckks-fedavg":  # otherwise another attempt has another order, and ties fall differently
        np.testing.assert_array_equal(
            np.load(tmp_path / "stopped" / "model.npy"), np.load(tmp_path / "whole" / "model.npy")
        )
    assert whole.rounds == 3
