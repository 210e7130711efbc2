"""CKKS sums come back as the exact integers that went in."""

import math
import struct

import numpy as np
import pytest

from ckks_secrets import HEADER, KEY, PRECISE, SECRET, STRANGER, draw
from paraaegis.crypto.ckks import CipherSum, Profile, Secret, check_reach, new_key, profile
from paraaegis.errors import ConfigError, CryptoError, UpdateError
from paraaegis.fixed_point import STEP
from paraaegis.types import Blob

LENGTHS = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537]
PATTERNS = {
    "high": np.ones(4096, dtype=np.int64),
    "low": -np.ones(4096, dtype=np.int64),
    "alternating": np.tile([1, -1], 2048),
    "signs": np.random.default_rng(0).choice([-1, 1], 4096),
    "aligned": np.tile([1, 1, -1, 1], 1024),  # all of it meets in one coefficient, √2 larger than the values
    "one": np.eye(1, 4096, 77, dtype=np.int64)[0],
}


def summed(*uploads, length):
    total = CipherSum(PRECISE, length)
    for upload in uploads:
        total.add(upload)
    return SECRET.decrypt(total.close(), length)


def raw(chunks):
    return [bytes(chunk.view) for chunk in chunks]


def flipped(blob, at, bit=0):
    changed = bytearray(blob.view)
    changed[at] ^= 1 << bit
    return Blob(changed)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_of_one_comes_back_exactly_at_any_length(length):
    steps = draw(length, length)
    np.testing.assert_array_equal(summed(SECRET.encrypt(steps, 1), length=length), steps)


@pytest.mark.parametrize("clients", [2, 5, 50])
def test_sums_are_exact(clients):
    uploads = [draw(seed, 4097) for seed in range(clients)]
    encrypted = [SECRET.encrypt(steps, clients) for steps in uploads]
    np.testing.assert_array_equal(summed(*encrypted, length=4097), sum(uploads))


def test_as_many_as_the_profile_promises_are_summed_exactly():
    clients = PRECISE.max_clients
    encrypted = SECRET.encrypt(draw(0, 4096, 10**6), clients)
    fresh = [SECRET.encrypt(draw(seed, 4096, 10**6), clients) for seed in range(1, clients)]
    expected = sum(draw(seed, 4096, 10**6) for seed in range(clients))
    np.testing.assert_array_equal(summed(encrypted, *fresh, length=4096), expected)


def test_two_encryptions_of_one_vector_differ_everywhere():
    steps = draw(0, 5000)
    first, second = (SECRET.encrypt(steps, 1) for _ in range(2))
    for one, other in zip(raw(first), raw(second), strict=True):
        # Not only the seed at the end: bodies that share mask or error would agree in most bytes.
        size = min(len(one), len(other))
        same = np.frombuffer(one[:size], np.uint8) == np.frombuffer(other[:size], np.uint8)
        assert same[200:].mean() < 0.3


def test_rows_of_one_vector_do_not_share_their_mask():
    (chunk,) = SECRET.encrypt(np.zeros(2 * PRECISE.degree, dtype=np.int64), 1)
    body = bytes(chunk.view)
    (first, _) = struct.unpack_from("<2I", body, HEADER)
    rows = body[HEADER + 8 : HEADER + 8 + first], body[HEADER + 8 + first :]
    assert rows[0][200:1200] != rows[1][200:1200]


def test_keys_are_fresh():
    assert len({new_key(PRECISE), new_key(PRECISE), KEY}) == 3


def test_a_ciphertext_takes_at_most_eight_bytes_a_value():
    size = sum(len(chunk) for chunk in SECRET.encrypt(draw(0, 65536), 1))
    assert size / 65536 < 8


