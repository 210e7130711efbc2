"""lwe-secagg through the whole protocol, with every message on the way."""

from dataclasses import replace

import numpy as np
import pytest

from paraaegis.crypto import lwe
from paraaegis.errors import ConfigError, CryptoError, ProtocolError
from paraaegis.protocol import client
from paraaegis.protocol.binding import prove_count
from paraaegis.protocol.messages import Begin, Ended, RollCall, ShareSum, Survivors, Upload, pack, unpack
from paraaegis.protocol.round_server import Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.shares import _purpose
from paraaegis.protocol.state import ServerState
from paraaegis.types import Blob
from toy import configure, federation_of, learners_of, play

SETTINGS = ("protect.method=lwe-secagg", "privacy.epsilon=1.0", "privacy.clip=1.0", "privacy.calibration=tight")
rng = np.random.default_rng(5)


class Wire:
    """Carries messages in order, keeps them, and loses those that `loses` names."""

    def __init__(self, federation, loses=lambda _name, _message: False):
        self.silos, self.loses = federation.clients, loses
        call = RollCall(round_id=federation.parameters.round_id(0))
        self.states = {
            name: client.step(silo, client.start(silo), call)[0] for name, silo in federation.clients.items()
        }
        self.replies = []

    def __call__(self, exchange):
        for name, frames in exchange.messages.items():
            self.states[name], reply = client.step(self.silos[name], self.states[name], unpack(frames))
            self.replies.append((name, reply))
            if not self.loses(name, reply):
                yield Reply(name, pack(reply))


def run(updates, *settings, loses=lambda _name, _message: False, quorum=5):
    learners = learners_of(updates)
    config = configure(*SETTINGS, f"federation.clients={len(learners)}", f"federation.quorum={quorum}",
                       "federation.rounds=1", *settings)  # fmt: skip
    federation = federation_of(config, learners)
    carried, lines, states = Wire(federation, loses), [], []
    drive(
        serve(RoundServer(federation.parameters, federation.server, ServerState())),
        carried,
        lines.append,
        states.append,
    )
    return federation, carried, lines, states


def recorded_noise(monkeypatch):
    """Every error that a client draws, as it is drawn."""
    drawn = []
    real = lwe.error

    def record(*arguments):
        drawn.append(real(*arguments))
        return drawn[-1].copy()  # which the values are added to

    monkeypatch.setattr(lwe, "error", record)
    return drawn


def expected_sum(federation, updates, survivors, noise):
    """Σ round(scale·weight·clip(u)) + Σe over the survivors, in integer units."""
    silo = next(iter(federation.clients.values()))
    count, length = len(updates), updates.shape[1]
    form, sigma = silo.half.mechanism.form, silo.half.mechanism.gaussian.sigmas[0]
    numbers = lwe.lwe_parameters(form, 1 / count, sigma / count, length, count, silo.parameters.quorum, 1)
    total = np.zeros(length, dtype=np.int64)
    for index in survivors:
        shrink = 1 / max(1, np.linalg.norm(updates[index].astype(np.float64)))
        total += np.rint(updates[index].astype(np.float64) * (shrink / count * numbers.scale)).astype(np.int64)
        total += noise[index]
    return total, numbers.scale


@pytest.mark.parametrize("form", ["ring", "matrix"])
def test_the_sum_is_the_plain_sum_plus_the_recorded_noise(monkeypatch, form):
    noise = recorded_noise(monkeypatch)
    updates = rng.normal(size=(6, 1500)).astype(np.float32) / 10
    federation, carried, _, _ = run(updates, f"protect.lwe={form}")
    total, scale = expected_sum(federation, updates, range(6), noise)
    np.testing.assert_array_equal(carried.states["client-0"].weights, (total / scale).astype(np.float32))


def test_a_client_gone_after_the_upload_stays_in_the_sum(monkeypatch):
    noise = recorded_noise(monkeypatch)
    updates = rng.normal(size=(6, 300)).astype(np.float32) / 10
    lost = lambda name, message: name == "client-2" and isinstance(message, ShareSum)  # noqa: E731
    federation, carried, lines, _ = run(updates, loses=lost)
    assert lines[0].clients == ["client-0", "client-1", "client-2", "client-3", "client-4", "client-5"]
    assert "client-2" in lines[0].dropped
    total, scale = expected_sum(federation, updates, range(6), noise)
    np.testing.assert_array_equal(carried.states["client-0"].weights, (total / scale).astype(np.float32))


