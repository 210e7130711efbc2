"""A server that lies about shares of lwe-secagg opens no single update."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from attacks import step_of, unchecked
from hand import ended, federation, uploads
from paraaegis.crypto import lwe
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.mac import add_tags
from paraaegis.crypto.shamir import NARROW, centre, rebuild
from paraaegis.errors import ConfigError, CryptoError, ProtocolError
from paraaegis.methods import method_of
from paraaegis.protocol.contexts import RevealContext
from paraaegis.protocol.messages import Aggregate, Ended, ShareSum, Survivors
from paraaegis.protocol.shares import _purpose
from paraaegis.protocol.sums import public_seed
from paraaegis.types import Blob, Payload
from toy import configure


def row_of(reply):
    assert isinstance(reply, ShareSum)
    return np.frombuffer(reply.row.view, NARROW.word)


def survivors(playing, sent, names, receiver):
    shares = {name: sent[name].shares[receiver] for name in names if name != receiver}
    return Survivors(round_id=playing.parameters.round_id(1), clients=tuple(names), shares=shares)


def unmasked(playing, upload, secret):
    """One client's update, from its upload and its secret, in units of the update; with its own error."""
    names, length = list(playing.silos), playing.parameters.length
    mechanism, round_id = playing.silos[names[0]].half.mechanism, playing.parameters.round_id(1)
    values = lwe.RING.unpack(upload.payload.chunks, length)
    mask = lwe.RING.mask(public_seed(round_id), secret, length)
    numbers = mechanism.numbers(RevealContext(round_id, b"", len(names), 1 / len(names), None), length)
    unit = len(names) / numbers.scale
    return centre(values - mask, lwe.RING.moduli(length)) * unit, numbers.error_std * unit


def least_quorum(clients, settings):
    config = configure("protect.method=lwe-secagg", f"federation.clients={clients}", *settings)
    return method_of(config).least_quorum(config)


def two_sets(playing, colluders):
    """The server and colluders get two sums opened, over sets that differ by the victim: the difference is its secret.

    Every honest client answers once; colluders as often as they are asked. None where a sum does not open.
    """
    names = list(playing.silos)
    sent, _ = uploads(playing, 1)
    honest, helping, victim = names[:-colluders], names[-colluders:], names[0]
    half = len(honest) // 2
    sums = []
    for chosen, asked in ((names, [victim, *honest[1:half]]), (names[1:], honest[half:])):
        rows = {names.index(name): row_of(playing.send(name, survivors(playing, sent, chosen, name))) for name in asked}
        for name in helping:
            before = playing.states[name]
            rows[names.index(name)] = row_of(playing.send(name, survivors(playing, sent, chosen, name)))
            playing.states[name] = before
        try:
            sums.append(rebuild(rows, playing.parameters.quorum))
        except CryptoError:
            return None
    return unmasked(playing, sent[victim], sums[0] - sums[1])


@pytest.mark.parametrize(("clients", "colluders"), [(5, 1), (7, 1), (9, 1), (10, 2)])
@pytest.mark.parametrize("checked", [True, False])
def test_two_sets_of_survivors_unmask_one_client_only_below_the_quorum_that_is_required(
    monkeypatch, clients, colluders, checked
):
    settings = [f"privacy.colluders={colluders}"]
    if not checked:
        unchecked(monkeypatch, "paraaegis.parts.Lwe.check")
        settings.append(f"federation.quorum={(clients - colluders) // 2 + colluders}")
    playing, updates = federation("lwe-secagg", clients, 2048, *settings, rounds=1)
    found = two_sets(playing, colluders)
    if checked:
        assert playing.parameters.quorum >= least_quorum(clients, settings)
        assert found is None
    else:
        values, error = found
        assert np.std(values - updates[0, 0] / max(1, np.linalg.norm(updates[0, 0]))) < 1.2 * error


