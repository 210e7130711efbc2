"""A silo's node answers each message from what lies in its folder."""

import logging
import re
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import pytest
from flwr.app import ConfigRecord, RecordDict

import blobs
from blobs import SAMPLES
from nodes import Nodes
from paraaegis.config import make_config
from paraaegis.crypto.keys import load_keys, write_secret
from paraaegis.deploy import node as module
from paraaegis.deploy.answer import answer
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.deploy.local_federation import lay_out
from paraaegis.deploy.node import DeployedClient
from paraaegis.engines.flower.client import reply_to
from paraaegis.engines.flower.frames import from_error
from paraaegis.engines.flower.server import FlowerTransport, Introduction, make_server_app
from paraaegis.errors import ConfigError, KeyFileError, LearnerError, ProtocolError, UpdateError
from paraaegis.privacy.ledger import read_ledger
from paraaegis.protocol.messages import RollCall, pack, unpack
from paraaegis.protocol.round_server import Exchange
from paraaegis.runs.assemble import make_parameters, short_name
from paraaegis.runs.check import resolve

NAMES = ("client-0", "client-1")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
HOSPITALS = ["hospital-a", "hospital-b", "hospital-c"]


class Silo:
    """A node's folder, and a node of it for every message, as Flower would make them."""

    def __init__(self, out, *settings):
        base = [
            "federation.clients=2",
            "learner=blobs:make_learner",
            f"federation.min_samples={SAMPLES // 2}",
            "protect.method=ckks-fedavg",
        ]
        self.config = resolve(make_config({}, [*base, *settings]), [SAMPLES])
        self.run = f"{short_name(self.config)}-1"
        self.folder = lay_out(self.config, out)[1]["client-0"]

    def node(self, simulation=True):
        return DeployedClient("client-0", self.folder, simulation=simulation)

    def hello(self, simulation=True):
        round_id = make_parameters(self.config, NAMES, 120, NAMES[:1], self.run).round_id(0)
        return unpack(answer(self.node(simulation), pack(RollCall(round_id=round_id))))


def test_a_node_introduces_itself_with_the_length_of_its_model(tmp_path):
    card = Silo(tmp_path).node().card()
    assert (card["name"], card["length"], card["leads"]) == ("client-0", 120, False)


def with_data(monkeypatch, samples):
    monkeypatch.setattr(blobs, "SAMPLES", samples)


def test_a_node_logs_what_it_answered(tmp_path, caplog):
    silo = Silo(tmp_path)
    with caplog.at_level(logging.INFO):
        silo.hello()
    assert f"client-0, run {silo.run}, round 0: RollCall answered with Hello" in caplog.text


def test_data_is_counted_anew_at_every_introduction(tmp_path, monkeypatch):
    silo = Silo(tmp_path)
    assert silo.hello().weight == SAMPLES
    with_data(monkeypatch, SAMPLES - 1)
    silo.node().card()
    assert silo.hello().weight == SAMPLES - 1


def test_data_that_changed_since_is_not_trained_on(tmp_path, monkeypatch):
    silo = Silo(tmp_path)
    silo.node().card()
    with_data(monkeypatch, SAMPLES - 1)
    with silo.node().client(silo.run) as client, pytest.raises(LearnerError, match="59 samples now and had 60"):
        client.learner.train(client.learner.initial(), 1)


def test_a_run_of_another_configuration_is_refused(tmp_path):
    silo = Silo(tmp_path)
    with pytest.raises(ConfigError, match="uses a different configuration"), silo.node().client("0123456789abcdef-1"):
        pass


def test_keys_of_an_older_version_are_refused_before_anything_is_spent(tmp_path):
    silo = Silo(tmp_path)
    old = {"kind": "paraaegis-federation-keys-1", "profile": "precise", "vote": bytes(32), "ckks": b"", "epoch": 4}
    write_secret(silo.folder / "keys", msgspec.msgpack.encode(old))
    assert silo.node().card()["key_id"] == ""  # it can still be enrolled
    with pytest.raises(KeyFileError, match=r"of an older version, which never change \(epoch 4\).*keys rotate"):
        silo.hello()
    assert not (silo.folder / "ledger.jsonl").exists()
    assert not (silo.folder / "runs").exists()


