"""A server that lies, with real messages: each attack works where its check is taken out, and is caught with it.

`unchecked` takes a check out, so that a test that could not fail would be seen.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from attacks import step_of, unchecked
from forging import SHIFT, N, ciphertext, encoded, key_from, tampered
from hand import NOISY, ended, federation, uploads
from paraaegis.crypto.chunks import join, key_id_of
from paraaegis.crypto.mac import add_tags
from paraaegis.crypto.profiles import PROFILES
from paraaegis.errors import ProtocolError
from paraaegis.fixed_point import unpack_fixed_point
from paraaegis.protocol.contexts import RevealContext
from paraaegis.protocol.joining import SnapshotContent
from paraaegis.protocol.messages import Aggregate, Ended, ReportOnly, Upload
from paraaegis.types import Blob, Payload

KEYED = ("ckks-fedavg", "paraaegis-feedback", "paraaegis-static", "dp-fedavg", "serial")
TAGS = "paraaegis.protocol.round.verify"
PROOFS = "paraaegis.protocol.binding._check_proofs"


# A forged ciphertext


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback"])
@pytest.mark.parametrize("checked", [True, False])
def test_a_forged_ciphertext_gives_the_key_away_only_without_the_check(monkeypatch, method, checked):
    length = N if method == "ckks-fedavg" else 10 * N
    playing, updates = federation(method, 3, length, "protect.ratio=0.1", rounds=1)
    sent, positions = uploads(playing, 1)
    marks = encoded(np.full(N, 64.0))  # which parameters they are shows in the model
    forged = tampered(playing.sum(1, sent, positions), 0, marks, np.full(N, SHIFT, dtype=np.uint64))
    if checked:
        assert all(ended(playing, playing.finish(forged), name) for name in playing.silos)
        return
    unchecked(monkeypatch, TAGS)
    assert isinstance(playing.send("client-1", playing.finish(forged)), ReportOnly)
    model = playing.states["client-1"].weights
    stolen = key_from(model[np.flatnonzero(model > 32)] - 64)
    stored = sent["client-0"].payload
    chunk = (stored.parts[0] if stored.parts else stored).chunks[0]
    stolen.id = key_id_of(PROFILES["precise"], chunk.view)
    opened = stolen.decrypt(0, chunk.view, N)
    assert np.isin(opened, np.rint(updates[0, 0].astype(np.float64) / 3 * 2**22)).all()


@pytest.mark.parametrize("checked", [True, False])
def test_a_server_cannot_write_a_model_of_its_own(monkeypatch, checked):
    playing, _ = federation("ckks-fedavg", 3, N, rounds=1)
    honest = playing.sum(1, uploads(playing, 1)[0])
    row = ciphertext(encoded(np.full(N, 0.25)), np.zeros(N, dtype=np.uint64))  # c1 = 0: no key is needed
    key = key_id_of(PROFILES["precise"], honest.payload.chunks[0].view)
    payload = Payload("ckks", N, (Blob(join(PROFILES["precise"], key, 0, N, [row])),))
    forged = playing.finish(msgspec.structs.replace(honest, payload=payload))
    if checked:
        assert ended(playing, forged)
    else:
        unchecked(monkeypatch, TAGS)
        playing.send("client-0", forged)
        assert (playing.states["client-0"].weights == 0.25).all()


@pytest.mark.parametrize("method", KEYED)
def test_after_one_forged_sum_a_client_never_answers_again(method):
    """Accept or refuse was an oracle for the key: it may be asked until it refuses once."""
    playing, _ = federation(method, 3, 60)
    sent, positions = uploads(playing, 1)
    honest = playing.sum(1, sent, positions)
    forged = msgspec.structs.replace(honest, tag=add_tags([honest.tag, b"\1" + bytes(7)]))
    assert ended(playing, playing.begin(2, forged))
    state = playing.states["client-0"]
    for message in (playing.begin(2, honest), playing.begin(2, honest, attempt=1), playing.finish(honest)):
        assert isinstance(playing.send("client-0", message), Ended)
        assert playing.states["client-0"] is state
    assert isinstance(
        playing.send("client-1", playing.begin(2, honest)), type(playing.send("client-2", playing.begin(2, honest)))
    )


@pytest.mark.parametrize("method", [*KEYED, "paraaegis-dynamic", "varying-dp"])
def test_an_honest_server_is_believed(method):
    noisy = NOISY if method in ("paraaegis-dynamic", "varying-dp") else ()
    playing, _ = federation(method, 3, 60, *noisy)
    first = playing.round(1)
    second = playing.round(2, first)
    for name in playing.silos:
        assert isinstance(playing.send(name, playing.finish(second)), ReportOnly)
    assert len({playing.states[name].chain for name in playing.silos}) == 1


# The server's word for the weights


def weights_attack(playing, victim="client-0"):
    """The victim is told true counts, the others that one of them has a billion: the sum is the victim's update."""
    sent = {}
    for name in playing.silos:
        other = next(peer for peer in playing.silos if peer not in (name, victim))
        counts = playing.weights if name == victim else playing.weights | {other: 10**9}
        told = playing.counts(name) | {"counts": counts}
        sent[name] = playing.send(name, playing.begin(1, **told))
    return sent


