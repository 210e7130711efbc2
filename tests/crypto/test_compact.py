"""The compact profile: fewer bytes, sums exact on its own coarser grid, small values only."""

import numpy as np
import pytest

from paraaegis.crypto.ckks import PROFILES, CipherSum, Secret, new_key
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.fixed_point import STEP

COMPACT, PRECISE = PROFILES["compact"], PROFILES["precise"]
SECRET = Secret(COMPACT, new_key(COMPACT))


def draw(seed, length, peak=2_000_000):
    return np.random.default_rng(seed).integers(-peak, peak, length, endpoint=True)


def summed(*uploads, length, secret=SECRET, pool=None):
    total = CipherSum(COMPACT, length, pool)
    for upload in uploads:
        total.add(upload)
    return secret.decrypt(total.close(), length)


def coarse(steps):
    return np.rint(steps / COMPACT.unit).astype(np.int64) * COMPACT.unit


@pytest.mark.parametrize("length", [0, 1, 2047, 2048, 2049, COMPACT.chunk - 1, COMPACT.chunk, COMPACT.chunk + 1])
def test_a_sum_of_one_comes_back_on_the_coarse_grid_at_any_length(length):
    steps = draw(length, length)
    np.testing.assert_array_equal(summed(SECRET.encrypt(steps, 1), length=length), coarse(steps))


def test_as_many_as_the_profile_promises_are_summed_exactly():
    clients = COMPACT.max_clients
    uploads = [draw(seed, 2048, 100_000) for seed in range(clients)]
    encrypted = [SECRET.encrypt(steps, clients) for steps in uploads]
    np.testing.assert_array_equal(summed(*encrypted, length=2048), sum(map(coarse, uploads)))


def test_the_error_of_a_sum_of_ten_is_below_a_hundred_thousandth():
    uploads = [draw(seed, 20_000) for seed in range(10)]
    error = summed(*(SECRET.encrypt(steps, 10) for steps in uploads), length=20_000) - sum(uploads)
    assert np.abs(error).max() * STEP < 1e-5


def test_it_takes_fewer_bytes_than_precise():
    steps, precise = draw(0, PRECISE.chunk), Secret(PRECISE, new_key(PRECISE))
    sizes = [sum(map(len, secret.encrypt(steps, 10))) for secret in (SECRET, precise)]
    assert sizes[0] < 0.85 * sizes[1]


def test_values_beyond_its_reach_are_refused_with_the_profile_that_fits():
    steps = np.array([round(COMPACT.reach / 10 / STEP) + COMPACT.unit])
    with pytest.raises(UpdateError, match="profile 'precise' would fit"):
        SECRET.encrypt(steps, 10)


def test_the_other_profile_cannot_read_it():
    upload = SECRET.encrypt(draw(0, 100), 1)
    with pytest.raises(CryptoError):
        Secret(PRECISE, new_key(PRECISE)).decrypt(upload, 100)
    with pytest.raises(CryptoError):
        CipherSum(PRECISE, 100).add(upload)


def test_worker_processes_give_the_same_sums():
    length = 2 * COMPACT.chunk + 7
    steps = draw(1, length)
    with SecretPool(2) as secrets, Pool(2) as pool:
        shared = Secret(COMPACT, new_key(COMPACT), secrets)
        upload = shared.encrypt(steps, 2)
        np.testing.assert_array_equal(
            summed(upload, upload, length=length, secret=shared, pool=pool), 2 * coarse(steps)
        )


def test_a_chunk_that_fails_for_any_reason_is_not_counted(monkeypatch):
    length = 2 * COMPACT.chunk + 7
    with SecretPool(2) as secrets, Pool(2) as pool:
        shared = Secret(COMPACT, new_key(COMPACT), secrets)
        upload = shared.encrypt(draw(1, length), 2)
        total = CipherSum(COMPACT, length, pool)
        total.add(upload)
        worker = pool._running()[0]
        real, calls = worker._ask, []

        def broken(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                raise ValueError("a reply of the wrong kind")
            return real(*arguments)

        monkeypatch.setattr(worker, "_ask", broken)
        with pytest.raises(CryptoError, match="wrong kind"):
            total.add(upload)
        np.testing.assert_array_equal(shared.decrypt(total.close(), length), coarse(draw(1, length)))
