"""Somebody copies a node's folder and has all messages that were ever sent: what came before stays closed."""

import itertools
import json
import shutil
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from nodes import Nodes, secrets_of
from paraaegis import files
from paraaegis.crypto.chunks import key_id_of
from paraaegis.crypto.ckks import Secret, profile, secret_key
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.keys import load_identity, load_keys
from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.sealed_box import unseal
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.errors import CryptoError, KeyFileError, ProtocolError
from paraaegis.methods import METHODS
from paraaegis.protocol.messages import Begin, Hello, Receiver, Rescue, RollCall, SnapshotRequest, Upload

PRECISE = profile("precise")
STOLEN = 2  # rounds that the node has applied when its folder is copied


class KilledError(Exception):
    """A node's process is gone."""


def robbed(tmp_path, method, clients=2, *settings):
    """A federation whose second node is robbed as soon as it has applied STOLEN rounds, and the first root."""
    nodes = Nodes(tmp_path / "federation", method, clients, f"federation.quorum={clients}", "federation.rounds=4",
                  *settings)  # fmt: skip
    root = load_keys(nodes.folders["client-1"] / "keys").root
    copy = tmp_path / "copy"

    def meddle(name, message, answered):
        reply = answered()
        applied = isinstance(message, Begin) and message.round_id.number == STOLEN + 1
        if name == "client-1" and applied and not copy.exists():
            shutil.copytree(nodes.folders[name], copy)
        return reply

    nodes.serve(meddle)
    return nodes, copy, root


def steps_of(nodes, root):
    """The key of each round, which only a test can still compute."""
    first = root.begin(nodes.state.run)
    return {number: first.at(number, 0) for number in range(1, 5)}


def keys_in(copy):
    """The keys of the run in a copied folder."""
    (manifest,) = copy.glob("runs/*/manifest.json")
    return Ratchet.decoded(json.loads(manifest.read_text())["values"]["state/held"])


def clients_of(method):
    return 5 if method == "lwe-secagg" else 2


@pytest.mark.parametrize("method", METHODS)
def test_no_key_of_an_applied_round_lies_in_a_stolen_folder(method, tmp_path):
    nodes, copy, root = robbed(tmp_path, method, clients_of(method))
    steps, found = steps_of(nodes, root), set(secrets_of(copy))
    past = [root.secret, *(key for n in range(1, STOLEN + 1) for key in (steps[n].step, steps[n].ahead))][:-1]
    assert len(past) == 2 * STOLEN
    assert not found & set(past)
    assert steps[STOLEN + 1].step in found  # what follows can be opened, and the search can find
    for number in range(1, STOLEN + 1):
        with pytest.raises(ProtocolError, match="have been erased"):
            keys_in(copy).at(number, 0)
    assert keys_in(copy).at(4, 0) == steps[4]


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if "ckks" in method.ciphers])
def test_with_a_stolen_folder_uploads_open_from_the_next_round_on_and_not_before(method, tmp_path):
    nodes, copy, _ = robbed(tmp_path, method)
    uploads = [reply for _, _, reply in nodes.traffic if isinstance(reply, Upload)]
    assert sorted(one.round_id.number for one in uploads) == [1, 1, 2, 2, 3, 3, 4, 4]
    held = keys_in(copy)
    candidates = {*secrets_of(copy), *(held.at(n, a).step for n in range(STOLEN + 1, 5) for a in range(3))}
    keys = [secret_key(PRECISE, derive(key, "ckks")) for key in sorted(candidates)[:40]]  # each takes 8 ms
    keys += [secret_key(PRECISE, derive(held.at(n, 0).step, "ckks")) for n in range(STOLEN + 1, 5)]
    ids = {Secret(PRECISE, key).id: key for key in keys}
    for upload in uploads:
        payload = upload.payload.parts[0] if upload.payload.parts else upload.payload
        claimed = key_id_of(PRECISE, payload.chunks[0].view)
        assert (claimed in ids) == (upload.round_id.number > STOLEN)
        if claimed in ids:
            steps = Secret(PRECISE, ids[claimed]).decrypt(payload.chunks, payload.length)
            assert 0 < np.abs(steps).max() < 2**30
        else:
            for key in ids.values():
                secret = Secret(PRECISE, key)
                secret._chunks.id = claimed  # as if it were the right one
                assert np.abs(secret.decrypt(payload.chunks, payload.length)).max() > 2**30  # noise


def test_with_a_stolen_folder_shares_of_applied_rounds_stay_sealed(tmp_path):
    nodes, copy, _ = robbed(tmp_path, "lwe-secagg", 5)
    private, public = load_identity(copy / "identity")
    roster = load_keys(copy / "keys").roster
    held, candidates = keys_in(copy), secrets_of(copy)[::20]
    opened = set()
    for name, _, reply in nodes.traffic:
        if not isinstance(reply, Upload) or name == "client-1":
            continue
        number, sealed = reply.round_id.number, bytes(reply.shares["client-1"].view)
        context = shares_context(nodes, name, number)
        groups = [derive(key, "shares") for key in candidates]
        groups += [derive(held.at(n, 0).step, "shares") for n in range(STOLEN + 1, 5)]
        for group in groups:
            for view in nodes.views:
                try:
                    unseal(private, roster[name], sealed, context(view), group=group)
                except CryptoError:
                    continue
                opened.add(number)
    assert opened == {STOLEN + 1, STOLEN + 2}
    assert roster["client-1"] == public


