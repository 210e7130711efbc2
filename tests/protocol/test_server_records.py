"""What the server writes down: the line of each round, and a state that it can go on from."""

import msgspec
import numpy as np
import pytest

from five_clients import FEDAVG, each_method, hand, of_all
from hand import Served, honest, served
from paraaegis.errors import RunError
from paraaegis.protocol.messages import Begin, RollCall, pack, unpack, unpack_aggregate
from paraaegis.protocol.round_server import Reply
from paraaegis.protocol.state import ServerState, decode_state, encode_state


def test_seconds_that_are_no_number_are_left_out():
    def meddle(client, request, answer):
        reply = unpack(answer())
        if client == "client-1" and isinstance(request, Begin):
            seconds = dict.fromkeys(reply.report.seconds, float("nan"))
            reply = msgspec.structs.replace(reply, report=msgspec.structs.replace(reply.report, seconds=seconds))
        return pack(reply)

    lines = served(hand(FEDAVG), meddle).lines
    assert all(np.isfinite(list(line.seconds.values())).all() for line in lines)
    assert "train" in lines[0].seconds


@pytest.mark.parametrize("away", [None, "client-4"])
@each_method
def test_the_lines_account_for_every_byte_that_was_carried(settings, away):
    playing = hand(*settings)
    hellos = [0, 0]

    def meddle(client, request, answer):
        if client == away and request.round_id.number == 2:
            return Reply(client, error="its node is not connected", lost=True, sent=False)
        frames = answer()
        if isinstance(request, RollCall):
            hellos[0] += sum(len(memoryview(frame)) for frame in pack(request))
            hellos[1] += sum(len(memoryview(frame)) for frame in frames)
        return frames

    done = served(playing, meddle)
    assert sum(sum(line.bytes_down.values()) for line in done.lines) == done.carried_down - hellos[0]
    assert sum(sum(line.bytes_up.values()) for line in done.lines) == done.carried_up - hellos[1]


def test_a_line_tells_what_its_round_was():
    playing = hand("protect.method=paraaegis-dynamic", "protect.ratio=0.5", "protect.decay=0.5")
    lines = served(playing).lines
    assert [line.round for line in lines] == [1, 2, 3]
    assert [line.ratio for line in lines] == [0.5, 0.25, 0.125]
    assert [line.elected for line in lines] == [12, 6, 3]
    assert all(0 < line.agreement <= 1 for line in lines)
    for line in lines:
        assert {"train", "vote", "protect", "combine", "reveal", "wall"} <= line.seconds.keys()
        assert {"header", "ballot", "ckks", "grid"} == line.bytes_up.keys()


def test_a_line_has_the_metrics_of_the_model_after_its_round():
    done = served(hand(FEDAVG))
    assert [line.metrics["accuracy"] for line in done.lines] == np.cumsum([of_all(t)[0] for t in (1, 2, 3)]).tolist()


def test_clients_may_report_different_metrics():
    """Each is the mean over those who report it, and none of them can stop the server."""
    playing = hand(FEDAVG, rounds=1)
    for index, learner in enumerate(playing.learners.values()):
        learner.evaluate = lambda _, index=index: {"one": 1.0} if index else {"two": 2.0, "one": 6.0}
    (line,) = served(playing).lines
    assert line.metrics == {"one": pytest.approx((6 * 10 + 70) / 80), "two": pytest.approx(2.0)}


@each_method
def test_a_server_goes_on_from_any_state_it_gave_out(settings):
    """The state goes through bytes, and the clients' through their states at that moment."""
    stored = []
    whole = Served(hand(*settings), honest)
    whole.run(lambda state: stored.append((encode_state(state), list(state.history), dict(whole.hand.states))))
    for data, history, states in stored:
        playing = hand(*settings)
        playing.states = states
        kept = [unpack_aggregate(pack(past)) for past in history]
        rest = Served(playing, honest, msgspec.structs.replace(decode_state(data), history=kept)).run()
        np.testing.assert_array_equal(rest.model(), whole.model())
        expected = whole.lines[len(whole.lines) - len(rest.lines) :]
        assert [(line.round, line.metrics) for line in rest.lines] == [(x.round, x.metrics) for x in expected]


@pytest.mark.parametrize("data", [b"", b"\xff" * 9, encode_state(ServerState())[:-2]])
def test_a_damaged_state_is_refused(data):
    with pytest.raises(RunError, match="damaged"):
        decode_state(data)


def test_a_sum_that_another_version_made_is_not_read_by_this_one():
    """lwe-secagg's sums were at another scale before version 5, and authentic: clients would have applied them."""
    state = ServerState(number=2, seen={"client-0": 2, "client-1": 1})
    assert decode_state(encode_state(state)).number == 2
    for version, name in ((0, "below 5"), (4, "4")):
        older = msgspec.structs.replace(state, version=version)
        with pytest.raises(RunError, match=rf"protocol {name}, now 5\) and has yet to reach 1 client"):
            decode_state(msgspec.msgpack.encode(older))


def test_a_finished_run_of_another_version_can_be_read():
    older = ServerState(number=2, seen={"client-0": 2, "client-1": 2}, version=4)
    assert decode_state(msgspec.msgpack.encode(older)).number == 2
