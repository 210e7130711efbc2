"""What opens an RLWE sum is sealed by clients for clients: a server that changes, swaps or drops it is caught."""

import msgspec
import numpy as np
import pytest

from hand import ended, uploads
from masked import METHODS, Round, changed, flipped, inside, masked, opened, sealed, secret_of, with_rows
from paraaegis.crypto import rlwe
from paraaegis.errors import CryptoError
from paraaegis.protocol.messages import Ended
from paraaegis.types import Blob

each_method = pytest.mark.parametrize("method", METHODS)


@each_method
def test_an_honest_server_is_believed_with_any_quorum_of_rows(method):
    played = Round(method)
    quorum = played.playing.parameters.quorum
    last = {holder: played.rows[holder] for holder in sorted(played.rows)[-quorum:]}
    for name, rows in zip(played.playing.silos, (played.first(quorum), last, played.rows), strict=False):
        aggregate = with_rows(played.honest, rows)
        assert not isinstance(played.playing.send(name, played.playing.begin(2, aggregate)), Ended)
    models = [state.weights for state in played.playing.states.values() if state.applied]
    assert len(models) == 3
    assert all(np.array_equal(models[0], model) for model in models)


@each_method
@pytest.mark.parametrize("at", [0, 11, 12, -1])
def test_a_changed_row_ends_the_run(method, at):
    played = Round(method)
    rows = played.first(4)
    assert played.refused_by_all(with_rows(played.honest, {**rows, 0: flipped(rows[0], at)}))


def test_a_row_of_another_holder_ends_the_run():
    played = Round()
    rows = played.first(4)
    assert played.refused_by_all(with_rows(played.honest, {**rows, 0: rows[1], 1: rows[0]}))


def test_the_same_row_twice_does_not_stand_for_two():
    played = Round()
    rows = played.first(4)
    assert played.refused_by_all(with_rows(played.honest, [*list(rows.items())[:3], (0, rows[0])]))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_fewer_rows_than_a_quorum_end_the_run(count):
    played = Round()
    assert played.refused_by_all(with_rows(played.honest, played.first(count)))


def test_a_row_of_another_round_ends_the_run():
    playing, _ = masked("ckks-fedavg", 5, 60, rounds=3)
    first, _ = uploads(playing, 1)
    old = playing.rows(1, first)
    past = playing.sum(1, first, None, old)
    sent, _ = uploads(playing, 2, past)
    rows = playing.rows(2, sent)
    honest = playing.sum(2, sent, None, rows)
    for name, swap in zip(playing.silos, rows, strict=True):
        assert ended(playing, playing.begin(3, with_rows(honest, {**rows, swap: old[swap]})), name)


def test_a_row_of_another_attempt_ends_the_run():
    playing, _ = masked(rounds=2)
    first, _ = uploads(playing, 1)
    colluder = playing.states["client-4"]
    old = playing.rows(1, first, ["client-4"])
    playing.states["client-4"] = colluder
    sent, _ = uploads(playing, 1, attempt=1)
    rows = playing.rows(1, sent, attempt=1)
    honest = playing.sum(1, sent, None, rows)
    assert honest.attempt == 1
    for name in playing.silos:
        assert ended(playing, playing.begin(2, with_rows(honest, {**rows, 4: old[4]})), name)


def test_a_row_for_another_set_of_survivors_ends_the_run():
    """One client was asked about fewer survivors than the others: all ends, and no sum is opened."""
    playing, _ = masked(rounds=1)
    sent, _ = uploads(playing, 1)
    fewer = {name: sent[name] for name in ("client-0", "client-1", "client-2", "client-3")}
    rows = playing.rows(1, fewer, ["client-0"]) | playing.rows(1, sent, list(sent)[1:4])
    for names in (sent, fewer):
        forged = playing.sum(1, names, None, rows)
        with pytest.raises(CryptoError, match="a share is wrong or missing"):
            opened(playing, forged.payload, secret_of(playing, rows), len(names))
    assert all(ended(playing, playing.finish(playing.sum(1, sent, None, rows)), name) for name in sent)


@pytest.mark.parametrize("named", [4, 5])
def test_survivors_that_are_not_the_clients_of_the_sum_end_the_run(named):
    """Shares were given out for five and the sum is said to be over four, or the other way round."""
    playing, _ = masked(rounds=1)
    sent, _ = uploads(playing, 1)
    four = {name: sent[name] for name in list(sent)[:4]}
    shared, told = (sent, four) if named == 4 else (four, sent)
    forged = playing.sum(1, told, None, playing.rows(1, shared, list(four)))
    assert all(ended(playing, playing.finish(forged), name) for name in playing.silos)


@pytest.mark.parametrize("holder", [5, 6, 65520, 65521, 65535])
@pytest.mark.parametrize("more", [True, False])
def test_a_row_of_a_holder_that_does_not_exist_ends_the_run(holder, more):
    """Only a colluder can seal one; next to a quorum or instead of one of its rows."""
    played = Round()
    row = np.arange(rlwe.SECRET, dtype=np.int64)
    rows = {**played.first(4 if more else 3), holder: sealed(played.playing, row, holder)}
    assert played.refused_by_all(with_rows(played.honest, rows))


@pytest.mark.parametrize("size", [0, rlwe.SECRET - 1, rlwe.SECRET + 1, 10 * rlwe.SECRET])
def test_a_row_of_another_size_ends_the_run_even_if_a_client_sealed_it(size):
    played = Round()
    rows = {**played.first(4), 0: sealed(played.playing, np.zeros(size, np.int64), 0)}
    assert played.refused_by_all(with_rows(played.honest, rows))


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0", b"\0\0" + bytes(11), bytes(2 + 28 + 2 * rlwe.SECRET)])
def test_bytes_that_are_no_row_end_the_run(data):
    played = Round()
    part = inside(played.honest.payload).parts[0]
    lie = msgspec.structs.replace(part, chunks=(Blob(data), *part.chunks[1:]))
    assert played.refused_by_all(changed(played.honest, parts=(lie,)))


def test_a_row_of_numbers_beyond_the_field_ends_the_run():
    row = np.full(rlwe.SECRET, 2**16 - 1, dtype=np.int64)
    played = Round()
    assert played.refused_by_all(with_rows(played.honest, {**played.first(4), 0: sealed(played.playing, row, 0)}))
