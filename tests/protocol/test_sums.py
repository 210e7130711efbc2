"""The server's sums take an upload whole or not at all."""

import numpy as np
import pytest

from paraaegis.crypto import ckks_seal as seal
from paraaegis.crypto.chunks import join, parse
from paraaegis.crypto.ckks import PROFILES, Secret, new_key
from paraaegis.crypto.pool import Pool
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.fixed_point import pack_fixed_point, unpack_fixed_point
from paraaegis.protocol.sums import CkksSum, FixedPointSum, ParallelSum
from paraaegis.types import Blob, Payload

PROFILE = PROFILES["precise"]
SECRET = Secret(PROFILE, new_key(PROFILE))
INSIDE, OUTSIDE = 5000, 300


def steps(seed, length):
    return np.random.default_rng(seed).integers(-(10**6), 10**6, length)


def grid(seed, length=OUTSIDE):
    return Payload("grid", length, pack_fixed_point(steps(seed, length)))


def ckks(seed, length=INSIDE):
    return Payload("ckks", length, SECRET.encrypt(steps(seed, length), 10))


def parallel(seed):
    return Payload("parallel", INSIDE + OUTSIDE, parts=(ckks(seed), grid(seed)))


def cut(payload):
    return Payload(payload.kind, payload.length, tuple(Blob(bytes(chunk.view)[:-1]) for chunk in payload.chunks))


def values(payload):
    """The steps of a sum, whatever protects it."""
    if payload.kind == "parallel":
        return np.concatenate([values(part) for part in payload.parts])
    if payload.kind == "ckks":
        return SECRET.decrypt(payload.chunks, payload.length)
    return unpack_fixed_point(payload.chunks, payload.length)


def plain(kind, seed):
    if kind == "parallel":
        return np.concatenate([steps(seed, INSIDE), steps(seed, OUTSIDE)])
    return steps(seed, INSIDE if kind == "ckks" else OUTSIDE)


MAKE = {"grid": grid, "ckks": ckks, "parallel": parallel}
OPEN = {
    "grid": lambda: FixedPointSum(OUTSIDE),
    "ckks": lambda: CkksSum(PROFILE, INSIDE),
    "parallel": lambda: ParallelSum(INSIDE + OUTSIDE, CkksSum(PROFILE, INSIDE), FixedPointSum(OUTSIDE)),
}
both_kinds = pytest.mark.parametrize("kind", OPEN)

BAD = {
    "grid": [cut(grid(9)), grid(9, OUTSIDE + 1), ckks(9), Payload("grid", OUTSIDE), parallel(9)],
    "ckks": [cut(ckks(9)), ckks(9, INSIDE - 1), grid(9), Payload("ckks", INSIDE), parallel(9)],
    "parallel": [
        Payload("parallel", INSIDE + OUTSIDE, parts=(ckks(9), cut(grid(9)))),
        Payload("parallel", INSIDE + OUTSIDE, parts=(cut(ckks(9)), grid(9))),
        Payload("parallel", INSIDE + OUTSIDE, parts=(ckks(9), grid(9, OUTSIDE + 1))),
        Payload("parallel", INSIDE + OUTSIDE, parts=(ckks(9, INSIDE + 1), grid(9))),
        Payload("parallel", INSIDE + OUTSIDE, parts=(grid(9), ckks(9))),
        Payload("parallel", INSIDE + OUTSIDE, parts=(ckks(9),)),
        Payload("parallel", INSIDE + OUTSIDE, parts=(ckks(9), grid(9), grid(9))),
        Payload("parallel", INSIDE, parts=(ckks(9), grid(9))),
        Payload("parallel", INSIDE + OUTSIDE),
        ckks(9),
    ],
}


@both_kinds
def test_a_sum_is_the_sum_of_its_uploads(kind):
    total = OPEN[kind]()
    for seed in range(4):
        total.add(MAKE[kind](seed))
    np.testing.assert_array_equal(values(total.close()), sum(plain(kind, seed) for seed in range(4)))


