"""Every upload has a secret and errors of its own from the system, in simulations too; public numbers never repeat."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from hand import uploads
from masked import WIDE, inside, masked, opened, secret_of, steps_of
from paraaegis.crypto import rlwe
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.shamir import rebuild
from paraaegis.errors import CryptoError
from paraaegis.protocol import encodings
from paraaegis.protocol.rows import unpack_row
from paraaegis.protocol.shares import _purpose
from paraaegis.protocol.sums import public_seed
from toy import play


@pytest.fixture
def secrets(monkeypatch):
    """Every secret that is drawn."""
    drawn, real = [], rlwe.new_secret
    monkeypatch.setattr(encodings.rlwe, "new_secret", lambda *given: drawn.append(real(*given)) or drawn[-1])
    return drawn


def distinct(arrays):
    return all((one != other).any() for one, other in combinations(arrays, 2))


def settings(method):
    return (f"protect.method={method}", "protect.ratio=0.2", "protect.cipher=rlwe")


@pytest.mark.parametrize("method", ["ckks-fedavg", "paraaegis-feedback", "serial"])
def test_no_two_uploads_of_a_simulation_share_a_secret(method, secrets):
    noise = ("privacy.epsilon=8.0", "privacy.clip=1.0") if method == "serial" else ()
    play(np.ones((4, 2, 30)), *settings(method), *noise, rounds=3)
    play(np.ones((4, 2, 30)), *settings(method), *noise, rounds=3)  # and not with the same run played again
    assert len(secrets) == 24
    assert distinct(secrets)


def test_a_round_that_is_trained_again_has_another_secret_and_public_numbers(secrets):
    playing, _ = masked()
    for attempt in range(3):
        uploads(playing, 1, attempt=attempt)
    assert len(secrets) == 15
    assert distinct(secrets)


def test_a_simulation_that_replays_a_round_masks_it_under_another_secret(secrets):
    """Its update may have changed, and the difference of two vectors under one secret would be in the clear."""
    playing, _ = masked()
    playing.silos = {name: replace(silo, simulated=True) for name, silo in playing.silos.items()}
    playing.states = {name: playing.joined(name) for name in playing.silos}
    first, _ = uploads(playing, 1)
    again, _ = uploads(playing, 1)
    assert distinct(secrets)
    for name in first:
        assert bytes(first[name].payload.chunks[0].view) != bytes(again[name].payload.chunks[0].view)


def test_errors_differ_under_one_secret():
    """Two uploads of the same values under the same secret, which no client makes, still differ by their errors."""
    secret, seed, zero = rlwe.new_secret(), bytes(32), np.zeros(4096, dtype=np.int64)
    sums = []
    for _ in range(2):
        total = rlwe.RlweSum(WIDE, zero.size)
        total.add(rlwe.encrypt(WIDE, zero, 2, rlwe.new_mask(seed, secret)))
        sums.append(bytes(total.close()[0].view))
    assert sums[0] != sums[1]


def test_public_seeds_differ_between_runs_rounds_and_attempts():
    playing, _ = masked(rounds=3)
    places = [playing.parameters.round_id(number, attempt) for number in (1, 2, 3) for attempt in (0, 1, 2)]
    other, _ = masked("ckks-fedavg", 5, 60, "seed=7", rounds=3)
    places += [other.parameters.round_id(number) for number in (1, 2, 3)]
    assert len({public_seed(place) for place in places}) == 12


def test_public_polynomials_of_two_attempts_have_nothing_in_common():
    """Under the right secret and another attempt's public numbers nothing opens."""
    playing, updates = masked(rounds=1)
    sent, _ = uploads(playing, 1)
    rows = playing.rows(1, sent)
    payload, secret = playing.sum(1, sent).payload, secret_of(playing, rows)
    found = opened(playing, payload, secret, 5)
    np.testing.assert_array_equal(found, sum(steps_of(update[0], 5) for update in updates))
    with pytest.raises(CryptoError):
        opened(playing, payload, secret, 5, 1, 1)


def test_what_is_shared_is_the_secret_of_this_upload(secrets):
    playing, updates = masked(rounds=1)
    sent, _ = uploads(playing, 1)
    rows = {}
    for index, name in enumerate(playing.silos):
        if name == "client-0":
            rows[index] = playing.states[name].share
            continue
        silo, state = playing.silos[name], playing.states[name]
        row = silo.open_from("client-0", bytes(sent["client-0"].shares[name].view), *_purpose(state),
                             group=derive(state.keys.step, "shares"))  # fmt: skip
        rows[index] = unpack_row(row, rlwe.SECRET, rlwe.FIELD)
    secret = rebuild(rows, playing.parameters.quorum)
    assert any(np.array_equal(secret, one) for one in secrets)
    found = opened(playing, inside(sent["client-0"].payload), secret, 1)
    np.testing.assert_array_equal(found, steps_of(updates[0, 0], 5))
