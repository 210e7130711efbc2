"""RLWE with protect.reveal = "server": the server opens each sum, and gets the model's change from them."""

import numpy as np
import pytest

from paraaegis.errors import ConfigError, DriftError, LostTrustError
from paraaegis.privacy.ledger import read_ledger
from paraaegis.protocol.messages import RoundId, ShareSum, pack, unpack
from paraaegis.protocol.voting import pack_positions
from paraaegis.runs.check import check_method
from paraaegis.runs.guarantees import run_guarantees
from paraaegis.runs.run import federate
from toy import configure, learners_of

UPDATES = (np.random.default_rng(5).integers(-60, 60, (4, 3, 300)) / 1024).astype(np.float32)
BASE = ("federation.clients=4", "federation.rounds=3", "federation.quorum=3", "privacy.epsilon=inf", "privacy.clip=inf")
SERVER = ("protect.cipher=rlwe", "protect.reveal=server")
METHODS = {
    "paraaegis-feedback": ("protect.method=paraaegis-feedback", "protect.ratio=0.3"),
    "ckks-fedavg": ("protect.method=ckks-fedavg",),
}


def run(folder, method, *settings, samples=(10, 20, 30, 40)):
    return federate(configure(*BASE, *METHODS[method], *settings), learners_of(UPDATES, list(samples)), folder)


@pytest.mark.parametrize("method", METHODS)
def test_the_server_has_what_the_sums_changed_and_clients_have_the_same_model(method, tmp_path):
    run(tmp_path / "ckks", method)
    run(tmp_path / "server", method, *SERVER)
    model = np.load(tmp_path / "server" / "model.npy")
    np.testing.assert_array_equal(model, np.load(tmp_path / "ckks" / "model.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "server" / "change.npy"), model)  # the first model was zero
    assert not (tmp_path / "ckks" / "change.npy").exists()


def test_the_ledger_says_that_the_server_learns_sums_and_elected_parameters(tmp_path):
    run(tmp_path, "paraaegis-feedback", *SERVER)
    seen = {(release.what, release.server) for release in read_ledger(tmp_path / "ledger.jsonl")}
    assert {("votes", "clear"), ("inside", "summed")} <= seen
    told = run_guarantees(configure(*BASE, *METHODS["paraaegis-feedback"], *SERVER, "federation.min_samples=10"))
    against, _ = (one for one in told.guarantees if one.adversary == "server and network")
    assert against.kind.endswith("computational, sums only")
    assert "learns which parameters are elected" in against.why


def test_it_is_refused_for_ckks_and_where_values_travel_in_the_clear():
    with pytest.raises(ConfigError, match=r"needs protect\.cipher = 'rlwe'"):
        configure("protect.reveal=server")
    with pytest.raises(ConfigError, match="paraaegis-static is not one"):
        check_method(configure("protect.method=paraaegis-static", *SERVER))


def told_by(monkeypatch, change):
    """What `client-1` says when it gives out its sum of shares is changed."""
    import paraaegis.engines.local as engine

    real = engine.step

    def step(client, state, message, *rest):
        new, reply = real(client, state, message, *rest)
        return new, change(reply) if isinstance(reply, ShareSum) and client.name == "client-1" else reply

    monkeypatch.setattr(engine, "step", step)


def test_clients_that_name_other_parameters_stop_the_run(monkeypatch, tmp_path):
    others = pack_positions(np.arange(300) < 90)
    told_by(monkeypatch, lambda reply: ShareSum(round_id=reply.round_id, row=reply.row, parameters=others))
    with pytest.raises(DriftError, match="the elected parameters differ from the other clients' at client-1"):
        run(tmp_path, "paraaegis-feedback", *SERVER)


def test_a_message_keeps_the_parameters():
    positions = pack_positions(np.arange(300) < 90)
    frames = pack(
        ShareSum(round_id=RoundId("run", "paraaegis-feedback", 300, 1, 0), row=positions, parameters=positions)
    )
    assert bytes(unpack(frames).parameters.view) == bytes(positions.view)


def test_a_sum_that_the_server_changed_ends_the_run_for_the_clients(monkeypatch, tmp_path):
    from paraaegis.protocol import sums

    real = sums.OpenedRlweSum.close

    def shifted(self):
        self.opened[0] += 1
        return real(self)

    monkeypatch.setattr(sums.OpenedRlweSum, "close", shifted)
    with pytest.raises(LostTrustError, match="ended the run, because a check of what the server passed on failed"):
        run(tmp_path, "ckks-fedavg", *SERVER)
