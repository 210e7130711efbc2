"""A reply that does not fit drops its client with a reason, and spoils nothing."""

import msgspec
import numpy as np
import pytest

from five_clients import FEDAVG, LENGTH, SAMPLES, STATIC, UPDATES, each_method, hand, of_all
from hand import Served, honest, mean, served
from paraaegis.errors import LostTrustError, ProtocolError
from paraaegis.protocol.messages import VERSION, Begin, Elected, RollCall, Upload, pack, unpack
from paraaegis.protocol.round_server import Reply
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.voting import pack_positions
from paraaegis.types import Blob, Payload


def spoilt(client, kind, spoil):
    """A transport that spoils one client's reply of round 1."""

    def meddle(name, request, answer):
        frames = answer()
        hit = name == client and isinstance(request, kind) and request.round_id.number == 1
        return spoil(frames) if hit else frames

    return meddle


@each_method
def test_bad_frames_drop_their_client_with_a_reason(settings):
    votes = settings == STATIC
    bad = {
        "noise": (lambda _: (b"\xff" * 30,), "not a message of this protocol"),
        "nothing": (lambda _: (), "at least one frame, got none"),
        "cut": (lambda frames: (*frames[:-1], bytes(frames[-1])[:-1]), r"expected a blob of \d+ bytes, got \d+"),
        "surplus": (lambda frames: (*frames, b"more"), "surplus frame"),
        "another message": (lambda _: pack(RollCall(round_id=playing.parameters.round_id(1))), "got RollCall"),
        "another round": (lambda frames: elsewhere(frames, number=2), "expected number 1, got 2"),
        "another run": (lambda frames: elsewhere(frames, run="x"), "expected run .*, got 'x'"),
        "another length": (lambda frames: elsewhere(frames, length=7), f"expected length {LENGTH}, got 7"),
        "another method": (lambda frames: elsewhere(frames, method="y"), "expected method .*, got 'y'"),
        "another version": (lambda frames: elsewhere(frames, version=99), f"expected version {VERSION}, got 99"),
    }
    for name, (spoil, reason) in bad.items():
        playing = hand(*settings, rounds=1)
        done = served(playing, spoilt("client-4", Elected if votes else Begin, spoil))
        (line,) = done.lines
        assert list(line.dropped) == ["client-4"], name
        with pytest.raises(ProtocolError, match=reason):
            raise ProtocolError(line.dropped["client-4"])
        np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]), name)


def elsewhere(frames, **changed):
    message = unpack(frames)
    return pack(msgspec.structs.replace(message, round_id=msgspec.structs.replace(message.round_id, **changed)))


def with_payload(payload):
    return lambda frames: pack(msgspec.structs.replace(unpack(frames), payload=payload))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (Payload("ckks", LENGTH), "expected a 'grid' payload of 0 parts"),
        (Payload("grid", LENGTH + 1, (Blob(bytes(4 * LENGTH + 4)),)), f"expected a 'grid' payload of {LENGTH} values"),
        (Payload("grid", LENGTH, (Blob(bytes(4 * LENGTH - 1)),)), "grid values must have"),
        (Payload("grid", LENGTH), "need 1 chunks, got 0"),
    ],
)
def test_a_payload_that_does_not_fit_drops_its_client(payload, reason):
    done = served(hand(FEDAVG, rounds=1), spoilt("client-4", Begin, with_payload(payload)))
    assert reason in done.lines[0].dropped["client-4"]
    np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]))


def test_half_an_upload_is_not_half_counted():
    """The inside is whole, the outside is cut: neither may enter the sum."""

    def spoil(frames):
        upload = unpack(frames)
        inside, outside = upload.payload.parts
        cut = msgspec.structs.replace(outside, chunks=(Blob(bytes(outside.chunks[0].view)[:-1]),))
        return with_payload(msgspec.structs.replace(upload.payload, parts=(inside, cut)))(frames)

    for client in ("client-0", "client-4"):  # the first to arrive, and the last
        playing = hand(*STATIC, rounds=1)
        done = served(playing, spoilt(client, Elected, spoil))
        rest = [i for i in range(5) if f"client-{i}" != client]
        weights = [SAMPLES[i] for i in rest]
        np.testing.assert_allclose(done.model("client-2"), mean(UPDATES[rest, 0], weights), atol=1e-6)