def test_a_client_gone_before_the_upload_is_not_in_the_sum(monkeypatch):
    noise = recorded_noise(monkeypatch)
    updates = rng.normal(size=(6, 300)).astype(np.float32) / 10
    lost = lambda name, message: name == "client-5" and isinstance(message, Upload)  # noqa: E731
    federation, carried, lines, _ = run(updates, loses=lost)
    assert lines[0].clients == ["client-0", "client-1", "client-2", "client-3", "client-4"]
    total, scale = expected_sum(federation, updates, range(5), noise)
    np.testing.assert_array_equal(carried.states["client-0"].weights, (total / scale * (60 / 50)).astype(np.float32))


def test_with_fewer_shares_than_needed_the_round_fails_and_reveals_nothing():
    updates = rng.normal(size=(6, 300)).astype(np.float32)
    lost = lambda name, message: name in ("client-1", "client-2") and isinstance(message, ShareSum)  # noqa: E731
    _, carried, lines, states = run(updates, loses=lost)
    assert lines[0].clients == []
    assert all(aggregate.payload is None for state in states for aggregate in state.history)
    assert not carried.states["client-0"].weights.any()


def test_no_share_is_sent_unsealed(monkeypatch):
    rows = []
    from paraaegis.protocol import mechanisms

    real = mechanisms.share
    monkeypatch.setattr(mechanisms, "share", lambda *a: rows.append(real(*a)) or rows[-1])
    _, carried, _, _ = run(rng.normal(size=(6, 300)).astype(np.float32))
    uploads = b"".join(
        bytes(frame) for _, reply in carried.replies for frame in pack(reply) if isinstance(reply, Upload)
    )
    assert len(rows) == 6
    for row in np.concatenate(rows):
        assert row.tobytes()[:64] not in uploads


def asked(survivors, federation, carried):
    """A share request for these survivors, with the real sealed shares."""
    uploads = {name: reply for name, reply in carried.replies if isinstance(reply, Upload)}
    return Survivors(
        round_id=federation.parameters.round_id(1),
        clients=tuple(survivors),
        shares={sender: uploads[sender].shares["client-0"] for sender in survivors if sender != "client-0"},
    )


def begin(federation, name, attempt=0):
    """What an honest server tells this client."""
    proofs = {other: prove_count(silo)[name] for other, silo in federation.clients.items() if other != name}
    counts = {other: silo.learner.samples for other, silo in federation.clients.items()}
    return Begin(round_id=federation.parameters.round_id(1, attempt), aggregates=(), counts=counts, proofs=proofs)


def sent(updates):
    """Clients that have uploaded and not yet been asked for shares."""
    learners = learners_of(updates)
    config = configure(*SETTINGS, "federation.clients=6", "federation.quorum=5", "federation.rounds=1")
    federation = federation_of(config, learners)
    carried = Wire(federation)
    for name, silo in federation.clients.items():
        carried.states[name], reply = client.step(silo, carried.states[name], begin(federation, name))
        carried.replies.append((name, reply))
    return federation, carried


def test_a_client_answers_one_share_request_a_round_for_one_set():
    federation, carried = sent(rng.normal(size=(6, 50)).astype(np.float32))
    silo, names = federation.clients["client-0"], list(federation.clients)
    state, _ = client.step(silo, carried.states["client-0"], asked(names, federation, carried))
    with pytest.raises(ProtocolError, match="received Survivors in phase 'shared'; expected phase 'sent'"):
        client.step(silo, state, asked(names[:5], federation, carried))


@pytest.mark.parametrize(
    "survivors", [["client-0", "client-1", "client-2", "client-3"], [f"client-{i}" for i in range(1, 6)]]
)
def test_a_set_below_the_quorum_or_without_oneself_is_refused(survivors):
    federation, carried = sent(rng.normal(size=(6, 50)).astype(np.float32))
    with pytest.raises(ProtocolError):
        client.step(federation.clients["client-0"], carried.states["client-0"], asked(survivors, federation, carried))


def test_a_share_sealed_without_the_clients_group_secret_is_refused():
    federation, carried = sent(rng.normal(size=(6, 50)).astype(np.float32))
    request = asked(list(federation.clients), federation, carried)
    silo, state = federation.clients["client-0"], carried.states["client-0"]
    share = federation.clients["client-1"].seal_to(
        "client-0", bytes(2 * lwe.RING.size), *_purpose(state), group=bytes(32)
    )
    forged = Survivors(
        round_id=request.round_id, clients=request.clients, shares={**request.shares, "client-1": Blob(share)}
    )
    assert isinstance(client.step(silo, state, forged)[1], Ended)


