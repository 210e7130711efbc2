"""ns per value of the RLWE cipher, by step, next to CKKS in the same process on one core; and of the secret order.

python benchmarks/rlwe_steps.py
"""

import os
import time

import numpy as np

from paraaegis.crypto import ckks, rlwe
from paraaegis.crypto.residues import add_errors, encode, packed_size, readonly
from paraaegis.crypto.ring import SPARE, draw, fields, multiply, transform
from paraaegis.crypto.rlwe_chunks import products
from paraaegis.crypto.rlwe_profiles import COEFFICIENTS, write_digits
from paraaegis.crypto.shuffle import secret_order
from paraaegis.crypto.streams import SLACK, reusing
from paraaegis.fixed_point import to_fixed_point

SEED, CLIENTS = bytes(32), 10
MEMORY = np.empty(8 * COEFFICIENTS + SLACK, np.uint8)


def ns(work, values, repeats=40):
    """The fastest run's time per value: other work on the machine can only add time."""
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent) * 1e9 / values


def on_one_core():
    """Run everything from here on in one thread on one core."""
    os.cpu_count = lambda: 1  # for parallel_map
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def values_of(length):
    """Grid steps of values with a standard deviation of 0.01."""
    return to_fixed_point(np.random.default_rng(0).normal(0, 0.01, length))


def steps_of(profile):
    """One chunk, step by step. `draw` and `transform` are the parts of `mask`.

    `AES` and `copy` are limits of the machine: the key stream that `draw` and `error` use, 16 bytes a coefficient, and
    reading values of 4 bytes and writing the packed bytes, from and to memory instead of cache.
    """
    secret, steps, stream = transform(rlwe.new_secret()), values_of(profile.chunk), reusing(SEED, MEMORY)
    whole, digits = np.zeros((2, COEFFICIENTS), np.uint32), np.zeros((2, COEFFICIENTS), np.uint32)
    field, out = fields()[0], np.empty(packed_size(COEFFICIENTS), np.uint8)

    def words():
        return readonly(np.frombuffer(stream(4 * (COEFFICIENTS + SPARE)), "<u4"))

    works = {
        "draw": lambda: [draw(words(), 0, row, each.prime) for row, each in zip(whole, fields(), strict=True)],
        "transform": lambda: [multiply(row, secret[0], field) for row in whole],
        "mask": lambda: products(SEED, 0, COEFFICIENTS, secret),
        "error": lambda: add_errors(stream, whole),
        "message": lambda: write_digits(profile, steps, *digits),
        "reduce and pack": lambda: encode(whole, *digits, profile.offset, out),
        "AES": lambda: [stream(8 * COEFFICIENTS) for _ in range(2)],
    }
    return {name: ns(work, profile.chunk) for name, work in works.items()}


def whole_of(profile):
    """Uploads of four chunks."""
    steps, secret = values_of(4 * profile.chunk), rlwe.new_secret()
    upload, total = (
        rlwe.encrypt(profile, steps, CLIENTS, rlwe.new_mask(SEED, secret)),
        rlwe.RlweSum(profile, steps.size),
    )
    total.add(upload)
    source, target = np.ones(64 * profile.chunk, np.uint32), np.ones(len(upload[0]) * 64, np.uint8)
    works = {
        "encrypt": lambda: rlwe.encrypt(profile, steps, CLIENTS, rlwe.new_mask(SEED, secret)),
        "close": total.close,
        "decrypt": lambda: rlwe.decrypt(profile, upload, steps.size, secret, SEED, 1),
        "add": lambda: total.add(upload),
    }
    copy = {"copy": ns(lambda: (source.max(), target.fill(0)), source.size)}
    return {name: ns(work, steps.size) for name, work in works.items()} | copy


def main():
    """Measure and print."""
    on_one_core()
    rlwe.warm()
    setting = ckks.profile("precise")
    steps, key = values_of(65_536), ckks.Secret(setting, ckks.new_key(setting))
    measured = {profile.name: steps_of(profile) | whole_of(profile) for profile in rlwe.PROFILES.values()}
    seal = ns(lambda: key.encrypt(steps, CLIENTS), steps.size, 20)
    for name, times in measured.items():
        print(name, *(f"{step} {time:.2f}" for step, time in times.items()), sep="  ")
        print(f"CKKS precise: encrypt {seal:.1f}, {seal / times['encrypt']:.1f} times as long")
    print(f"secret order of 11,191,242 values: {ns(lambda: secret_order(SEED, 11_191_242), 1e9, 5):.3f} s")


if __name__ == "__main__":
    main()
