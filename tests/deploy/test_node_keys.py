"""Silos move on to the keys of the next run together, and no server brings them there alone."""

import shutil

import numpy as np
import pytest

from nodes import Nodes, secrets_of
from paraaegis.crypto.chunks import key_id_of
from paraaegis.crypto.ckks import Secret, profile, secret_key
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.keys import load_keys
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.errors import ProtocolError
from paraaegis.protocol.messages import Begin, Hello, Receiver, Rescue, RollCall, SnapshotRequest, Upload

PRECISE = profile("precise")


def roll_call(nodes, run="", **fields):
    return RollCall(round_id=nodes.parameters(run).round_id(0), **fields)


def test_a_silo_moves_on_to_where_the_others_are(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 3, "federation.quorum=2", "federation.rounds=2")
    for number in range(3):  # runs that one silo alone was asked into
        nodes.ask("client-0", roll_call(nodes, f"{nodes.state.run}{number}"))
    nodes.serve()
    assert [len(line.clients) for line in nodes.lines] == [3, 3]
    assert {load_keys(folder / "keys").root for folder in nodes.folders.values()} == {
        load_keys(nodes.folders["client-0"] / "keys").root
    }
    assert load_keys(nodes.folders["client-2"] / "keys").root.index == 4


@pytest.mark.parametrize("joined", ["00" * 16, "of the run before"])
def test_a_server_alone_cannot_make_a_silo_erase_its_keys(tmp_path, joined):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.rounds=2")
    before = load_keys(nodes.folders["client-1"] / "keys")
    real = nodes.ask("client-0", roll_call(nodes)).joined
    forged = real if joined == "of the run before" else joined
    with pytest.raises(ProtocolError, match="different keys from the client that joined run 7"):
        nodes.ask("client-1", roll_call(nodes, root=7, joined=forged))
    assert load_keys(nodes.folders["client-1"] / "keys") == before
    nodes.serve()
    assert len(nodes.lines) == 2