def test_a_quorum_that_two_sets_could_reach_or_with_too_few_honest_clients_is_refused():
    for clients, quorum, form in ((10, 5, "ring"), (9, 5, "ring"), (5, 3, "ring"), (3, 2, "ring"), (3, 2, "matrix")):
        with pytest.raises(ConfigError, match=r"needs a quorum of"):
            federation("lwe-secagg", clients, 60, f"federation.quorum={quorum}", f"protect.lwe={form}")


@pytest.mark.parametrize("stolen", [False, True])
def test_shares_that_a_colluder_forges_rebuild_no_secret(stolen):
    """`stolen`: the server has even all identity keys. Every receiver still adds the share that it kept itself."""
    playing, _ = federation("lwe-secagg", 6, 2048, rounds=1)
    names, victim, colluder = list(playing.silos), "client-0", "client-5"
    sent, _ = uploads(playing, 1)
    zero, rows = bytes(2 * lwe.RING.size), {}
    for receiver in names[1:-1]:
        shares = {victim: sent[victim].shares[receiver]}
        for sender in names[1:]:
            if sender != receiver:
                as_sender = playing.silos[sender].identity if stolen else playing.silos[colluder].identity
                silo = replace(playing.silos[colluder], name=sender, identity=as_sender)
                shares[sender] = Blob(silo.seal_to(receiver, zero, *purpose(playing, receiver), group=group(playing)))
        reply = playing.send(
            receiver, Survivors(round_id=playing.parameters.round_id(1), clients=tuple(names), shares=shares)
        )
        if not stolen:
            assert isinstance(reply, Ended)
            continue
        rows[names.index(receiver)] = row_of(reply)
    if stolen:
        silo = playing.silos[colluder]
        own = silo.open_from(
            victim, bytes(sent[victim].shares[colluder].view), *purpose(playing, colluder), group=group(playing)
        )
        rows[5] = np.frombuffer(own, NARROW.word)
        assert np.abs(rebuild(rows, playing.parameters.quorum)).max() > NARROW.prime // 8  # nothing like a secret


def group(playing):
    return derive(step_of(playing, 1), "shares")


def purpose(playing, name):
    return _purpose(playing.states[name])


def test_a_client_gives_out_one_sum_of_shares_a_round_over_all_attempts():
    playing, _ = federation("lwe-secagg", 6, 60)
    sent, _ = uploads(playing, 1)
    names = list(sent)
    playing.send("client-0", survivors(playing, sent, names, "client-0"))
    with pytest.raises(ProtocolError, match="received Survivors in phase 'shared'; expected phase 'sent'"):
        playing.send("client-0", survivors(playing, sent, names[:-1], "client-0"))
    with pytest.raises(ProtocolError, match="already released shares in round 1"):
        playing.send("client-0", playing.begin(1, attempt=1))


def test_a_share_opens_in_its_own_attempt_and_view_only():
    playing, _ = federation("lwe-secagg", 6, 60)
    old, _ = uploads(playing, 1)
    sent, _ = uploads(playing, 1, attempt=1)
    names = list(sent)
    mixed = {name: (old if name == "client-3" else sent)[name].shares["client-0"] for name in names[1:]}
    message = Survivors(round_id=playing.parameters.round_id(1, 1), clients=tuple(names), shares=mixed)
    assert ended(playing, message)


def test_a_false_unmasked_sum_is_refused():
    playing, _ = federation("lwe-secagg", 6, 60)
    sent, _ = uploads(playing, 1)
    wrong = Payload("lwe", 60, (Blob(np.arange(60, dtype="<i4").data),))
    tags = add_tags(one.tag for one in sent.values())
    forged = Aggregate(1, 0, tuple(sent), None, wrong, tuple(one.nonce for one in sent.values()), tags)
    assert ended(playing, playing.begin(2, forged))


# Hardness


def test_hardness_is_that_of_the_form_and_of_the_honest_clients_in_a_sum():
    assert [lwe.hardness(lwe.RING.bits, honest) for honest in (1, 2, 10)] == [0, 128, 128]
    for form in (lwe.RING, lwe.MATRIX):
        assert all(low <= high for low, high in pairwise(lwe.hardness(form.bits, honest) for honest in range(30)))
        assert form.bits[2] >= 127