def test_any_profile_goes_with_the_keys_that_lie_there(tmp_path):
    assert Silo(tmp_path, "protect.profile=compact").hello().weight == SAMPLES


def test_the_root_of_a_run_that_began_is_gone_and_lies_in_no_file(tmp_path):
    silo = Silo(tmp_path, "privacy.noise=secret")
    before = load_keys(silo.folder / "keys").root
    for _ in range(2):  # a second roll call of the run spends nothing more
        assert silo.hello(simulation=False).root == 0
        assert load_keys(silo.folder / "keys").root == before.forward(1)
    everything = b"".join(path.read_bytes() for path in silo.folder.rglob("*") if path.is_file())
    assert before.forward(1).secret in everything
    assert before.secret not in everything
    assert before.secret.hex().encode() not in everything


def test_each_run_has_a_root_of_its_own(tmp_path):
    silo = Silo(tmp_path, "privacy.noise=secret")
    name, root = silo.run, load_keys(silo.folder / "keys").root
    joined = set()
    for number in range(3):
        silo.run = name + str(number)
        hello = silo.hello(simulation=False)
        assert hello.root == number
        joined.add(hello.joined)
    assert load_keys(silo.folder / "keys").root == root.forward(3)
    assert len(joined) == 3


def test_a_simulation_keeps_its_root_so_that_it_can_be_played_again(tmp_path):
    silo = Silo(tmp_path)
    before = load_keys(silo.folder / "keys")
    silo.hello()
    assert load_keys(silo.folder / "keys") == before


def test_a_refused_hello_spends_no_root(tmp_path, monkeypatch):
    silo = Silo(tmp_path, "privacy.noise=secret")
    before = load_keys(silo.folder / "keys")
    with_data(monkeypatch, 1)
    with pytest.raises(ProtocolError, match="too few samples"):
        silo.hello(simulation=False)
    assert load_keys(silo.folder / "keys") == before


def test_nodes_hand_secrets_from_the_lead_to_a_silo(tmp_path):
    lead, silo = (DeployedClient(name, tmp_path / name) for name in NAMES)
    folder, leading = KeyFolder(silo.folder), KeyFolder(lead.folder)
    leading.approve({"client-1": folder.create(leading.create())})
    parcels = lead.seal({"client-1": silo.ask(leading.public)})
    silo.open(parcels["client-1"], leading.public)
    assert load_keys(folder.keys) == load_keys(leading.keys)
    assert set(load_keys(folder.keys).roster) == set(NAMES)


def test_nodes_play_a_run_under_the_names_that_their_configuration_gives_them(tmp_path):
    nodes = Nodes(tmp_path, "paraaegis-static", 3, f"federation.names={HOSPITALS}", "federation.rounds=2")
    nodes.serve()
    assert {path.name for path in (tmp_path / "nodes").iterdir()} == set(HOSPITALS)
    assert [set(line.clients) for line in nodes.lines] == [set(HOSPITALS)] * 2
    for name, folder in nodes.folders.items():
        assert {release.client for release in read_ledger(folder / "ledger.jsonl")} == {name}


def test_a_node_that_is_called_like_no_client_is_told_the_names(tmp_path):
    nodes = Nodes(tmp_path, "fedavg", 3, f"federation.names={HOSPITALS}")
    stranger = DeployedClient("hospital-d", nodes.folders["hospital-a"])
    with pytest.raises(ConfigError, match=r"called 'hospital-d', .*its clients are hospital-a, hospital-b, hospital-c"):
        stranger.card()


def test_an_error_without_words_is_one_all_the_same():
    with pytest.raises(ProtocolError, match="it failed"):
        from_error(RecordDict({"error": ConfigRecord({})}))


def test_data_is_not_read_for_a_message_that_does_not_need_it(tmp_path, monkeypatch):
    silo = Silo(tmp_path)
    silo.node().card()
    monkeypatch.setattr(blobs, "points", lambda *_: 1 / 0)
    with silo.node().client(silo.run) as client:
        assert client.learner.samples == SAMPLES
        with pytest.raises(LearnerError, match="blobs:make_learner failed for client-0: ZeroDivisionError"):
            client.learner.initial()


