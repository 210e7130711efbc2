"""Encryption in worker processes gives what one process gives, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import paraaegis.crypto.pool as pool_module
from paraaegis.crypto.ckks import CipherSum, Secret, new_key
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.profiles import PROFILES
from paraaegis.errors import CryptoError
from paraaegis.types import Blob

PRECISE = PROFILES["precise"]
KEY = new_key(PRECISE)
LENGTH = 3 * PRECISE.chunk + 5


@pytest.fixture(scope="module")
def pool():
    with SecretPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def keyless():
    with Pool(2) as pool:
        yield pool


def steps(seed, dtype=np.int64):
    return np.random.default_rng(seed).integers(-(2**24), 2**24, LENGTH).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sums_through_workers_are_exact(pool, keyless, dtype):
    secret = Secret(PRECISE, KEY, pool)
    total = CipherSum(PRECISE, LENGTH, keyless)
    for seed in range(3):
        total.add(secret.encrypt(steps(seed, dtype), 3))
    np.testing.assert_array_equal(secret.decrypt(total.close(), LENGTH), sum(steps(seed) for seed in range(3)))


def test_workers_and_one_process_understand_each_other(pool):
    shared, alone = Secret(PRECISE, KEY, pool), Secret(PRECISE, KEY)
    total = CipherSum(PRECISE, LENGTH)
    total.add(shared.encrypt(steps(0), 2))
    total.add(alone.encrypt(steps(1), 2))
    np.testing.assert_array_equal(shared.decrypt(total.close(), LENGTH), steps(0) + steps(1))


@pytest.mark.parametrize("first", [True, False])
def test_a_bad_upload_leaves_the_workers_sums_as_they_were(pool, keyless, first):
    secret = Secret(PRECISE, KEY, pool)
    total = CipherSum(PRECISE, LENGTH, keyless)
    bad = list(secret.encrypt(steps(9), 2))
    bad[2] = Blob(bytes(bad[2].view)[:-1])
    if not first:
        total.add(secret.encrypt(steps(0), 2))
    with pytest.raises(CryptoError):
        total.add(bad)
    if first:
        total.add(secret.encrypt(steps(0), 2))
    np.testing.assert_array_equal(secret.decrypt(total.close(), LENGTH), steps(0))


def test_two_sums_at_once_do_not_mix(pool, keyless):
    secret = Secret(PRECISE, KEY, pool)
    sums = [CipherSum(PRECISE, LENGTH, keyless) for _ in range(2)]
    for seed, total in enumerate(sums):
        total.add(secret.encrypt(steps(seed), 2))
    for seed, total in enumerate(sums):
        np.testing.assert_array_equal(secret.decrypt(total.close(), LENGTH), steps(seed))


def test_a_chunk_under_another_key_is_refused_by_name(pool):
    other = Secret(PRECISE, new_key(PRECISE), pool)
    with pytest.raises(CryptoError, match="another CKKS key"):
        Secret(PRECISE, KEY, pool).decrypt(other.encrypt(steps(0), 2), LENGTH)


def test_a_killed_worker_is_an_error_and_not_a_hang():
    with SecretPool(2) as pool:
        secret = Secret(PRECISE, KEY, pool)
        secret.encrypt(steps(0), 2)
        pool._started[0]._process.kill()
        pool._started[0]._process.wait()
        with pytest.raises(CryptoError, match="ended unexpectedly"):
            secret.encrypt(steps(0), 2)


def children_of(pid):
    found = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"


SCRIPT = """
import sys, numpy as np, time
from paraaegis.crypto.ckks import Secret, new_key
from paraaegis.crypto.pool import SecretPool
from paraaegis.crypto.profiles import PROFILES
with SecretPool(2) as pool:
    profile = PROFILES["precise"]
    secret = Secret(profile, new_key(profile), pool)
    steps = np.zeros(3 * profile.chunk, dtype=np.int64)
    secret.encrypt(steps, 2)
    print("ready", flush=True)
    while True:
        secret.encrypt(steps, 2)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(how):
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert parent.stdout.readline() == b"ready\n"
    workers = children_of(parent.pid)
    assert len(workers) == 2
    parent.send_signal(how)
    parent.wait(timeout=20)
    deadline = time.monotonic() + 20
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.stdout.close()
    said = parent.stderr.read()
    parent.stderr.close()
    assert not any(alive(worker) for worker in workers)
    assert how != signal.SIGKILL or said == b""  # of the workers: a parent that is killed says nothing


def test_short_vectors_start_no_process():
    with SecretPool(2) as pool:
        Secret(PRECISE, KEY, pool).encrypt(steps(0)[:100], 2)
        assert not pool._started


@pytest.mark.parametrize("operation", ["key", "encrypt", "decrypt"])
def test_the_servers_workers_take_no_key_and_do_not_decrypt(keyless, operation):
    with pytest.raises(CryptoError, match="AttributeError"):
        keyless.submit(0, operation, (), KEY).result()


def test_a_worker_imports_nothing_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    with SecretPool(2) as pool:
        Secret(PRECISE, KEY, pool).encrypt(steps(0), 2)


@pytest.mark.parametrize(("kind", "spread"), [(SecretPool, [2, 2, 2]), (Pool, [6])])
def test_first_chunks_of_several_clients_are_shared_out_but_those_of_one_sum_meet(monkeypatch, kind, spread):
    asked = []
    submit = pool_module._Worker.submit

    def noted(worker, operation, *rest):
        if operation == "unknown":  # and not the end of an earlier test's sum
            asked.append(id(worker))
        return submit(worker, operation, *rest)

    monkeypatch.setattr(pool_module._Worker, "submit", noted)
    with kind(3) as pool:
        for future in [pool.submit(0, "unknown", (), b"") for _ in range(6)]:
            assert isinstance(future.exception(), CryptoError)
    assert sorted(asked.count(worker) for worker in set(asked)) == spread