def test_false_sample_counts_are_refused():
    playing, _ = federation("ckks-fedavg", 5, 60, samples=[100] * 5)
    sent = weights_attack(playing)
    assert isinstance(sent.pop("client-0"), Upload)
    assert all(isinstance(reply, Ended) for reply in sent.values())


def test_clients_with_different_counts_have_no_sum_in_common(monkeypatch):
    playing, updates = federation("ckks-fedavg", 5, 60, samples=[100] * 5)
    unchecked(monkeypatch, PROOFS)
    aggregate = playing.sum(1, weights_attack(playing))
    reveal_context = RevealContext(playing.parameters.round_id(1), step_of(playing, 1), 5, 0.2, None)
    isolated = playing.silos["client-1"].half.reveal(aggregate.payload, reveal_context).steps * 2.0**-22
    np.testing.assert_allclose(isolated, updates[0, 0] / 5, atol=2.0**-21)  # the victim's, alone
    assert all(ended(playing, playing.begin(2, aggregate), name) for name in playing.silos)


def test_a_count_is_proved_to_each_client_for_one_run():
    playing, _ = federation("ckks-fedavg", 3, 60, samples=[100] * 3)
    other, _ = federation("ckks-fedavg", 3, 60, "seed=7", samples=[100] * 3)
    theirs = playing.counts("client-0")
    for proofs in ({}, dict.fromkeys(theirs["proofs"], bytes(16)), other.counts("client-0")["proofs"]):
        playing.states["client-0"] = playing.joined("client-0")
        assert ended(playing, playing.begin(1, counts=playing.weights, proofs=proofs))
    playing.states["client-0"] = playing.joined("client-0")
    assert ended(playing, playing.begin(1, **(theirs | {"proofs": playing.counts("client-1")["proofs"]})))


# Names and outcomes


def test_a_name_is_listed_once_and_in_order():
    playing, _ = federation("ckks-fedavg", 5, 60)
    sent, _ = uploads(playing, 1)
    twice = {**sent, "client-0 again": sent["client-0"]}
    aggregate = playing.sum(1, twice)
    names = [*sent, "client-0"]
    for clients in (tuple(names), tuple(sorted(names)), tuple(reversed(sent))):
        with pytest.raises(ProtocolError, match="each once and in this order"):
            playing.send("client-1", playing.begin(2, msgspec.structs.replace(aggregate, clients=clients)))


@pytest.mark.parametrize("method", KEYED)
def test_one_upload_is_not_taken_for_the_sum(method):
    playing, _ = federation(method, 3, 60)
    sent, positions = uploads(playing, 1)
    alone = playing.sum(1, {"client-0": sent["client-0"]}, positions)
    nonces = tuple(one.nonce for one in sent.values())
    lie = msgspec.structs.replace(alone, clients=tuple(sent), nonces=nonces)
    assert ended(playing, playing.begin(2, lie), "client-1")


@pytest.mark.parametrize("lie", ["twice", "swapped", "older", "attempt"])
def test_uploads_cannot_be_repeated_swapped_or_taken_from_another_round(lie):
    playing, _ = federation("ckks-fedavg", 4, 60, "federation.quorum=3", rounds=3)
    first, _ = uploads(playing, 1)
    honest = playing.sum(1, first)
    if lie == "twice":
        total = playing.sum(1, {**first, "again": first["client-0"]})
        forged, number = msgspec.structs.replace(honest, payload=total.payload, tag=total.tag), 2
    elif lie == "swapped":  # the sum of three, said to be of another three
        three = playing.sum(1, {name: first[name] for name in ("client-0", "client-1", "client-2")})
        nonces = tuple(first[name].nonce for name in ("client-0", "client-1", "client-3"))
        forged, number = msgspec.structs.replace(three, clients=("client-0", "client-1", "client-3"), nonces=nonces), 2
    elif lie == "older":
        uploads(playing, 2, honest)
        forged, number = msgspec.structs.replace(honest, number=2), 3
    else:
        uploads(playing, 1, attempt=1)
        forged, number = msgspec.structs.replace(honest, attempt=1), 2
    for name in playing.silos:
        assert ended(playing, playing.begin(number, forged), name)


