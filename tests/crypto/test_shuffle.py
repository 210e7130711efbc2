"""The secret order is a permutation that clients draw alike, and never twice."""

import struct
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.shuffle import digest, fingerprint, secret_order
from paraaegis.crypto.streams import keyed, system

KEY = bytes(range(32))
BASE = {"secret": KEY, "index": 0, "run": "r", "number": 1, "attempt": 0}


def step(**changed):
    """The key of a round and attempt."""
    names = BASE | changed
    begun = Root(names["secret"], b"").forward(names["index"]).begin(names["run"])
    return begun.at(names["number"], names["attempt"]).step


def order(length=500, **changed):
    return secret_order(step(**changed), length)


@pytest.mark.parametrize("length", [0, 1, 2, 500, 100_000])
def test_an_order_is_a_permutation(length):
    np.testing.assert_array_equal(np.sort(order(length)), np.arange(length))


def test_an_order_is_the_same_for_the_same_key():
    np.testing.assert_array_equal(order(), order())


def test_an_order_is_pinned():
    """Silos with other library versions must draw this one too, else they stop at each other's fingerprints."""
    assert secret_order(KEY, 10).tolist() == [2, 0, 3, 1, 7, 4, 6, 5, 9, 8]


@pytest.mark.parametrize("length", [2, 17, 500])
def test_an_order_sorts_by_random_numbers_that_the_key_gives(length):
    """By a second implementation, with AES in counter mode from another library."""
    cipher = Cipher(algorithms.AES(derive(KEY, "order")), modes.CTR(bytes(16))).encryptor()
    numbers = struct.unpack(f"<{length}Q", cipher.update(bytes(8 * length)))
    kept = 64 - (length - 1).bit_length()  # lower bits, which share a word with the index
    drawn = sorted(range(length), key=lambda index: (numbers[index] % 2**kept, index))
    assert secret_order(KEY, length).tolist() == drawn


@pytest.mark.parametrize(
    "changed",
    [{"secret": bytes(32)}, {"index": 1}, {"run": "s"}, {"number": 2}, {"attempt": 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_an_order_differs_by_root_run_round_and_attempt(changed):
    agreeing = np.count_nonzero(order(**changed) == order())
    assert agreeing < 10  # two random permutations agree in one place on average


def test_every_value_may_come_to_every_place():
    """A uniform permutation: each place's mean is the middle, within five standard errors."""
    orders = np.array([secret_order(derive(KEY, "a step", number), 20) for number in range(2000)])
    error = np.sqrt((20**2 - 1) / 12 / 2000)
    assert np.abs(orders.mean(axis=0) - 9.5).max() < 5 * error


def test_a_fingerprint_is_equal_for_equal_order_and_model():
    model = digest(np.ones(5, dtype=np.float32))
    assert fingerprint(KEY, order(), model) == fingerprint(KEY, order(), model)


def test_a_fingerprint_differs_on_everything_that_must_not_differ():
    models = [digest(np.ones(5, dtype=np.float32)), digest(np.nextafter(np.ones(5, dtype=np.float32), 2))]
    orders = [order(), order(number=2), None]
    changes = product([KEY, bytes(32)], ["r", "s"], [1, 2], [0, 1])
    steps = [step(secret=key, run=run, number=t, attempt=a) for key, run, t, a in changes]
    names = list(product(steps, range(3), models))
    assert len({fingerprint(key, orders[which], model) for key, which, model in names}) == len(names)


def test_a_long_order_that_differs_in_its_draw_differs_in_its_fingerprint():
    long = [order(300_000), order(300_000, number=2)]
    assert len({fingerprint(KEY, one, b"") for one in long}) == 2


def test_a_fingerprint_is_not_made_with_the_key_itself():
    """The key of an attempt also gives its order, CKKS, MAC and sealing keys: each use has a key of its own."""
    assert fingerprint(KEY, None, b"model") == tag(derive(KEY, "fingerprint"), b"", b"model").hex()
    assert fingerprint(KEY, None, b"model") != tag(KEY, b"", b"model").hex()


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
    key = bytes(range(16))
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 — to compare single blocks
    drawn = keyed(key).bit_generator.random_raw(8).tobytes()
    blocks = {cipher.update(counter.to_bytes(16, "little")) for counter in range(64)}
    assert {drawn[start : start + 16] for start in range(0, 64, 16)} <= blocks
