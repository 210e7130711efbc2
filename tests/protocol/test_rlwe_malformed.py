"""What a server sends clients under RLWE in a wrong form is refused in clear words, and nothing of it is kept."""

from contextlib import suppress
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hand import federation, uploads
from masked import Round, changed, inside, masked
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.methods import find_method
from paraaegis.protocol.messages import Ended, ShareSum
from paraaegis.types import Blob
from toy import configure


def part(aggregate):
    return inside(aggregate.payload)


def rows_of(aggregate):
    return part(aggregate).parts[0]


AGGREGATES = {
    "no rows": lambda past: {"parts": ()},
    "two parts of rows": lambda past: {"parts": 2 * part(past).parts},
    "rows of another kind": lambda past: {"parts": (msgspec.structs.replace(rows_of(past), kind="grid"),)},
    "rows in rows": lambda past: {"parts": (msgspec.structs.replace(rows_of(past), parts=part(past).parts),)},
    "no chunk": lambda past: {"chunks": ()},
    "two chunks": lambda past: {"chunks": 2 * part(past).chunks},
    "a short chunk": lambda past: {"chunks": (Blob(bytes(part(past).chunks[0].view)[:-1]),)},
    "a long chunk": lambda past: {"chunks": (Blob(bytes(part(past).chunks[0].view) + b"\0"),)},
    "an empty chunk": lambda past: {"chunks": (Blob(b""),)},
    "a huge chunk": lambda past: {"chunks": (Blob(bytes(1 << 22)),)},
    "residues that are not reduced": lambda past: {"chunks": (Blob(b"\xff" * len(part(past).chunks[0])),)},
    "zeros": lambda past: {"chunks": (Blob(bytes(len(part(past).chunks[0]))),)},
    "another length": lambda past: {"length": part(past).length + 1},
    "a huge length": lambda past: {"length": 2**48},
    "a negative length": lambda past: {"length": -1},
    "another kind": lambda past: {"kind": "ckks"},
}


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-static"])
@pytest.mark.parametrize("lie", AGGREGATES.values(), ids=AGGREGATES)
def test_an_aggregate_of_another_form_is_refused_and_nothing_is_applied(method, lie):
    played = Round(method)
    playing = played.playing
    before = playing.states["client-0"].weights.copy()
    forged = playing.begin(2, changed(played.honest, **lie(played.honest)))
    with suppress(ProtocolError, CryptoError):  # where that can be said without a key
        assert isinstance(playing.send("client-0", forged), Ended)
    assert playing.states["client-0"].applied == 0
    np.testing.assert_array_equal(playing.states["client-0"].weights, before)


@pytest.mark.timeout(60)
def test_rows_that_are_repeated_count_once():
    played = Round()
    rows = msgspec.structs.replace(rows_of(played.honest), chunks=500 * rows_of(played.honest).chunks)
    playing = played.playing
    assert not isinstance(playing.send("client-0", playing.begin(2, changed(played.honest, parts=(rows,)))), Ended)
    playing.send("client-1", playing.begin(2, played.honest))
    np.testing.assert_array_equal(playing.states["client-0"].weights, playing.states["client-1"].weights)


def test_an_rlwe_upload_does_not_enter_a_ckks_sum():
    played = Round()
    config = configure("protect.method=ckks-fedavg", "federation.clients=5")
    total = find_method("ckks-fedavg").server(config, None).new_sum(played.playing.parameters.round_id(1), 60)
    with pytest.raises(ProtocolError, match="expected a 'ckks' payload of 0 parts, got a 'rlwe' payload of 0"):
        total.add(played.sent["client-0"].payload)


# Requests for them

REQUESTS = {
    "a share too few": lambda asked: {"shares": dict(list(asked.shares.items())[1:])},
    "a share too many": lambda asked: {"shares": asked.shares | {"client-9": Blob(b"")}},
    "a share of itself": lambda asked: {"shares": asked.shares | {"client-0": Blob(b"")}},
    "a name twice": lambda asked: {"clients": (*asked.clients, asked.clients[-1])},
    "another order": lambda asked: {"clients": asked.clients[::-1]},
    "a stranger": lambda asked: {"clients": (*asked.clients, "client-9")},
    "nobody": lambda asked: {"clients": (), "shares": {}},
    "another attempt": lambda asked: {"round_id": msgspec.structs.replace(asked.round_id, attempt=1)},
    "another round": lambda asked: {"round_id": msgspec.structs.replace(asked.round_id, number=2)},
    "another run": lambda asked: {"round_id": msgspec.structs.replace(asked.round_id, run="b")},
}


@pytest.mark.parametrize("lie", REQUESTS)
def test_a_request_of_another_form_is_refused_and_the_right_one_is_answered_afterwards(lie):
    playing, _ = masked()
    sent, _ = uploads(playing, 1)
    asked, state = playing.survivors(1, sent, "client-0"), playing.states["client-0"]
    with pytest.raises(ProtocolError):
        playing.send("client-0", msgspec.structs.replace(asked, **REQUESTS[lie](asked)))
    assert playing.states["client-0"] is state
    assert isinstance(playing.send("client-0", asked), ShareSum)


@pytest.mark.parametrize("phase", ["idle", "voted", "elected", "shared"])
def test_shares_are_given_out_only_after_an_upload(phase):
    playing, _ = masked("paraaegis-feedback")
    sent, _ = uploads(masked("paraaegis-feedback")[0], 1)
    asked = playing.survivors(1, sent, "client-0")
    if phase == "voted":
        playing.send("client-0", playing.begin(1))
    elif phase != "idle":
        given, _ = uploads(playing, 1)
        if phase == "shared":
            playing.rows(1, given)
        else:
            playing.states["client-0"] = replace(playing.states["client-0"], phase="elected", share=None)
    with pytest.raises(ProtocolError, match=f"received Survivors in phase '{phase}'; expected phase 'sent'"):
        playing.send("client-0", asked)


def test_a_survivors_message_means_nothing_without_masks():
    playing, _ = masked()
    sent, _ = uploads(playing, 1)
    asked = playing.survivors(1, sent, "client-0")
    other, _ = federation("ckks-fedavg", 5, 60)
    uploads(other, 1)
    with pytest.raises(ProtocolError, match="with shares to release"):
        other.send("client-0", msgspec.structs.replace(asked, round_id=other.parameters.round_id(1)))