def test_runs_side_by_side_have_keys_of_their_own(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=3")
    other = Nodes.__new__(Nodes)
    other.__dict__ |= nodes.__dict__ | {
        "traffic": [],
        "lines": [],
        "state": type(nodes.state)(run=nodes.state.run + "b"),
    }
    played = []

    def between(name, message, answered):
        if isinstance(message, Begin) and message.round_id.number == 2 and not played:
            played.append(True)
            other.serve()
        return answered()

    nodes.serve(between)
    assert [len(one.lines) for one in (nodes, other)] == [3, 3]
    assert not uploads_keys(nodes) & uploads_keys(other)
    assert len(uploads_keys(nodes)) == 3


def uploads_keys(nodes):
    uploads = [reply for _, _, reply in nodes.traffic if isinstance(reply, Upload)]
    return {key_id_of(PRECISE, one.payload.chunks[0].view) for one in uploads}


def test_a_silo_that_was_away_at_the_start_catches_up(tmp_path):
    nodes = Nodes(tmp_path, "paraaegis-feedback", 3, "federation.quorum=2", "federation.rounds=4")

    def late(name, message, answered):
        number = message.round_id.number
        return None if name == "client-2" and 1 <= number <= 2 else answered()

    nodes.serve(late)
    assert [len(line.clients) for line in nodes.lines] == [2, 2, 3, 3]
    first, *others = nodes.models()
    assert all(np.array_equal(first, model) for model in others)


def test_a_silo_whose_keys_are_past_a_run_gets_its_keys_with_a_peers_model(tmp_path):
    """As after a lost disk, when the lead gave it the keys of the next run."""
    nodes = Nodes(tmp_path, "ckks-fedavg", 3, "federation.quorum=2", "federation.rounds=5")
    lost = []

    def loses(name, message, answered):
        folder = nodes.folders[name]
        if name == "client-2" and isinstance(message, Begin) and message.round_id.number == 3 and not lost:
            lost.append(name)
            shutil.rmtree(folder / "runs")  # the keys that are left are those of the next run
            assert load_keys(folder / "keys").root.index == 1
            (folder / "ledger.jsonl").touch()
        return answered()

    nodes.serve(loses)
    assert lost
    hellos = [reply for name, _, reply in nodes.traffic if name == "client-2" and isinstance(reply, Hello)]
    assert [hello.root for hello in hellos] == [0, 1]
    assert len(nodes.lines[-1].clients) == 3
    first, *others = nodes.models()
    assert all(np.array_equal(first, model) for model in others)


def test_rotation_heals_from_the_next_run_on(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=2")
    lead, silo = (KeyFolder(folder) for folder in nodes.folders.values())
    lead.approve({"client-1": silo.create(lead.create())})
    stolen = load_keys(silo.keys).root
    lead.rotate()
    packet = lead.seal({"client-1": silo.ask(lead.public)}, "client-0")["client-1"]
    silo.open(packet, "client-1", lead.public)
    nodes.serve()
    opened = {Secret(PRECISE, secret_key(PRECISE, derive(stolen.begin(nodes.state.run).at(n, 0).step, "ckks"))).id
              for n in (1, 2)}  # fmt: skip
    assert len(nodes.lines) == 2
    assert not opened & uploads_keys(nodes)


def test_keys_that_come_with_a_model_use_up_the_root_that_they_follow_from(tmp_path):
    """The server calls the others into empty runs and one silo into none, and then has it given the others' keys."""
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=3")
    root = load_keys(nodes.folders["client-1"] / "keys").root
    for number in range(2):
        nodes.ask("client-0", roll_call(nodes, f"{nodes.state.run}{number}"))
    hellos = {name: nodes.ask(name, roll_call(nodes)) for name in nodes.folders}
    assert [hello.root for hello in hellos.values()] == [2, 0]
    once = hellos["client-1"].once
    receiver = Receiver(once.public, 0, once.proofs["client-0"])
    sealed = nodes.ask(
        "client-0", SnapshotRequest(round_id=nodes.parameters().round_id(1), receivers={"client-1": receiver})
    ).sealed
    begin = Begin(
        round_id=nodes.parameters().round_id(1),
        aggregates=(),
        counts={name: hello.weight for name, hello in hellos.items()},
        proofs={"client-0": hellos["client-0"].proofs["client-1"]},
        rescue=Rescue(0, "client-0", once.public, sealed["client-1"]),
    )
    assert isinstance(nodes.ask("client-1", begin), Upload)
    assert load_keys(nodes.folders["client-1"] / "keys").root == root.forward(3)
    assert not {root.forward(index).secret for index in range(3)} & set(secrets_of(nodes.folders["client-1"]))


def test_a_run_that_was_joined_before_a_rotation_begins_under_the_new_keys_or_not_at_all(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=2")
    lead, silo = (KeyFolder(folder) for folder in nodes.folders.values())
    lead.approve({"client-1": silo.create(lead.create())})
    hellos = {name: nodes.ask(name, roll_call(nodes)) for name in nodes.folders}
    stolen = load_keys(silo.keys).root
    lead.rotate()
    silo.open(lead.seal({"client-1": silo.ask(lead.public)}, "client-0")["client-1"], "client-1", lead.public)
    counts = {"counts": {name: hello.weight for name, hello in hellos.items()},
              "proofs": {"client-1": hellos["client-1"].proofs["client-0"]}}  # fmt: skip
    with pytest.raises(ProtocolError, match="were rotated after it joined this run"):
        nodes.ask("client-0", Begin(round_id=nodes.parameters().round_id(1), aggregates=(), **counts))
    nodes.traffic.clear()
    nodes.serve()
    assert len(nodes.lines) == 2
    held = [stolen.forward(index).begin(nodes.state.run).at(n, 0) for index in range(1, 4) for n in (1, 2)]
    assert not {Secret(PRECISE, secret_key(PRECISE, derive(one.step, "ckks"))).id for one in held} & uploads_keys(nodes)


def test_a_roll_call_without_another_clients_proof_uses_up_no_second_root(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.rounds=2")
    nodes.ask("client-0", roll_call(nodes))
    for root in (1, 5, 10**6):
        nodes.ask("client-0", roll_call(nodes, root=root))
    assert load_keys(nodes.folders["client-0"] / "keys").root.index == 1


def test_a_run_that_never_began_leaves_no_model_behind(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.rounds=2")
    nodes.ask("client-0", roll_call(nodes))
    assert not list(nodes.folders["client-0"].rglob("*weights*"))
