"""A changed RLWE sum ends the run for a client, and no single upload is ever opened in its place."""

import msgspec
import numpy as np
import pytest

from attacks import unchecked
from hand import ended, uploads
from masked import (
    METHODS,
    Round,
    changed,
    flipped,
    inside,
    lifted,
    masked,
    opened,
    sealed,
    secret_of,
    steps_of,
    with_rows,
)
from paraaegis.crypto import rlwe
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.protocol.messages import Ended, ReportOnly, Upload
from paraaegis.types import Blob

each_method = pytest.mark.parametrize("method", METHODS)


@each_method
@pytest.mark.parametrize("by", [1 << 10, -(1 << 10), 1 << 40, 1 << 9, 12345678])
def test_a_changed_sum_ends_the_run(method, by):
    played = Round(method)
    assert played.refused_by_all(changed(played.honest, chunks=lifted(inside(played.honest.payload), by)))


def test_a_change_within_the_error_changes_no_value():
    """What the server can learn from it concerns the sum of errors, all of which may be known."""
    played = Round()
    nudged = changed(played.honest, chunks=lifted(played.honest.payload, 2))
    assert not isinstance(played.playing.send("client-0", played.playing.begin(2, nudged)), Ended)
    assert not isinstance(played.playing.send("client-1", played.playing.begin(2, played.honest)), Ended)
    models = [played.playing.states[name].weights for name in ("client-0", "client-1")]
    np.testing.assert_array_equal(*models)


def test_a_second_version_of_a_sum_is_not_looked_at():
    played = Round()
    nudged = changed(played.honest, chunks=lifted(played.honest.payload, 2))
    played.playing.learners["client-0"].train = lambda *_: (np.full(60, np.nan, np.float32), {})
    for aggregate in (played.honest, nudged):
        with pytest.raises(UpdateError, match="NaN or infinity"):
            played.playing.send("client-0", played.playing.begin(2, aggregate))
        assert played.playing.states["client-0"].applied == 1


@each_method
@pytest.mark.parametrize("checked", [True, False])
def test_one_clients_upload_in_another_ones_place_opens_nothing(monkeypatch, method, checked):
    """Even without the tags: the sum of the secrets is not that of the uploads in the sum."""
    played = Round(method)
    if not checked:
        unchecked(monkeypatch, "paraaegis.protocol.round.verify")
    playing, sent = played.playing, played.sent
    reflected = {**sent, "client-1": sent["client-0"]}
    forged = playing.sum(1, reflected, played.positions, played.first(4))
    nonces = tuple(one.nonce for one in sent.values())
    for lie in (forged, msgspec.structs.replace(forged, nonces=nonces)):
        name = next(name for name, state in playing.states.items() if state.phase != "ended")
        assert ended(playing, playing.begin(2, lie), name)


@each_method
@pytest.mark.parametrize("checked", [True, False])
def test_one_upload_is_never_opened_as_the_sum(monkeypatch, method, checked):
    played = Round(method)
    if not checked:
        unchecked(monkeypatch, "paraaegis.protocol.round.verify")
    alone = played.playing.sum(1, {"client-0": played.sent["client-0"]}, played.positions, played.first(4))
    nonces = tuple(one.nonce for one in played.sent.values())
    assert played.refused_by_all(msgspec.structs.replace(alone, clients=tuple(played.sent), nonces=nonces))


def test_a_colluder_that_forges_rows_and_has_the_keys_still_needs_a_tag():
    """With a row it chose, a colluder decides what the secret is; what it cannot do is open a single upload with it."""
    played = Round(rounds=1)
    playing, victim = played.playing, played.sent["client-0"]
    zero = np.zeros(rlwe.SECRET, dtype=np.int64)
    rows = {holder: sealed(playing, zero, holder) for holder in range(4)}
    lie = changed(played.honest, chunks=victim.payload.chunks)
    assert all(ended(playing, playing.finish(with_rows(lie, rows)), name) for name in playing.silos)


def test_the_sum_is_what_the_rows_open_and_each_single_upload_is_not():
    played = Round(rounds=1)
    playing = played.playing
    secret = secret_of(playing, played.first(4))
    total = opened(playing, played.honest.payload, secret, 5)
    np.testing.assert_array_equal(total, sum(steps_of(update[0], 5) for update in played.updates))
    for upload in played.sent.values():
        with pytest.raises(CryptoError):
            opened(playing, upload.payload, secret, 5)
    assert isinstance(playing.send("client-0", playing.finish(played.honest)), ReportOnly)


# Shares on their way to fellow clients


@pytest.mark.parametrize("lie", ["another holder's", "another sender's", "changed", "empty", "huge"])
def test_a_forged_share_ends_the_run(lie):
    playing, _ = masked()
    sent, _ = uploads(playing, 1)
    request = playing.survivors(1, sent, "client-0")
    share = {
        "another holder's": sent["client-1"].shares["client-2"],
        "another sender's": sent["client-2"].shares["client-0"],
        "changed": flipped(sent["client-1"].shares["client-0"]),
        "empty": Blob(b""),
        "huge": Blob(bytes(1 << 20)),
    }[lie]
    forged = msgspec.structs.replace(request, shares={**request.shares, "client-1": share})
    assert ended(playing, forged)
    assert playing.states["client-0"].share is None


def test_without_the_proofs_of_weights_the_shares_stay_closed(monkeypatch):
    playing, _ = masked("ckks-fedavg", 5, 60, samples=[100] * 5)
    unchecked(monkeypatch, "paraaegis.protocol.binding._check_proofs")
    sent = {}
    for name in playing.silos:
        other = next(peer for peer in playing.silos if peer not in (name, "client-0"))
        counts = playing.weights if name == "client-0" else playing.weights | {other: 10**9}
        sent[name] = playing.send(name, playing.begin(1, **(playing.counts(name) | {"counts": counts})))
    assert all(isinstance(reply, Upload) for reply in sent.values())
    assert all(ended(playing, playing.survivors(1, sent, name), name) for name in ("client-0", "client-1", "client-3"))
