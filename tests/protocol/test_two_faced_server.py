"""A server that tells clients different things, asks again, or ends too early: nothing is gained by it."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from blobs import SAMPLES
from forging import N, tampered
from hand import Hand, ended, federation, uploads
from paraaegis.config import make_config
from paraaegis.crypto.sealed_box import new_pair
from paraaegis.deploy.answer import answer
from paraaegis.deploy.local_federation import lay_out
from paraaegis.deploy.node import DeployedClient
from paraaegis.deploy.store import Store
from paraaegis.errors import LearnerError, ProtocolError, UpdateError
from paraaegis.methods import find_method
from paraaegis.protocol.binding import _count_proof, sign, verify
from paraaegis.protocol.client import step
from paraaegis.protocol.messages import (
    Aggregate,
    Begin,
    Elected,
    Ended,
    Finish,
    ReportOnly,
    RollCall,
    Upload,
    pack,
    unpack,
)
from paraaegis.protocol.voting import pack_positions, unpack_positions
from paraaegis.runs.assemble import make_parameters, short_name
from paraaegis.runs.check import resolve

rng = np.random.default_rng(3)


# Outcomes


@pytest.mark.parametrize("extra", ["clients", "nonces", "tag", "elected"])
def test_a_void_round_carries_nothing(extra):
    playing, _ = federation("paraaegis-feedback", 3, 60, "protect.ratio=0.2")
    true = playing.round(1)
    borrowed = msgspec.structs.replace(Aggregate(1, 0), **{extra: getattr(true, extra)})
    with pytest.raises(ProtocolError, match="has no sum, but"):
        playing.send("client-0", playing.begin(2, borrowed))
    assert not playing.states["client-0"].applied
    assert not isinstance(playing.send("client-0", playing.begin(2, true)), Ended)


def test_a_void_round_and_one_with_a_sum_never_have_the_same_chain(monkeypatch):
    playing, _ = federation("ckks-fedavg", 3, 60)
    true = playing.round(1)
    # As if the check above were not there: the names, nonces and tag of the sum, and no sum.
    monkeypatch.setattr(Aggregate, "__ne__", lambda *_: False)
    void = msgspec.structs.replace(true, payload=None)
    for name, past in (("client-0", true), ("client-1", void)):
        playing.send(name, playing.begin(2, past))
    assert playing.states["client-0"].chain != playing.states["client-1"].chain


@pytest.mark.parametrize("different", ["models", "rosters", "chains"])
def test_clients_with_different_models_rosters_or_pasts_have_no_sum_in_common(different):
    playing, _ = federation("ckks-fedavg", 3, 60)
    state, silo = playing.states["client-2"], playing.silos["client-2"]
    if different == "models":
        playing.states["client-2"] = replace(state, weights=state.weights + 1)
    elif different == "chains":
        playing.states["client-2"] = replace(state, chains="0" * 64)
    else:
        playing.silos["client-2"] = replace(silo, roster={**silo.roster, "client-1": new_pair()[1]})
    counts = playing.counts("client-2")
    if different == "rosters":  # with a proof that fits: another check than the one that is tried
        proof = _count_proof(playing.silos["client-2"], "client-1", "client-1", 10)
        counts = {**counts, "proofs": {**counts["proofs"], "client-1": proof}}
    sent = {name: playing.send(name, playing.begin(1)) for name in ("client-0", "client-1")}
    sent["client-2"] = playing.send("client-2", playing.begin(1, **counts))
    mixed = playing.sum(1, sent)
    assert all(ended(playing, playing.begin(2, mixed), name) for name in playing.silos)


def test_a_tag_is_bound_to_the_elected_set():
    playing, _ = federation("paraaegis-static", 3, 60, "protect.ratio=0.2")
    sent, positions = uploads(playing, 1)
    silo, state = playing.silos["client-0"], playing.states["client-0"]
    elected = unpack_positions(positions, playing.parameters.k(1), 60)
    parts = (np.arange(12), np.arange(48))
    nonce, tag = sign(silo, state, state.keys.step, parts, elected)
    alone = Aggregate(1, 0, ("client-0",), positions, None, (nonce,), tag)
    verify(silo, state, alone, parts, elected)
    with pytest.raises(ProtocolError):
        verify(silo, state, alone, parts, np.roll(elected, 1))
    assert all(isinstance(one, Upload) for one in sent.values())


# Two sums of one round


def test_a_peers_model_of_another_past_is_refused():
    """Two sums over two sets of one round's uploads would tell a reader the difference: one client's update."""
    playing, _ = federation("ckks-fedavg", 5, 60, rounds=4)
    sent, _ = uploads(playing, 1)
    everyone = playing.sum(1, sent)
    without = playing.sum(1, {name: one for name, one in sent.items() if name != "client-4"})
    assert not isinstance(playing.send("client-0", playing.begin(2, everyone)), Ended)
    assert not isinstance(playing.send("client-1", playing.begin(3, without, Aggregate(2, 0))), Ended)
    sealed = playing.peek("client-1", 3, "client-0").sealed["client-0"]
    assert ended(playing, playing.begin(3, rescue=playing.rescue(2, "client-1", sealed, "client-0")))


def test_a_peers_model_of_the_same_past_is_taken():
    playing, _ = federation("ckks-fedavg", 5, 60, rounds=4)
    first = playing.round(1)
    assert not isinstance(playing.send("client-0", playing.begin(2, first)), Ended)
    assert not isinstance(playing.send("client-1", playing.begin(3, first, Aggregate(2, 0))), Ended)
    sealed = playing.peek("client-1", 3, "client-0").sealed["client-0"]
    playing.send("client-0", playing.begin(3, rescue=playing.rescue(2, "client-1", sealed, "client-0")))
    assert playing.states["client-0"].chains == playing.states["client-1"].chains


# Asking again


def nudged(aggregate, size):
    """The same sum with one ciphertext's c1 changed by so little that no value may change."""
    return tampered(aggregate, 0, np.zeros(N, np.uint64), np.full(N, size, dtype=np.uint64))


