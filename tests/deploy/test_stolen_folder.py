"""Somebody copies a node's folder and has all messages that were ever sent: what came before stays closed."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from nodes import Nodes, secrets_of
from paraaegis.crypto.chunks import key_id_of
from paraaegis.crypto.ckks import Secret, profile, secret_key
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.keys import load_identity, load_keys
from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.sealed_box import unseal
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.errors import CryptoError, KeyFileError, ProtocolError
from paraaegis.methods import METHODS
from paraaegis.protocol.messages import Begin, Hello, Receiver, SnapshotRequest, Upload
from toy import configure

PRECISE = profile("precise")
STOLEN = 2  # rounds that the node has applied when its folder is copied


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
    return 3 if method == "lwe-secagg" else 2


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


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if "ckks" in method.ciphers(configure())])
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
    nodes, copy, _ = robbed(tmp_path, "lwe-secagg", 3)
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
    with pytest.raises(KeyFileError, match="did not ask"):
        silo.open(packet, "client-1", lead.public)


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-static"])
def test_no_key_of_a_finished_run_is_left(method, tmp_path):
    nodes, _, root = robbed(tmp_path, method)
    past = {key for ratchet in steps_of(nodes, root).values() for key in (ratchet.step, ratchet.ahead)}
    past.discard(steps_of(nodes, root)[4].ahead)  # what a fifth round would have come from
    for folder in nodes.folders.values():
        assert not past & set(secrets_of(folder))
