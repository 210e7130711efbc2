"""Silos with record-level DP: whatever a server asks, a training is charged before it starts."""

import msgspec
import pytest

from nodes import Nodes
from paraaegis.deploy.app_node import load_for_app
from paraaegis.errors import ConfigError, LearnerError, PrivacyError, ProtocolError
from paraaegis.learn.attach import TorchAttachment
from paraaegis.privacy.ledger import TRAINING, read_ledger
from paraaegis.privacy.records import record_privacy
from paraaegis.protocol.messages import Begin, ReportOnly, pack
from toy_runs import StoppedError

RECORD = ("privacy.unit=record", "privacy.delta=1e-3", "privacy.sample_rate=0.25", "train.epochs=1",
          "federation.rounds=3", "learner=record_learners:make", "privacy.attempts=100")  # fmt: skip


def silos(out, method="fedavg", *settings):
    return Nodes(out, method, 2, *RECORD, *settings)


def trained(nodes, name="client-0"):
    return [(one.round, one.attempt) for one in ledger(nodes, name) if one.what == TRAINING]


def ledger(nodes, name="client-0"):
    return read_ledger(nodes.folders[name] / "ledger.jsonl")


@pytest.mark.parametrize("method", ["fedavg", "ckks-fedavg", "paraaegis-feedback"])
def test_a_silo_is_charged_for_each_round_before_it_votes_or_sends(method, tmp_path):
    nodes = silos(tmp_path, method)
    nodes.serve()
    assert len(nodes.lines) == 3
    for name in nodes.folders:
        assert trained(nodes, name) == [(1, 0), (2, 0), (3, 0)]
        of = [one.what for one in ledger(nodes, name) if one.round == 2 and one.what != "metrics"]
        assert of[0] == TRAINING
        assert len(of) > 1
        assert not any(one.simulated for one in ledger(nodes, name))


def begin_of(nodes):
    """The first Begin with which client-0 would train; the server then stops."""
    kept = []

    def meddle(name, message, answered):
        if isinstance(message, Begin) and message.train and name == "client-0":
            kept.append(message)
            raise StoppedError
        return answered()

    with pytest.raises(StoppedError):
        nodes.serve(meddle)
    return kept[0]


def again(begin, attempt):
    return msgspec.structs.replace(begin, round_id=msgspec.structs.replace(begin.round_id, attempt=attempt))


def test_a_server_that_repeats_a_round_pays_for_each_training_until_the_budget_is_spent(tmp_path):
    nodes = silos(tmp_path)
    begin = begin_of(nodes)
    for attempt in (0, 1, 2):
        assert not isinstance(nodes.ask("client-0", again(begin, attempt)), ReportOnly)
        with pytest.raises(ProtocolError, match="already answered"):
            nodes.ask("client-0", again(begin, attempt))
    refused = nodes.ask("client-0", again(begin, 3))
    assert isinstance(refused, ReportOnly)
    assert "its trainings and noised updates make ε = 7.998 of 8 at δ = 0.001 (unit: record)" in refused.declined
    assert trained(nodes) == [(1, 0), (1, 1), (1, 2)]


def test_a_training_that_fails_was_charged_and_is_charged_again(tmp_path, monkeypatch):
    nodes = silos(tmp_path)
    begin = begin_of(nodes)
    with monkeypatch.context() as broken:
        broken.setattr(TorchAttachment, "train", lambda *_: 1 / 0)  # as if it was killed
        for _ in range(2):
            with pytest.raises(LearnerError):
                nodes.ask("client-0", begin)
    assert trained(nodes) == [(1, 0), (1, 0)]
    nodes.ask("client-0", begin)
    assert trained(nodes) == [(1, 0)] * 3
    with monkeypatch.context() as counted:
        counted.setattr(TorchAttachment, "train", lambda *_: pytest.fail("it trained beyond its budget"))
        assert isinstance(nodes.ask("client-0", again(begin, 1)), ReportOnly)


def test_two_processes_on_one_folder_share_a_ledger(tmp_path):
    nodes = silos(tmp_path)
    begin = begin_of(nodes)
    one, other = nodes.node("client-0"), nodes.node("client-0")
    with one.client(nodes.state.run) as first, other.client(nodes.state.run) as second:
        for client, attempt in ((first, 0), (second, 1), (first, 2)):
            client.ledger.record(client.training(1, attempt, "00"))
        for client in (first, second):
            with pytest.raises(PrivacyError, match="is spent"):
                client.ledger.record(client.training(1, 3, "00"))
    assert isinstance(nodes.ask("client-0", begin), ReportOnly)


def test_a_later_run_of_a_silo_starts_from_what_earlier_ones_spent(tmp_path):
    nodes = silos(tmp_path)
    nodes.serve()
    with nodes.node("client-0").client(nodes.state.run[:-1] + "b") as client:
        assert "is spent" in client.ledger.refusal(client.training(1, 0, "00"))


def test_the_noise_and_the_samples_of_a_silo_are_never_those_of_another_start(tmp_path):
    nodes = silos(tmp_path)
    first = nodes.node("client-0").learner.initial()
    models = [nodes.node("client-0").learner.train(first, 1)[0] for _ in range(2)]
    assert abs(models[0] - models[1]).max() > 1e-3


def test_a_silos_learner_trains_with_what_its_own_configuration_says(tmp_path):
    nodes = silos(tmp_path)
    node = nodes.node("client-0")
    assert node.learner.made.record_privacy == record_privacy(nodes.config) == node.learner.record_privacy


def test_a_silo_with_too_few_records_for_delta_does_not_introduce_itself(tmp_path):
    nodes = silos(tmp_path, "fedavg", "privacy.delta=0.01")
    with pytest.raises(PrivacyError, match=r"at most 1/\(10 · 60\) = 0\.00166 for client-0"):
        nodes.node("client-0").card()


def test_a_learner_that_trains_itself_is_refused_in_a_silo(tmp_path):
    nodes = silos(tmp_path, "fedavg", "learner=blobs:make_learner")
    with pytest.raises(ConfigError, match=r"the learner of client-0 \(a Softmax\) has its own"):
        nodes.node("client-0").card()


def test_seeded_noise_is_refused_in_a_silo(tmp_path):
    nodes = silos(tmp_path, "fedavg", "privacy.noise=seeded")
    with pytest.raises(ConfigError, match="seeded"):
        nodes.node("client-0").config  # noqa: B018


@pytest.mark.parametrize("simulated", [False, True])
def test_a_flower_app_cannot_have_record_level_dp(simulated, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('[privacy]\nunit = "record"\ncalibration = "tight"\n')
    with pytest.raises(ConfigError, match=r"a Flower app does not use; set unit = .client., or .* torch_learner"):
        load_for_app(path, simulated)


def test_messages_of_a_silo_do_not_hold_its_training_loss(tmp_path):
    nodes = silos(tmp_path)
    nodes.serve()
    assert "loss" in (nodes.folders["client-0"] / "metrics.jsonl").read_text()  # for its own eyes
    sent = b"".join(bytes(frame) for _, _, reply in nodes.traffic for frame in pack(reply)[:1])
    assert b"loss" not in sent
    assert b"accuracy" not in sent