def test_what_was_checked_once_is_not_checked_again():
    """Whether a changed sum passes tells something of the CKKS key: no failure afterwards may let it be asked anew."""
    playing, _ = federation("ckks-fedavg", 3, N, rounds=3)
    first = playing.sum(1, uploads(playing, 1)[0])
    second = Aggregate(2, 0, ("client-0",))  # refused without any key
    with pytest.raises(ProtocolError):
        playing.send("client-0", playing.begin(3, nudged(first, 1), second))
    assert playing.states["client-0"].applied == 1
    with pytest.raises(ProtocolError):
        playing.send("client-0", playing.begin(3, nudged(first, 2**50), second))
    assert playing.states["client-0"].phase != "ended"  # it was not even looked at


def test_a_failure_of_training_does_not_let_the_sum_be_asked_about_again():
    playing, _ = federation("ckks-fedavg", 3, N, rounds=3)
    first = playing.sum(1, uploads(playing, 1)[0])
    playing.learners["client-0"].train = lambda *_: (np.full(N, np.nan, np.float32), {})
    for size in (1, 2**50):
        with pytest.raises(UpdateError):
            playing.send("client-0", playing.begin(2, nudged(first, size)))
        assert playing.states["client-0"].applied == 1


def test_each_run_round_and_attempt_has_a_ckks_key_of_its_own():
    playing, _ = federation("ckks-fedavg", 3, 60)
    silo = playing.silos["client-0"]
    encoding = silo.half.mechanism.encoding
    keys = silo.first_keys(silo.root)
    others = [
        keys.at(1, 1),
        keys.at(2, 0),
        silo.root.begin("another run"),
        silo.root.forward(1).begin(silo.parameters.run),
    ]
    assert len({encoding._secret(one.step).id for one in (keys, *others)}) == 5


def test_one_ballot_is_answered_with_one_elected_set():
    """An upload that fails is no reason to try another set: which set fails tells a parameter's position."""
    updates = rng.normal(0, 0.05, (3, 1, 64)).astype(np.float32)
    updates[0, 0, 5] = 90_000.0
    playing = Hand(updates, "protect.method=paraaegis-feedback", "protect.ratio=0.25", rounds=1)
    ballot = playing.send("client-0", playing.begin(1))
    chosen = unpack_positions(ballot.votes, playing.parameters.k(1), 64)
    elected = Elected(round_id=playing.parameters.round_id(1), positions=pack_positions(chosen))
    with pytest.raises(UpdateError, match="supports sums within"):
        playing.send("client-0", elected)
    for positions in (chosen, np.roll(chosen, 1)):
        with pytest.raises(ProtocolError, match="in phase 'elected'; expected phase 'voted'"):
            playing.send("client-0", Elected(round_id=elected.round_id, positions=pack_positions(positions)))


# What was withheld


@pytest.mark.parametrize("ask", ["begin", "finish"])
def test_a_question_in_between_does_not_change_what_is_withheld(ask):
    updates = rng.normal(0, 0.05, (3, 3, 60)).astype(np.float32)

    def residual(asked):
        playing = Hand(updates, "protect.method=paraaegis-feedback", "protect.ratio=0.2", rounds=3)
        first = playing.round(1)
        second = playing.round(2, first)
        if asked == "begin":
            playing.send("client-0", playing.begin(2, attempt=1, train=False))
        elif asked == "finish":
            playing.send("client-0", Finish(round_id=playing.parameters.round_id(1), aggregates=()))
        playing.send("client-0", playing.begin(3, second, train=False))
        return playing.states["client-0"].residual

    np.testing.assert_array_equal(residual(ask), residual(""))