@both_kinds
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_refused_upload_leaves_the_sum_as_it_was(kind, before):
    total = OPEN[kind]()
    for seed in range(before):
        total.add(MAKE[kind](seed))
    for bad in BAD[kind]:
        with pytest.raises((CryptoError, ProtocolError)):
            total.add(bad)
    total.add(MAKE[kind](7))
    expected = sum((plain(kind, seed) for seed in range(before)), plain(kind, 7))
    np.testing.assert_array_equal(values(total.close()), expected)


@both_kinds
def test_what_was_added_can_be_taken_back(kind):
    total, uploads = OPEN[kind](), [MAKE[kind](seed) for seed in range(3)]
    for upload in uploads:
        total.add(upload)
    total.remove(uploads[1])
    np.testing.assert_array_equal(values(total.close()), plain(kind, 0) + plain(kind, 2))


@both_kinds
def test_a_sum_that_lost_its_only_upload_starts_anew(kind):
    total, first = OPEN[kind](), MAKE[kind](0)
    total.add(first)
    total.remove(first)
    total.add(MAKE[kind](1))
    np.testing.assert_array_equal(values(total.close()), plain(kind, 1))


def test_a_refusal_names_what_was_expected_and_what_came():
    with pytest.raises(ProtocolError, match="expected a 'grid' payload of 0 parts, got a 'ckks' payload of 0"):
        FixedPointSum(OUTSIDE).add(ckks(0))
    with pytest.raises(ProtocolError, match=f"payload of {OUTSIDE} values, got {OUTSIDE + 1}"):
        FixedPointSum(OUTSIDE).add(grid(0, OUTSIDE + 1))


def test_an_empty_part_is_a_part():
    total = ParallelSum(3, CkksSum(PROFILE, 0), FixedPointSum(3))
    total.add(Payload("parallel", 3, parts=(ckks(0, 0), grid(0, 3))))
    np.testing.assert_array_equal(values(total.close()), steps(0, 3))


def negated(payload):
    """What a client could make of another's upload, if it got hold of it."""
    chunks = []
    for index, blob in enumerate(payload.chunks):
        count = min(PROFILE.chunk, payload.length - index * PROFILE.chunk)
        with seal._scratch() as scratch:
            parsed = parse(PROFILE, blob.view, index, count, SECRET.id)
            rows = [seal._ciphertext(PROFILE, row, scratch) for row in parsed]
            for row in rows[1:]:
                seal._tools(PROFILE).evaluator.negate_inplace(row)
            chunks.append(Blob(join(PROFILE, SECRET.id, index, count, [seal._save(row, scratch) for row in rows])))
    return Payload("ckks", payload.length, tuple(chunks))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_upload_that_would_make_a_sum_zero_is_refused_whole(workers, monkeypatch):
    monkeypatch.setattr("paraaegis.crypto.pool.SMALL", 0)
    with Pool(workers) as pool:
        total, first = CkksSum(PROFILE, INSIDE, pool), ckks(0)
        total.add(first)
        with pytest.raises(CryptoError, match="transparent"):
            total.add(negated(first))
        np.testing.assert_array_equal(values(total.close()), steps(0, INSIDE))


@pytest.mark.parametrize("extreme", [2**53 + 1, -(2**53) - 1, -(2**63)])
def test_values_that_could_overflow_a_sum_are_refused_whole(extreme):
    total = FixedPointSum(OUTSIDE)
    total.add(grid(0))
    odd = steps(1, OUTSIDE)
    odd[-1] = extreme
    with pytest.raises(ProtocolError, match="must lie within ±2147483648"):
        total.add(Payload("grid", OUTSIDE, (Blob(odd.astype("<i8").data),)))
    np.testing.assert_array_equal(values(total.close()), steps(0, OUTSIDE))