@pytest.mark.parametrize("clients", [2, 10])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_values_up_to_the_reach_come_back_exactly(pattern, clients):
    steps = PATTERNS[pattern] * math.floor(PRECISE.reach / clients / STEP)
    uploads = [SECRET.encrypt(steps, clients) for _ in range(clients)]
    np.testing.assert_array_equal(summed(*uploads, length=4096), steps * clients)


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.25])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_single_clients_values_come_back_exactly_or_are_refused(pattern, share):
    """SEAL's encoder takes less than a sum may reach; it must not be the one to say so."""
    steps = PATTERNS[pattern] * math.floor(share * PRECISE.reach / STEP)
    try:
        upload = SECRET.encrypt(steps, 1)
    except UpdateError:
        assert share > 0.5
        return
    np.testing.assert_array_equal(summed(upload, length=4096), steps)


def test_single_steps_beside_huge_values_come_back_exactly():
    steps = draw(0, 4096, 1)
    steps[::7] = math.floor(PRECISE.reach / 2 / STEP)
    np.testing.assert_array_equal(summed(SECRET.encrypt(steps, 1), length=4096), steps)


@pytest.mark.parametrize(("clients", "sign"), [(1, 1), (1, -1), (10, 1), (10, -1)])
def test_overflow_is_refused_before_anything_is_encrypted(monkeypatch, clients, sign):
    monkeypatch.setattr(SECRET, "_chunks", None)
    steps = np.zeros(70_000, dtype=np.int64)
    steps[-1] = sign * (math.floor(PRECISE.reach / max(clients, 2) / STEP) + 1)  # SEAL needs a factor of two for one
    with pytest.raises(UpdateError, match=r"'precise' supports sums within ±46295\.7, but .*could reach") as caught:
        SECRET.encrypt(steps, clients)
    assert f"{clients} client{'s' if clients > 1 else ''} with" in str(caught.value)


def test_the_clients_of_an_exact_sum_are_computed():
    assert PRECISE.max_clients == 126
    assert Profile("finer", 4096, 54, 37, STEP / 2).max_clients == 31
    check_reach(PRECISE, np.ones(1, dtype=np.int64), 126)
    with pytest.raises(UpdateError, match="at most 126 clients exactly, got 127"):
        check_reach(PRECISE, np.ones(1, dtype=np.int64), 127)


def test_half_a_step_is_ten_measured_deviations_at_the_promised_number(monkeypatch):
    """The bound rests on a formula for the error of one encryption; here that error is measured."""
    monkeypatch.setattr("paraaegis.crypto.ckks.check_reach", lambda *_: None)
    coarse = Secret(Profile("coarse", 4096, 54, 17, STEP), KEY)  # at a scale 2^20 lower the error covers many steps
    errors = [coarse.decrypt(coarse.encrypt(draw(seed, 4096), 1), 4096) - draw(seed, 4096) for seed in range(20)]
    measured = np.concatenate(errors).std() * STEP * 2.0**-20
    promised = STEP / 2 / 10 / math.sqrt(PRECISE.max_clients)
    assert promised == pytest.approx(measured, rel=0.03)


def test_an_unknown_profile_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"protect\.profile must be one of precise, compact, got 'other'"):
        profile("other")


def test_an_insecure_profile_is_refused():
    with pytest.raises(CryptoError, match="not secure"):
        new_key(Profile("weak", 1024, 54, 37, STEP))


@pytest.mark.parametrize("key", [b"", b"noise" * 100, KEY[:-1], KEY[: len(KEY) // 2]], ids=["", "noise", "cut", "half"])
def test_bytes_that_are_no_key_are_refused(key):
    with pytest.raises(CryptoError, match="not a ciphertext or key"):
        Secret(PRECISE, key)


def test_a_secret_shows_no_more_than_its_id():
    assert repr(SECRET) == f"Secret(precise, id={SECRET.id.hex()})"
    assert Secret(PRECISE, KEY).id == SECRET.id != STRANGER.id


def test_the_sum_of_another_key_is_refused():
    steps = draw(0, 10)
    total = CipherSum(PRECISE, 10)
    total.add(STRANGER.encrypt(steps, 1))
    with pytest.raises(CryptoError, match="another CKKS key"):
        SECRET.decrypt(total.close(), 10)


def test_a_sum_of_no_uploads_has_no_ciphertext():
    with pytest.raises(CryptoError, match="no uploads"):
        CipherSum(PRECISE, 10).close()