# Nodes


@pytest.fixture
def node(tmp_path):
    """Two silos' folders, and a way to send a message to the first."""
    settings = ["federation.clients=2", f"federation.min_samples={SAMPLES}", "protect.method=ckks-fedavg",
                "federation.rounds=3", "privacy.noise=secret", "privacy.epsilon=inf", "privacy.clip=inf",
                "learner=blobs:make_learner"]  # fmt: skip
    config = resolve(make_config({}, settings), [SAMPLES])
    folders = lay_out(config, tmp_path)[1]

    def ask(name, message):
        return unpack(answer(DeployedClient(name, folders[name]), pack(message)))

    ask.folders, ask.config = folders, config
    ask.parameters = make_parameters(config, config.names, 120, config.names[:1], f"{short_name(config)}-a")
    return ask


def joined(node):
    """The counts and proofs for the first silo, after a roll call."""
    hellos = {name: node(name, RollCall(round_id=node.parameters.round_id(0))) for name in node.folders}
    proofs = {"client-1": hellos["client-1"].proofs["client-0"]}
    return {"counts": {name: hello.weight for name, hello in hellos.items()}, "proofs": proofs}


def test_a_run_does_not_end_before_its_first_round(node):
    counts = joined(node)
    kept = node.folders["client-0"] / "model.npy"
    np.save(kept, np.ones(120, np.float32))  # of a run that was finished
    with pytest.raises(ProtocolError, match="a run ends after one of its rounds 1 to 3, got 0"):
        node("client-0", Finish(round_id=node.parameters.round_id(0), aggregates=(), **counts))
    assert (np.load(kept) == 1).all()


def test_the_end_of_a_run_is_on_disk_before_the_answer_and_outlives_a_restart(node):
    counts = joined(node)
    forged = {**counts, "proofs": {"client-1": bytes(16)}}
    begin = Begin(round_id=node.parameters.round_id(1), aggregates=(), **forged)
    assert isinstance(node("client-0", begin), Ended)
    manifest = json.loads(next((node.folders["client-0"] / "runs").glob("*/manifest.json")).read_text())
    assert manifest["values"]["state/phase"] == "ended"
    right = Begin(round_id=node.parameters.round_id(1), aggregates=(), **counts)
    assert all(
        isinstance(node("client-0", one), Ended) for one in (right, RollCall(round_id=node.parameters.round_id(0)))
    )


def test_a_kept_state_is_the_one_that_the_step_goes_on_from():
    playing, _ = federation("ckks-fedavg", 3, 60)
    aggregate = playing.round(1)
    kept = []
    state = playing.states["client-0"]
    new, reply = step(playing.silos["client-0"], state, playing.begin(2, aggregate, train=False), kept.append)
    assert isinstance(reply, ReportOnly)
    assert [(one.applied, one.phase) for one in kept] == [(1, "idle")]
    np.testing.assert_array_equal(kept[0].weights, new.weights)


@pytest.mark.parametrize("fails", ["apply", "write"])
def test_another_sum_is_not_looked_at_when_the_first_could_not_be_kept(node, fails, monkeypatch):
    """A sum that was accepted and then lost, as on a full disk, leaves its digest, so that no other one is tried."""
    counts = joined(node)
    names = list(node.folders)
    hellos = {name: node(name, RollCall(round_id=node.parameters.round_id(0))) for name in names}
    proofs = {name: hellos[name].proofs for name in names}
    begins = {
        name: Begin(
            round_id=node.parameters.round_id(1),
            aggregates=(),
            counts=counts["counts"],
            proofs={other: proofs[other][name] for other in names if other != name},
        )
        for name in names
    }
    sent = {name: node(name, begins[name]) for name in names}
    first = Hand.sum(_Summing(node), 1, sent)
    second = Begin(round_id=node.parameters.round_id(2), aggregates=(first,))
    with monkeypatch.context() as patch:
        if fails == "apply":
            patch.setattr("blobs.Softmax.apply", lambda *_: 1 / 0)
        else:
            patch.setattr(Store, "_write", lambda *_: 1 / 0)
        with pytest.raises(LearnerError if fails == "apply" else ZeroDivisionError):
            node("client-0", second)
    other = nudged(first, 1)
    assert isinstance(node("client-0", Begin(round_id=node.parameters.round_id(2), aggregates=(other,))), Ended)
    assert isinstance(node("client-1", second), Upload)


class _Summing:
    """What an honest server sums with."""

    def __init__(self, node):
        self.parameters = node.parameters
        self.federation = type("Federation", (), {"server": find_method("ckks-fedavg").server(node.config, None)})