@pytest.mark.parametrize("k", [0, 5, 7])
def test_a_ballot_of_another_number_of_votes_drops_its_client(k):
    def spoil(frames):
        return pack(msgspec.structs.replace(unpack(frames), votes=pack_positions(np.arange(LENGTH) < k)))

    done = served(hand(*STATIC, rounds=1), spoilt("client-4", Begin, spoil))
    assert "6" in done.lines[0].dropped["client-4"]
    np.testing.assert_array_equal(done.model(), mean(UPDATES[:4, 0]))


def test_an_error_that_a_client_reports_is_its_reason():
    def meddle(client, request, answer):
        return "out of memory" if client == "client-4" and isinstance(request, Begin) else answer()

    done = served(hand(FEDAVG, rounds=1), meddle)
    assert done.lines[0].dropped == {"client-4": "out of memory"}


def test_a_reply_counts_once_and_a_strangers_never():
    playing = hand(FEDAVG, rounds=1)
    done = Served(playing, honest)

    def carry(exchange):
        for client, frames in exchange.messages.items():
            reply = Reply(client, pack(playing.send(client, unpack(frames))))
            yield Reply("stranger", reply.frames)
            yield reply
            yield reply

    drive(serve(done.round_server), carry, done.lines.append, lambda _: None)
    assert done.lines[0].clients == list(playing.silos)
    np.testing.assert_array_equal(done.model(), of_all(1))


@pytest.mark.parametrize("nonce_and_tag", [(b"", b""), (bytes(16), b""), (bytes(15), bytes(8)), (bytes(16), bytes(9))])
def test_an_upload_without_a_proper_nonce_and_tag_is_dropped_and_spoils_nothing(nonce_and_tag):
    playing = hand(*STATIC)

    def spoil(client, request, answer):
        reply = unpack(answer())
        if client == "client-4" and isinstance(reply, Upload) and reply.round_id.number == 2:
            reply = msgspec.structs.replace(reply, nonce=nonce_and_tag[0], tag=nonce_and_tag[1])
        return pack(reply)

    done = served(playing, spoil)
    assert [len(line.clients) for line in done.lines] == [5, 4, 5]
    assert "expected a nonce of 16 bytes and a tag of 8 bytes" in done.lines[1].dropped["client-4"]


def forged_for(*clients):
    """A server that gives these clients another sum of round 1 than the others."""

    def meddle(client, request, answer):
        if client not in clients or not isinstance(request, Begin) or request.round_id.number != 2:
            return answer()
        (past,) = request.aggregates
        lie = msgspec.structs.replace(past, tag=bytes([past.tag[0] ^ 1]) + past.tag[1:])
        return pack(playing.send(client, msgspec.structs.replace(request, aggregates=(lie,))))

    playing = hand(*STATIC)
    return playing, meddle


def test_a_client_whose_check_fails_is_out_and_the_others_continue():
    playing, meddle = forged_for("client-4")
    done = served(playing, meddle)
    assert [len(line.clients) for line in done.lines] == [5, 4, 4]
    for line in done.lines[1:]:
        assert line.dropped["client-4"] == "ended the run, because a check of what the server passed on failed"
    np.testing.assert_array_equal(done.model("client-4"), np.zeros(LENGTH))
    np.testing.assert_array_equal(done.model(), of_all(1) + mean(UPDATES[:4, 1]) + mean(UPDATES[:4, 2]))


def test_a_run_in_which_too_few_clients_trust_the_server_stops():
    playing, meddle = forged_for("client-3", "client-4")
    with pytest.raises(LostTrustError, match=r"client-3, client-4 ended the run.*fewer than 4 clients are left"):
        served(playing, meddle)
