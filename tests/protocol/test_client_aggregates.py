"""A client applies only a sum that fits its own configuration and proves whole."""

import msgspec
import numpy as np
import pytest

from hand import Hand
from paraaegis.errors import ParaAegisError, ProtocolError
from paraaegis.fixed_point import pack_fixed_point, unpack_fixed_point
from paraaegis.types import Blob
from two_clients import CKKS, FEDAVG, FEEDBACK, LENGTH, ME, PEER, STATIC, UPDATES, ended, hand, refused


@pytest.mark.parametrize("settings", [FEDAVG, STATIC], ids=["no-keys", "keys"])
@pytest.mark.parametrize(
    "clients", [(), (PEER, ME), (ME, ME), (ME, PEER, PEER), (ME, "stranger"), (ME, PEER, "stranger")]
)
def test_an_aggregate_over_impossible_clients_is_refused(settings, clients):
    playing = hand(*settings)
    aggregate = playing.round(1)
    lying = msgspec.structs.replace(aggregate, clients=clients, nonces=(aggregate.nonces * 2)[: len(clients)])
    refused(playing, playing.begin(2, lying), "should be a sum over 1 or more of .*, each once and in this order")
    playing.send(ME, playing.begin(2, aggregate))


def test_an_aggregate_over_less_than_a_quorum_is_refused():
    playing = Hand(UPDATES, "federation.quorum=2", *STATIC)
    refused(playing, playing.begin(2, playing.round(1, counted=[PEER])), "should be a sum over 2 or more of ")


@pytest.mark.parametrize(
    "changed",
    [{"nonces": ()}, {"nonces": (bytes(16),)}, {"nonces": (bytes(16), bytes(15))}, {"nonces": (bytes(16),) * 3}]
    + [{"tag": bytes(size)} for size in (0, 7, 9)],
)
def test_an_aggregate_without_a_nonce_for_each_client_and_a_tag_is_refused(changed):
    playing = hand()
    aggregate = playing.round(1)
    lying = msgspec.structs.replace(aggregate, **changed)
    refused(playing, playing.begin(2, lying), "a nonce of 16 bytes for each of its 2 clients and a tag of 8")
    playing.send(ME, playing.begin(2, aggregate))


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
@pytest.mark.parametrize("length", [LENGTH + 1, -1, 0, 2**40])
def test_an_aggregate_of_another_length_is_refused(settings, length):
    playing = hand(*settings)
    aggregate = playing.round(1)
    lying = msgspec.structs.replace(aggregate.payload, length=length)
    refused(playing, playing.begin(2, msgspec.structs.replace(aggregate, payload=lying)), f"got {length}")


@pytest.mark.parametrize(("settings", "part"), [(STATIC, 0), (STATIC, 1), (FEEDBACK, 0)])
@pytest.mark.parametrize("length", [LENGTH + 1, -1, 0, 2**40])
def test_an_aggregates_part_of_another_length_is_refused(settings, part, length):
    playing = hand(*settings)
    aggregate = playing.round(1)
    parts = list(aggregate.payload.parts)
    parts[part] = msgspec.structs.replace(parts[part], length=length)
    lying = msgspec.structs.replace(aggregate.payload, parts=tuple(parts))
    refused(playing, playing.begin(2, msgspec.structs.replace(aggregate, payload=lying)), error=ParaAegisError)


def test_an_aggregate_of_another_method_is_refused():
    plain = hand(*FEDAVG).round(1)
    playing = hand()
    aggregate = msgspec.structs.replace(playing.round(1), payload=plain.payload)
    refused(playing, playing.begin(2, aggregate), "expected a 'parallel' payload of 2 parts, got a 'grid'")


@pytest.mark.parametrize("numbers", [(), (1,), (2,), (2, 1)])
def test_missing_aggregates_are_refused_with_those_that_are_needed(numbers):
    playing = hand(*FEDAVG)
    first = playing.round(1, clients=[PEER])
    second = playing.round(2, first, clients=[PEER])
    sent = [{1: first, 2: second}[number] for number in numbers]
    needed = 2 if 1 in numbers else 1
    with pytest.raises(ProtocolError, match=f"aggregates of rounds {needed} to 2, got "):
        playing.send(ME, playing.begin(3, *sent))
    assert playing.states[ME].applied == needed - 1  # what it has checked it keeps, lest it be asked again
    playing.send(ME, playing.begin(3, first, second))


def test_an_aggregate_without_its_elected_positions_is_refused_by_who_does_not_know_them():
    playing = hand()
    aggregate = playing.round(1, clients=[PEER])
    blind = msgspec.structs.replace(aggregate, elected=None)
    refused(playing, playing.begin(2, blind), "has no elected positions")
    playing.send(ME, playing.begin(2, aggregate))
    playing.send(PEER, playing.begin(2, blind))
    np.testing.assert_array_equal(playing.states[ME].weights, playing.states[PEER].weights)


@pytest.mark.parametrize("settings", [FEDAVG, STATIC, FEEDBACK], ids=["fedavg", "static", "feedback"])
def test_a_damaged_aggregate_is_refused_and_the_right_one_is_taken_afterwards(settings):
    playing, other = hand(*settings), hand(*settings)
    for one in (playing, other):
        one.aggregate = one.round(1)

    def cut(payload):
        chunks = tuple(Blob(bytes(chunk.view)[:-1]) for chunk in payload.chunks)
        return msgspec.structs.replace(payload, chunks=chunks, parts=tuple(map(cut, payload.parts)))

    damaged = msgspec.structs.replace(playing.aggregate, payload=cut(playing.aggregate.payload))
    refused(playing, playing.begin(2, damaged), error=ParaAegisError)
    playing.send(ME, playing.begin(2, playing.aggregate))
    other.send(ME, other.begin(2, other.aggregate))
    np.testing.assert_array_equal(playing.states[ME].weights, other.states[ME].weights)


def flipped(data):
    return bytes([data[0] ^ 1]) + data[1:]


AGGREGATE_LIES = {
    "tag": lambda past: {"tag": flipped(past.tag)},
    "own nonce": lambda past: {"nonces": (flipped(past.nonces[0]), past.nonces[1])},
    "peer's nonce": lambda past: {"nonces": (past.nonces[0], flipped(past.nonces[1]))},
    "fewer clients": lambda past: {"clients": (PEER,), "nonces": past.nonces[1:]},
    "another attempt": lambda past: {"attempt": past.attempt + 1},
}


@pytest.mark.parametrize("settings", [STATIC, FEEDBACK, CKKS], ids=["static", "feedback", "ckks"])
@pytest.mark.parametrize("lie", AGGREGATE_LIES.values(), ids=AGGREGATE_LIES)
def test_a_forged_aggregate_ends_the_run_for_this_client(settings, lie):
    playing = hand(*settings)
    aggregate = playing.round(1)
    ended(playing, playing.begin(2, msgspec.structs.replace(aggregate, **lie(aggregate))))


def test_a_sum_that_was_changed_by_one_step_ends_the_run_for_this_client():
    playing = hand()
    aggregate = playing.round(1)
    inside, outside = aggregate.payload.parts
    steps = unpack_fixed_point(outside.chunks, outside.length).copy()
    steps[0] += 1
    parts = (inside, msgspec.structs.replace(outside, chunks=pack_fixed_point(steps)))
    payload = msgspec.structs.replace(aggregate.payload, parts=parts)
    ended(playing, playing.begin(2, msgspec.structs.replace(aggregate, payload=payload)))