@pytest.mark.parametrize("checked", [True, False])
def test_clients_that_were_told_different_outcomes_are_never_mixed_again(monkeypatch, checked):
    if not checked:
        monkeypatch.setattr("paraaegis.protocol.round.chain_after", lambda *_: "")
        monkeypatch.setattr("paraaegis.protocol.round.view", lambda *_: b"")  # which has the model in it
        monkeypatch.setattr("paraaegis.protocol.round.view_in_round", lambda *_: "")
    playing, _ = federation("paraaegis-feedback", 4, 60, "protect.ratio=0.2", rounds=4)
    first = playing.round(1)
    void = Aggregate(1, 0)
    playing.send("client-3", playing.begin(2, void))
    for name in ("client-0", "client-1", "client-2"):
        playing.send(name, playing.begin(2, first))
    chains = [playing.states[name].chain for name in playing.silos]
    assert (len(set(chains)) == 2) is checked
    # A server that does not compare fingerprints sums them all the same.
    ballots = [playing.send(name, playing.begin(3, Aggregate(2, 0))) for name in playing.silos]
    elected = playing.elect(3, ballots)
    sent = {name: playing.send(name, elected) for name in playing.silos}
    mixed = playing.sum(3, sent, elected.positions)
    for name in playing.silos:
        reply = playing.send(name, playing.begin(4, mixed))
        assert isinstance(reply, Ended) is checked


def test_clients_that_were_told_different_elected_sets_have_no_sum_in_common():
    playing, _ = federation("paraaegis-static", 3, 60, "protect.ratio=0.2")
    ballots = [playing.send(name, playing.begin(1)) for name in playing.silos]
    elected = playing.elect(1, ballots)
    other = playing.elect(1, ballots[:1])
    assert bytes(other.positions.view) != bytes(elected.positions.view)
    sent = {name: playing.send(name, other if name == "client-2" else elected) for name in playing.silos}
    mixed = playing.sum(1, sent, elected.positions)
    assert all(ended(playing, playing.begin(2, mixed), name) for name in playing.silos)


def test_a_noised_value_in_clear_cannot_be_moved_either():
    playing, _ = federation("dp-fedavg", 3, 60)
    honest = playing.sum(1, uploads(playing, 1)[0])
    steps = unpack_fixed_point(honest.payload.chunks, 60).astype(np.int64)
    sent = playing.states["client-0"]
    for changed in (steps + 1, np.roll(steps, 1), -steps, steps + (2**61 - 1) * (np.arange(60) == 7)):
        playing.states["client-0"] = sent
        forged = msgspec.structs.replace(honest, payload=Payload("grid", 60, (Blob(changed.astype("<i8").data),)))
        assert ended(playing, playing.begin(2, forged))


# Models for late clients


def test_a_model_that_no_client_sealed_is_refused():
    playing, _ = federation("ckks-fedavg", 3, 60, rounds=3)
    server = replace(playing.silos["client-1"], identity=playing.silos["client-2"].identity)
    sealed = given(playing, server, "client-0", 2)  # even with a client's help
    assert ended(playing, playing.begin(3, rescue=playing.rescue(2, "client-1", sealed, "client-0")))


def given(playing, sender, receiver, applied):
    """A model of ones after `applied` rounds, sealed to a client's one-time key."""
    state = playing.states["client-1"]
    content = SnapshotContent(
        "0" * 64 * applied, b"", 0, state.joined, state.keys.encoded(), np.ones(60, np.float32).tobytes()
    )
    once = playing.receiver(receiver, sender.name).once
    return Blob(sender.seal_to(receiver, msgspec.msgpack.encode(content), "model", applied, once=once))


def test_a_sealed_model_of_another_round_or_to_another_client_is_refused():
    playing, _ = federation("ckks-fedavg", 3, 60, rounds=3)
    for receiver, applied in (("client-2", 2), ("client-0", 1)):
        playing.states["client-0"] = playing.joined("client-0")
        sealed = given(playing, playing.silos["client-1"], receiver, applied)
        assert ended(playing, playing.begin(3, rescue=playing.rescue(2, "client-1", sealed, "client-0")))
    playing.states["client-0"] = playing.joined("client-0")
    sealed = given(playing, playing.silos["client-1"], "client-0", 2)
    rescue = playing.rescue(2, "client-1", sealed, "client-0")
    assert isinstance(playing.send("client-0", playing.begin(3, rescue=rescue)), Upload)
