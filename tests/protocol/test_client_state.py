"""A client's state catches up in order, survives the disk and is never changed in place."""

from dataclasses import fields, replace
from itertools import count

import msgspec
import numpy as np
import pytest

from hand import mean
from paraaegis.crypto.ratchet import Root
from paraaegis.errors import ParaAegisError, RunError
from paraaegis.protocol.client import step
from paraaegis.protocol.messages import Aggregate
from paraaegis.protocol.state import ClientState
from toy import configure, federation_of, learners_of
from two_clients import FEDAVG, FEEDBACK, ME, PEER, STATIC, UPDATES, bits, hand, voted


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
def test_a_client_that_was_left_out_catches_up_in_order(settings):
    playing = hand(*settings)
    first = playing.round(1, clients=[PEER])
    second = playing.round(2, first, clients=[PEER])
    playing.send(PEER, playing.begin(3, second))
    reply = playing.send(ME, playing.begin(3, first, second))
    assert reply.report.applied == 2
    np.testing.assert_array_equal(playing.states[ME].weights, playing.states[PEER].weights)


def test_aggregates_that_were_applied_already_are_not_applied_again():
    playing = hand(*FEDAVG)
    first = playing.round(1)
    second = playing.round(2, first)
    playing.send(ME, playing.begin(3, first, second))
    np.testing.assert_array_equal(playing.states[ME].weights, mean(UPDATES[:, 0]) + mean(UPDATES[:, 1]))


def test_a_first_report_has_no_metrics():
    assert hand(*FEDAVG).send(ME, hand(*FEDAVG).begin(1)).report.metrics == {}


@pytest.mark.parametrize("settings", [STATIC, FEEDBACK], ids=["static", "feedback"])
def test_a_state_survives_the_disk_in_every_phase(tmp_path, settings, monkeypatch):
    """Each message may reach a fresh process: the run goes on as if it had stayed in memory."""
    kept, stored = hand(*settings), hand(*settings)

    def on_disk(playing):
        for name, state in playing.states.items():
            np.savez(tmp_path / "state.npz", allow_pickle=False, **state.to_arrays())
            with np.load(tmp_path / "state.npz", allow_pickle=False) as arrays:
                playing.states[name] = ClientState.from_arrays(dict(arrays))

    phases = set()
    for playing, between in ((kept, lambda _: None), (stored, on_disk)):
        nonces = count()  # the same in both runs
        monkeypatch.setattr("paraaegis.crypto.mac.new_nonce", lambda n=nonces: next(n).to_bytes(16, "little"))
        aggregates = ()
        for number in (1, 2):
            ballots = [playing.send(client, playing.begin(number, *aggregates)) for client in playing.silos]
            phases.add(playing.states[ME].phase)
            between(playing)
            elected = playing.elect(number, ballots)
            uploads = {client: playing.send(client, elected) for client in playing.silos}
            phases.add(playing.states[ME].phase)
            between(playing)
            aggregates = (playing.sum(number, uploads, elected.positions),)
        playing.send(ME, playing.begin(3, *aggregates, train=False))
        phases.add(playing.states[ME].phase)
        between(playing)
    assert phases == {"voted", "sent", "idle"}
    assert kept.states[ME].applied == 2
    assert bits(replace(kept.states[ME], once=b"")) == bits(replace(stored.states[ME], once=b""))


def test_a_state_comes_back_with_every_field():
    vector, mask = np.arange(4, dtype=np.float32), np.array([True, False, True, False])
    integers = np.arange(3, dtype=np.int64)
    state = ClientState(
        vector, "sent", 3, 1, 2, counts=integers, chains="c", nonce="d", view="f",
        held=Root(bytes(32), bytes(16)).begin("r"), root=4, joined="g", once=b"h", line=b"i",
        pinned="j", model="k", share=integers + 1,
        opened=1, residual=vector + 1, update=vector + 2, next_residual=vector + 3, fingerprint="e", elected=mask,
    )  # fmt: skip
    assert set(state.to_arrays()) == {
        {"next_residual": "kept", "fingerprint": "mark"}.get(field.name, field.name) for field in fields(state)
    } - {"upload_context"}
    back = ClientState.from_arrays(state.to_arrays())
    assert bits(back) == bits(state)
    assert [type(getattr(back, field.name)) for field in fields(back)] == [
        type(getattr(state, field.name)) for field in fields(state)
    ]


@pytest.mark.parametrize("change", [{"extra": np.zeros(1)}, {"weights": None}], ids=["unknown", "missing"])
def test_foreign_arrays_are_no_state(change):
    arrays = ClientState(np.zeros(3, dtype=np.float32)).to_arrays() | change
    with pytest.raises(RunError, match="a client's state has the arrays"):
        ClientState.from_arrays({name: array for name, array in arrays.items() if array is not None})


def test_a_step_does_not_touch_the_state_it_was_given():
    playing = hand(*FEEDBACK)
    aggregate = playing.round(1)
    state = playing.states[ME]
    frozen = replace(state, **{name: getattr(state, name).copy() for name in ("weights", "update", "next_residual")})
    for name in ("weights", "update", "next_residual", "elected"):
        getattr(state, name).flags.writeable = False
    step(playing.silos[ME], state, playing.begin(2, aggregate))
    assert bits(state) == bits(frozen)


def test_what_was_made_ahead_is_never_stored_and_gone_when_its_round_is_over(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    playing, _ = voted(*STATIC, "privacy.epsilon=1.0", "privacy.clip=1.0")
    state = playing.states[ME]
    assert state.upload_context.prepared() is not None
    assert ClientState.from_arrays(state.to_arrays()).upload_context is None
    playing.send(ME, msgspec.structs.replace(playing.begin(2, Aggregate(1, 0)), train=False))  # round 1 was aborted
    assert (playing.states[ME].phase, playing.states[ME].upload_context) == ("idle", None)


def test_an_error_ahead_is_heard_of_when_the_upload_is_made(monkeypatch):
    def fail(*_):
        raise MemoryError("no room for noise")

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("paraaegis.protocol.mechanisms.EncodedMechanism.ahead", fail)
    playing, elected = voted(*STATIC, "privacy.epsilon=1.0", "privacy.clip=1.0")
    with pytest.raises(MemoryError, match="no room"):
        playing.send(ME, elected)


def test_repeating_a_step_does_not_repeat_its_noise(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    playing, elected = voted(*STATIC, "privacy.epsilon=1.0", "privacy.clip=1.0")
    state = playing.states[ME]
    step(playing.silos[ME], state, elected)
    with pytest.raises(ParaAegisError, match="for one vector"):
        step(playing.silos[ME], state, elected)


@pytest.mark.parametrize(("fraction", "kept"), [("1.0", 2), ("0.5", 10)])
def test_sums_that_all_have_applied_are_not_kept(fraction, kept):
    federation = federation_of(
        configure("protect.method=fedavg", "federation.clients=4", f"federation.fraction={fraction}"),
        learners_of(np.ones((4, 1, 3))),
    )
    deltas = federation.clients[ME].deltas
    for number in range(20):
        deltas(number, lambda: np.ones(3))
    assert len(deltas._values) == kept