def test_a_share_that_an_earlier_version_stored_is_named_and_is_no_forgery():
    federation, carried = sent(rng.normal(size=(6, 50)).astype(np.float32))
    request = asked(list(federation.clients), federation, carried)
    silo, state = federation.clients["client-0"], carried.states["client-0"]
    older = replace(state, share=state.share.astype(np.int64))
    with pytest.raises(CryptoError, match="got int64; another version of paraaegis made them"):
        client.step(silo, older, request)
    assert isinstance(client.step(silo, state, request)[1], ShareSum)


def test_secret_and_error_are_fresh_for_every_attempt(monkeypatch):
    noise, secrets = recorded_noise(monkeypatch), []
    from paraaegis.protocol import mechanisms

    real = mechanisms.share
    monkeypatch.setattr(mechanisms, "share", lambda secret, *rest: secrets.append(secret) or real(secret, *rest))
    learners = learners_of(np.zeros((6, 200), dtype=np.float32))
    federation = federation_of(configure(*SETTINGS, "federation.clients=6", "federation.rounds=2"), learners)
    silo = federation.clients["client-0"]
    state, _ = client.step(silo, client.start(silo), RollCall(round_id=federation.parameters.round_id(0)))
    for attempt in range(2):
        state, _ = client.step(silo, state, begin(federation, "client-0", attempt))
    assert (noise[0] != noise[1]).any()
    assert (secrets[0] != secrets[1]).any()


@pytest.mark.parametrize("spoilt", [b"", b"123", bytes(8)])
def test_a_malformed_share_sum_drops_its_client_and_not_the_run(spoilt):
    updates = rng.normal(size=(6, 300)).astype(np.float32)
    learners = learners_of(updates)
    config = configure(*SETTINGS, "federation.clients=6", "federation.quorum=5", "federation.rounds=1")
    federation = federation_of(config, learners)
    honest, lines = Wire(federation), []

    def carry(exchange):
        for reply in honest(exchange):
            if reply.client == "client-1" and isinstance(unpack(reply.frames), ShareSum):
                yield Reply("client-1", pack(ShareSum(round_id=federation.parameters.round_id(1), row=Blob(spoilt))))
            else:
                yield reply

    drive(
        serve(RoundServer(federation.parameters, federation.server, ServerState())), carry, lines.append, lambda _: None
    )
    assert "share sum" in lines[0].dropped["client-1"]
    assert len(lines[0].clients) == 6


def test_a_wrong_share_sum_aborts_the_round_and_not_the_run():
    learners = learners_of(rng.normal(size=(6, 300)).astype(np.float32))
    config = configure(*SETTINGS, "federation.clients=6", "federation.quorum=5", "federation.rounds=1")
    federation = federation_of(config, learners)
    honest, lines = Wire(federation), []

    def carry(exchange):
        for reply in honest(exchange):
            message = unpack(reply.frames)
            if reply.client == "client-1" and isinstance(message, ShareSum):
                row = bytearray(message.row.view)
                row[0] ^= 1
                message = ShareSum(round_id=message.round_id, row=Blob(row))
            yield Reply(reply.client, pack(message))

    drive(
        serve(RoundServer(federation.parameters, federation.server, ServerState())), carry, lines.append, lambda _: None
    )
    assert lines[0].clients == []
    assert not honest.states["client-0"].weights.any()


def test_lwe_without_noise_is_refused_before_any_work():
    with pytest.raises(ConfigError, match="epsilon"):
        play(np.zeros((4, 10)), "protect.method=lwe-secagg")


def test_a_default_quorum_is_one_that_shares_can_serve():
    """Four fifths of five clients would be four, of which three may collude: one honest one is too few."""
    config = configure(*SETTINGS, "federation.clients=5", "privacy.colluders=3", "federation.rounds=1")
    assert federation_of(config, learners_of(np.zeros((5, 20), dtype=np.float32))).parameters.quorum == 5


@pytest.mark.parametrize(("colluders", "quorum"), [(2, 6), (1, 5), (9, 10)])
def test_a_quorum_that_shares_cannot_serve_is_refused(colluders, quorum):
    """Of ten clients, two sets of six differ by enough for the server and two colluders to unmask one client."""
    settings = (f"privacy.colluders={colluders}", f"federation.quorum={quorum}")
    with pytest.raises(ConfigError, match=r"needs a quorum of "):
        play(np.zeros((10, 20)), *SETTINGS, *settings)
