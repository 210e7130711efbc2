"""A client's RLWE upload or sum of shares of a wrong form drops this client, and the round goes on without it."""

import msgspec
import numpy as np
import pytest

from hand import Served
from masked import masked
from paraaegis.crypto import rlwe
from paraaegis.protocol.messages import Begin, Ended, Survivors, pack, unpack
from paraaegis.types import Blob, Payload

# Uploads


def replaced(**fields):
    def spoil(upload):
        return msgspec.structs.replace(upload, payload=msgspec.structs.replace(upload.payload, **fields))

    return spoil


def shares(change):
    return lambda upload: msgspec.structs.replace(upload, shares=change(dict(upload.shares)))


def chunk(upload):
    return bytes(upload.payload.chunks[0].view)


UPLOADS = {
    "no chunk": replaced(chunks=()),
    "a short chunk": lambda upload: replaced(chunks=(Blob(chunk(upload)[:-1]),))(upload),
    "a surplus chunk": lambda upload: replaced(chunks=(Blob(chunk(upload)), Blob(b"")))(upload),
    "residues that are not reduced": lambda upload: replaced(chunks=(Blob(b"\xff" * len(chunk(upload))),))(upload),
    "one residue that is not reduced": lambda upload: replaced(chunks=(Blob(b"\xff" * 7 + chunk(upload)[7:]),))(upload),
    "another kind": replaced(kind="ckks"),
    "another length": replaced(length=61),
    "a huge length": replaced(length=2**48),
    "a negative length": replaced(length=-1),
    "rows": replaced(parts=(Payload("shares", 0),)),
    "no shares": shares(lambda _: {}),
    "a share too few": shares(lambda given: {name: given[name] for name in list(given)[:-1]}),
    "a share for itself": shares(lambda given: given | {"client-4": Blob(b"")}),
    "a share for a stranger": shares(lambda given: given | {"client-9": Blob(b"")}),
    "an empty share": shares(lambda given: given | {"client-0": Blob(b"")}),
    "a share that is too long": shares(lambda given: given | {"client-0": Blob(bytes(1 << 20))}),
}


@pytest.mark.parametrize("lie", UPLOADS)
def test_an_upload_of_another_form_drops_its_client_and_the_others_go_on(lie):
    def meddle(name, request, answer):
        frames = answer()
        if name != "client-4" or not isinstance(request, Begin):
            return frames
        return pack(UPLOADS[lie](unpack(frames)))

    playing, updates = masked(rounds=1)
    done = Served(playing, meddle).run()
    assert list(done.lines[0].dropped) == ["client-4"]
    assert done.lines[0].clients == ["client-0", "client-1", "client-2", "client-3"]
    assert not done.round_server.state.ended
    np.testing.assert_allclose(done.model(), updates[:4, 0].mean(axis=0), atol=1e-6)


# Sums of shares


def with_row(data):
    return lambda reply: msgspec.structs.replace(reply, row=Blob(data))


SHARE_SUMS = {
    "empty": with_row(b""),
    "short": lambda reply: with_row(bytes(reply.row.view)[:-1])(reply),
    "long": lambda reply: with_row(bytes(reply.row.view) + b"\0")(reply),
    "not sealed": with_row(bytes(2 * rlwe.SECRET)),
    "another message": lambda reply: Ended(round_id=reply.round_id),
}


@pytest.mark.parametrize("lie", SHARE_SUMS)
def test_a_sum_of_shares_of_another_form_drops_its_client_and_the_sum_opens_without_it(lie):
    def meddle(name, request, answer):
        frames = answer()
        if name != "client-4" or not isinstance(request, Survivors):
            return frames
        return pack(SHARE_SUMS[lie](unpack(frames)))

    playing, updates = masked(rounds=1)
    done = Served(playing, meddle).run()
    assert list(done.lines[0].dropped) == ["client-4"]
    assert len(done.lines[0].clients) == 5
    np.testing.assert_allclose(done.model(), updates[:, 0].mean(axis=0), atol=1e-6)