def test_a_silo_may_call_its_learner_as_it_likes(tmp_path):
    silo = Silo(tmp_path)
    digest = silo.node().config.digest()
    text = (silo.folder / "config.toml").read_text().replace("blobs:make_learner", "ward:build")
    (silo.folder / "config.toml").write_text(text)
    (silo.folder / "ward.py").write_text("from blobs import make_learner as build\n")  # found in the node's own folder
    assert silo.node().config.digest() == digest
    assert silo.hello().weight == SAMPLES


@pytest.mark.parametrize(("worth", "workers"), [(10, 2), (100, 1), (1000, 1)])
def test_processes_are_started_for_as_many_values_as_are_worth_it(tmp_path, monkeypatch, worth, workers):
    monkeypatch.setattr(module, "WORTH", worth)
    silo = Silo(tmp_path, "engine.processes=2")

    with silo.node().client(silo.run) as client:
        assert client.half.mechanism.encoding.pool.workers == workers


def test_noise_that_can_be_replayed_is_refused_outside_a_simulation(tmp_path):
    with pytest.raises(ConfigError, match="protects nobody"):
        Silo(tmp_path, "privacy.noise=seeded").node(simulation=False).card()


@pytest.mark.parametrize("gone", ["client-1 before it is asked", "client-0 before it seals"])
def test_a_node_that_leaves_before_enrolment_is_named(monkeypatch, gone):
    class FakeGrid:
        connected: ClassVar = [1, 2]

        def get_node_ids(self):
            return self.connected

        def pull_messages(self, _):
            return []

    def asked(*_):
        FakeGrid.connected = [2]
        yield "client-1", RecordDict({"asked": ConfigRecord({"once": b"o", "proof": b"p"})}), ""

    transport = FlowerTransport(FakeGrid(), deadline=1.0, quorum=2)
    for node, (name, key_id) in enumerate([("client-0", "a"), ("client-1", "")], 1):
        transport._enter(node, Introduction(name=name, length=3, public=b"p", key_id=key_id, leads=name == "client-0"))
    present = transport.meet(["client-0", "client-1"], patience=0, enough=2)
    if gone.startswith("client-0"):
        monkeypatch.setattr(transport, "_exchange", asked)
    else:
        FakeGrid.connected = [1]
    with pytest.raises(ProtocolError, match=f"{gone[:8]} disconnected before enrolment"):
        transport.enrol(present)


def test_nothing_is_sent_to_a_client_whose_node_is_not_connected():
    class SilentGrid:
        def get_node_ids(self):
            return []

    transport = FlowerTransport(SilentGrid(), deadline=0.0, quorum=1)
    (reply,) = transport.carry(Exchange({"client-0": (b"frame",)}))
    assert (reply.client, reply.lost, reply.sent) == ("client-0", True, False)


@pytest.mark.parametrize(("error", "told"), [
    (UpdateError("values up to 0.123 of patient 7"), "its update cannot be sent; see its node's log for the reason"),
    (ValueError("patient 7"), "it failed; see its node's log for the reason"),
    (ProtocolError("round 3 was answered already"), "round 3 was answered already"),
])  # fmt: skip
def test_a_server_hears_of_errors_but_nothing_of_data(capsys, monkeypatch, error, told):
    def work():
        raise error

    monkeypatch.setattr("paraaegis.engines.flower.client.Message", lambda content, reply_to: content)
    assert reply_to(None, work).config_records["error"]["text"] == told
    log = capsys.readouterr().err
    assert str(error) in log
    refused = isinstance(error, ProtocolError)
    assert re.match(rf"{TIME} WARNING a message was refused: " if refused else rf"{TIME} ERROR .*\nTraceback ", log)


def test_what_a_server_says_has_its_time(capsys):
    app = make_server_app(lambda _connect, _settings: logging.getLogger("paraaegis.deploy").info("waiting"))
    app(None, SimpleNamespace(run_config={}))
    assert re.fullmatch(rf"{TIME} INFO waiting\n", capsys.readouterr().err)
