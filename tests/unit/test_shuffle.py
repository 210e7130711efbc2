"""The secret order is a permutation that clients draw alike, and never twice."""

from itertools import product

import numpy as np
import pytest

from paraaegis.crypto.shuffle import digest, fingerprint, secret_order
from paraaegis.crypto.streams import keyed, system

KEY = bytes(range(32))
BASE = {"vote_key": KEY, "version": 1, "run": "r", "number": 1, "attempt": 0, "length": 500}


def order(**changed):
    return secret_order(**(BASE | changed))


@pytest.mark.parametrize("length", [0, 1, 2, 500, 100_000])
def test_an_order_is_a_permutation(length):
    np.testing.assert_array_equal(np.sort(order(length=length)), np.arange(length))


def test_an_order_is_the_same_for_the_same_names():
    np.testing.assert_array_equal(order(), order())


def test_an_order_is_pinned():
    """Silos with other library versions must draw this one too, else they stop at each other's fingerprints."""
    assert order(length=10).tolist() == [8, 4, 9, 2, 7, 1, 0, 6, 3, 5]


@pytest.mark.parametrize(
    "changed",
    [{"vote_key": bytes(32)}, {"version": 2}, {"run": "s"}, {"number": 2}, {"attempt": 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_an_order_differs_by_key_version_run_round_and_attempt(changed):
    agreeing = np.count_nonzero(order(**changed) == order())
    assert agreeing < 10  # two random permutations agree in one place on average


def test_every_value_may_come_to_every_place():
    """A uniform permutation: each place's mean is the middle, within five standard errors."""
    orders = np.array([order(number=number, length=20) for number in range(2000)])
    error = np.sqrt((20**2 - 1) / 12 / 2000)
    assert np.abs(orders.mean(axis=0) - 9.5).max() < 5 * error


def test_a_fingerprint_is_equal_for_equal_order_and_model():
    model = digest(np.ones(5, dtype=np.float32))
    assert fingerprint(KEY, "r", 1, 0, order(), model) == fingerprint(KEY, "r", 1, 0, order(), model)


def test_a_fingerprint_differs_on_everything_that_must_not_differ():
    models = [digest(np.ones(5, dtype=np.float32)), digest(np.nextafter(np.ones(5, dtype=np.float32), 2))]
    orders = [order(), order(number=2), None]
    names = list(product([KEY, bytes(32)], ["r", "s"], [1, 2], [0, 1], range(3), models))
    prints = {fingerprint(key, run, t, a, orders[which], model) for key, run, t, a, which, model in names}
    assert len(prints) == len(names)


def test_a_long_order_that_differs_in_its_draw_differs_in_its_fingerprint():
    long = [order(length=300_000), order(length=300_000, number=2)]
    assert len({fingerprint(KEY, "r", 1, 0, one, b"") for one in long}) == 2


def test_a_digest_sees_every_bit_and_no_layout():
    base = np.arange(12, dtype=np.float32)
    assert digest(base) == digest(np.repeat(base, 2)[::2])
    changed = base.copy()
    changed[7] = np.nextafter(changed[7], np.float32(8))
    assert digest(changed) != digest(base)


def test_a_keyed_stream_repeats_and_a_system_stream_does_not():
    assert keyed(bytes(16)).integers(2**60, size=4).tolist() == keyed(bytes(16)).integers(2**60, size=4).tolist()
    assert system().integers(2**60, size=4).tolist() != system().integers(2**60, size=4).tolist()


@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_a_stream_takes_a_key_of_sixteen_bytes(size):
    with pytest.raises(ValueError, match=f"16 bytes, got {size}"):
        keyed(bytes(size))


def test_a_keyed_stream_is_aes_in_counter_mode_under_the_key_itself():
    """Not a key passed through a generator that is no cipher first."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(16))
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 — to compare single blocks
    drawn = keyed(key).bit_generator.random_raw(8).tobytes()
    blocks = {cipher.update(counter.to_bytes(16, "little")) for counter in range(64)}
    assert {drawn[start : start + 16] for start in range(0, 64, 16)} <= blocks