def shares_context(nodes, sender, number):
    return lambda view: msgspec.msgpack.encode([nodes.state.run, sender, "client-1", "share", number, 0, view])


def test_a_peers_model_stays_sealed_once_it_was_opened(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 3, "federation.quorum=2", "federation.rounds=5", "federation.history=1")

    def away(name, message, answered):
        gone = name == "client-2" and isinstance(message, Begin) and message.round_id.number in (2, 3)
        return None if gone else answered()

    nodes.serve(away)
    rescues = [
        message.rescue
        for name, message, _ in nodes.traffic
        if isinstance(message, Begin) and message.rescue is not None
    ]
    assert rescues
    private, _ = load_identity(nodes.folders["client-2"] / "identity")
    roster = load_keys(nodes.folders["client-2"] / "keys").roster
    for rescue in rescues:
        context = msgspec.msgpack.encode([nodes.state.run, rescue.sender, "client-2", "model", rescue.applied])
        for once in [b"", *secrets_of(nodes.folders["client-2"])[:300]]:
            with pytest.raises(CryptoError):
                unseal(private, roster[rescue.sender], bytes(rescue.sealed.view), context, once=once)
    first, *others = nodes.models()
    assert all(np.array_equal(first, model) for model in others)


# Moving on


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
    with pytest.raises(ProtocolError, match="other keys than the client that joined run 7"):
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


# A kill at any write


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
def test_a_kill_at_any_write_loses_no_run_and_keeps_no_old_key(method, tmp_path, monkeypatch):
    """A node is killed before or after it moves a file to its place; it is asked again, and the run ends well."""
    real, writes, kills = files.write_whole, itertools.count(), []

    def killed(path, write, mode=0o644):
        due = path.name == "keys" if len(kills) < 4 else next(writes) % 4 == 3
        if due and len(kills) < 8:
            kills.append(path.name)
            if len(kills) % 2 == 0:
                real(path, write, mode)
            raise KilledError
        real(path, write, mode)

    nodes = Nodes(tmp_path, method, 2, "federation.quorum=1", "federation.rounds=6")
    for module in ("crypto.keys", "deploy.store", "deploy.node"):
        monkeypatch.setattr(f"paraaegis.{module}.write_whole", killed)
    root = load_keys(nodes.folders["client-1"] / "keys").root

    def again(name, message, answered):
        try:
            return answered()
        except KilledError:
            return None

    for _ in range(9):  # "not everyone joined", where the kill came at the roll call
        with suppress(ProtocolError):
            nodes.serve(again)
            break
    assert {"keys", "manifest.json"} <= set(kills)
    assert len(kills) == 8
    assert len(nodes.lines) == 6
    for folder in nodes.folders.values():
        assert root.secret not in secrets_of(folder)


def test_the_search_for_keys_finds_raw_and_written_ones(tmp_path):
    (tmp_path / "raw").write_bytes(b"x" + bytes(range(32)) + b"y")
    (tmp_path / "text").write_text("1 0 " + bytes(range(1, 33)).hex())
    assert {bytes(range(32)), bytes(range(1, 33))} <= set(secrets_of(tmp_path))


# What a server does before the theft


def test_a_one_time_key_that_was_not_used_is_gone_when_the_run_goes_on(tmp_path):
    """The server has a peer seal its keys at the start, never passes them on, and waits for the folder."""
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=3")
    boxes = []

    def peeks(name, message, answered):
        if isinstance(message, Begin) and message.round_id.number == 1 and not boxes:
            hello = next(reply for one, _, reply in nodes.traffic if one == "client-1" and isinstance(reply, Hello))
            receiver = Receiver(hello.once.public, hello.applied, hello.once.proofs["client-0"])
            boxes.append(
                nodes.ask("client-0", SnapshotRequest(round_id=message.round_id, receivers={"client-1": receiver}))
            )
        return answered()

    nodes.serve(peeks)
    sealed = bytes(boxes[0].sealed["client-1"].view)
    private, _ = load_identity(nodes.folders["client-1"] / "identity")
    roster = load_keys(nodes.folders["client-1"] / "keys").roster
    context = msgspec.msgpack.encode([nodes.state.run, "client-0", "client-1", "model", 0])
    for once in secrets_of(nodes.folders["client-1"]):
        with pytest.raises(CryptoError):
            unseal(private, roster["client-0"], sealed, context, once=once)


def test_a_packet_that_was_never_opened_stays_closed_once_a_run_began(tmp_path):
    nodes = Nodes(tmp_path, "ckks-fedavg", 2, "federation.quorum=2", "federation.rounds=2")
    lead, silo = (KeyFolder(folder) for folder in nodes.folders.values())
    lead.approve({"client-1": silo.create(lead.create())})
    packet = lead.seal({"client-1": silo.ask(lead.public)}, "client-0")["client-1"]
    assert silo.once.exists()
    nodes.serve()
    assert not silo.once.exists()
    with pytest.raises(KeyFileError, match="has not asked"):
        silo.open(packet, "client-1", lead.public)


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


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-static"])
def test_no_key_of_a_finished_run_is_left(method, tmp_path):
    nodes, _, root = robbed(tmp_path, method)
    past = {key for ratchet in steps_of(nodes, root).values() for key in (ratchet.step, ratchet.ahead)}
    past.discard(steps_of(nodes, root)[4].ahead)  # what a fifth round would have come from
    for folder in nodes.folders.values():
        assert not past & set(secrets_of(folder))


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
