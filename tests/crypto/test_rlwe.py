"""RLWE sums come back as the exact integers that went in; everything else is refused."""

import hashlib
import math
import os
from fractions import Fraction

import numpy as np
import pytest

import rlwe_by_hand as hand
from paraaegis.crypto import rlwe_chunks
from paraaegis.crypto.residues import add_errors
from paraaegis.crypto.ring import MODULUS
from paraaegis.crypto.rlwe import PROFILES, SECRET, RlweSum, decrypt, encrypt, new_mask, new_secret, rounded
from paraaegis.fixed_point import STEP

WIDE, DOUBLE = PROFILES["wide"], PROFILES["double"]
SEED, ENTROPY = bytes(range(32)), bytes(range(32, 64))
LENGTHS = [0, 1, 2, 2047, 2048, 2049, 131_071, 131_072, 131_073, 65_537, 262_143, 262_144, 262_145]
BY_PROFILE = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def draw(profile, seed, length, clients=1):
    """Values of a client as large as a sum over so many allows, on the profile's grid."""
    peak = math.floor(Fraction(profile.reach) / Fraction(profile.step) / clients)
    return np.random.default_rng(seed).integers(-peak, peak, length, endpoint=True) * profile.unit


def raw(chunks):
    return b"".join(bytes(chunk.view) for chunk in chunks)


def summed(profile, rows):
    """The opened sum of several clients' values."""
    total, secrets = RlweSum(profile, rows[0].size), [new_secret() for _ in rows]
    for row, secret in zip(rows, secrets, strict=True):
        total.add(encrypt(profile, row, len(rows), new_mask(SEED, secret)))
    return decrypt(profile, total.close(), rows[0].size, sum(secrets), SEED, len(rows))


# Vectors


@BY_PROFILE
def test_a_small_upload_is_what_integers_give(profile):
    """A full polynomial and more, all of it recomputed by schoolbook multiplication modulo Q."""
    length = (2048 + 5) * profile.lanes - (profile.lanes - 1)
    steps, secret = draw(profile, 0, length), hand.secret_of(ENTROPY)
    places = [*range(0, 2053, 41), 2047, 2048, 2052]
    (chunk,) = encrypt(profile, steps, 1, new_mask(SEED, np.array(secret), ENTROPY))
    found = hand.unpacked(bytes(chunk.view), 2053)
    expected = hand.masked(profile.lanes, steps.tolist(), secret, SEED, ENTROPY, only=places)
    assert {place: found[place] for place in places} == expected


@BY_PROFILE
def test_a_full_small_case_is_what_integers_give(profile):
    steps, secret = draw(profile, 1, 130), hand.secret_of(ENTROPY)
    expected = hand.masked(profile.lanes, steps.tolist(), secret, SEED, ENTROPY)
    assert raw(encrypt(profile, steps, 1, new_mask(SEED, np.array(secret), ENTROPY))) == hand.packed(expected.values())


def test_a_second_chunk_has_polynomials_and_errors_of_its_own():
    steps, secret = draw(WIDE, 2, WIDE.chunk + 9), hand.secret_of(ENTROPY)
    _, chunk = encrypt(WIDE, steps, 1, new_mask(SEED, np.array(secret), ENTROPY))
    expected = hand.masked(1, steps[WIDE.chunk :].tolist(), secret, SEED, ENTROPY, index=1)
    assert bytes(chunk.view) == hand.packed(expected.values())


PINNED = {
    ("wide", 5000): "d5a451674edc74d8",
    ("wide", 131_072 + 3000): "1a22e212dd7588a9",
    ("double", 5000): "ebe4366d66a4d3bd",
    ("double", 262_144 + 3001): "9cae11284b5bc4be",
}


@pytest.mark.parametrize(("name", "length"), PINNED)
def test_uploads_are_pinned(name, length):
    """Clients on other machines and with other library versions must send these too, else no sum opens."""
    steps = np.arange(length) * 7919 % 200_003 - 100_001
    upload = encrypt(PROFILES[name], steps, 10, new_mask(SEED, new_secret(ENTROPY), ENTROPY))
    assert hashlib.sha256(raw(upload)).hexdigest()[:16] == PINNED[name, length]


def test_secrets_are_pinned_and_those_of_a_second_implementation():
    assert new_secret(ENTROPY).tolist() == hand.secret_of(ENTROPY)
    assert hashlib.sha256(new_secret(ENTROPY).astype("<i8").tobytes()).hexdigest()[:16] == "43b70fd68d015cff"


# Sums


@BY_PROFILE
@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_of_one_comes_back_exactly_at_any_length(profile, length):
    steps = draw(profile, length, length)
    np.testing.assert_array_equal(summed(profile, [steps]), steps)


@BY_PROFILE
@pytest.mark.parametrize("clients", [2, 10, 24, 25, 249])
def test_sums_are_exact(profile, clients):
    rows = [draw(profile, seed, 4097, clients) for seed in range(clients)]
    np.testing.assert_array_equal(summed(profile, rows), sum(rows))


@BY_PROFILE
@pytest.mark.parametrize("clients", [1, 3, 249])
@pytest.mark.parametrize("signs", [[1], [-1], [1, -1], [1, 1, -1, -1, 0]], ids=str)
def test_values_up_to_the_reach_come_back_exactly(profile, clients, signs):
    peak = profile.reach_units // clients
    steps = np.resize(signs, 301) * peak * profile.unit
    np.testing.assert_array_equal(summed(profile, [steps] * clients), steps * clients)


def test_the_reach_leaves_room_for_the_largest_error_and_no_more():
    for profile in PROFILES.values():
        lanes = 1 + 2**20 * (profile.lanes - 1)
        fits = [
            units * lanes * 1024 + 511 <= (MODULUS - 1) // 2 for units in (profile.reach_units, profile.reach_units + 1)
        ]
        assert fits == [True, False]
    assert DOUBLE.reach_units < 2**19
    assert (WIDE.reach, DOUBLE.reach) == (WIDE.reach_units * STEP, DOUBLE.reach_units * 2.0**-17)
    assert WIDE.reach > 2 * 46_000
    assert DOUBLE.reach > 3.9


def test_the_largest_errors_of_24_clients_leave_the_largest_sum_exact(monkeypatch):
    """Errors of 21 each with the sign that hurts: a stream of ones, or of zeros."""
    for octet in (b"\0", b"\xff"):
        stream = lambda size, octet=octet: octet * size  # noqa: E731
        monkeypatch.setattr("paraaegis.crypto.rlwe.keystream", lambda _, stream=stream: stream)
        monkeypatch.setattr(rlwe_chunks, "add_errors", lambda _, totals, stream=stream: add_errors(stream, totals))
        monkeypatch.setattr("paraaegis.crypto.rlwe._check_errors", lambda *_: None)
        for profile in PROFILES.values():
            for sign in (1, -1):
                steps = np.full(5, sign * (profile.reach_units // 24) * profile.unit)
                np.testing.assert_array_equal(summed(profile, [steps] * 24), 24 * steps)


def test_double_rounds_halves_to_even():
    steps = np.array([16, 48, -16, -48, 15, 17, -15, -17, 0, 31, 32, 33])
    expected = np.array([0, 64, 0, -64, 0, 32, 0, -32, 0, 32, 32, 32])
    np.testing.assert_array_equal(rounded(DOUBLE, steps), expected)
    np.testing.assert_array_equal(summed(DOUBLE, [steps]), expected)
    assert rounded(WIDE, steps) is steps


@BY_PROFILE
def test_both_widths_of_steps_and_any_strides_give_the_same_upload(profile):
    steps, secret = draw(profile, 0, 5000, 100_000), new_secret()
    forms = [steps, steps.astype(np.int32), np.repeat(steps, 2)[::2], steps.copy()]
    forms[-1].flags.writeable = False
    assert len({raw(encrypt(profile, form, 3, new_mask(SEED, secret, ENTROPY))) for form in forms}) == 1


@BY_PROFILE
def test_the_number_of_threads_changes_no_bit(profile, monkeypatch):
    steps, secret, found = draw(profile, 0, 3 * profile.chunk - 77, 2), new_secret(), set()
    for cores in (1, 2, 7):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        total = RlweSum(profile, steps.size)
        for entropy in (SEED, ENTROPY):
            total.add(encrypt(profile, steps, 2, new_mask(SEED, secret, entropy)))
        closed = total.close()
        opened = decrypt(profile, closed, steps.size, 2 * secret, SEED, 2)
        np.testing.assert_array_equal(opened, 2 * steps)
        found.add(raw(closed))
    assert len(found) == 1


@BY_PROFILE
def test_a_chunk_does_not_depend_on_those_after_it(profile):
    steps, secret = draw(profile, 0, profile.chunk + 100), new_secret()
    alone = encrypt(profile, steps[: profile.chunk], 1, new_mask(SEED, secret, ENTROPY))
    assert raw(encrypt(profile, steps, 1, new_mask(SEED, secret, ENTROPY))[:1]) == raw(alone)


def test_an_upload_and_a_sum_take_six_and_a_quarter_bytes_a_coefficient():
    for profile, length in ((WIDE, 131_072 + 10), (DOUBLE, 2 * (131_072 + 10) - 1)):
        total = RlweSum(profile, length)
        total.add(encrypt(profile, np.zeros(length, dtype=np.int32), 1, new_mask(SEED)))
        assert [len(chunk) for chunk in total.close()] == [819_200, 63]


def test_what_was_added_can_be_subtracted():
    uploads = [encrypt(WIDE, draw(WIDE, n, 2049, 3), 3, new_mask(SEED)) for n in range(3)]
    sums = {}
    for kept in ([0], [0, 1, 2]):
        total = RlweSum(WIDE, 2049)
        for index in kept:
            total.add(uploads[index])
        for index in kept[1:]:
            total.subtract(uploads[index])
        sums[len(kept)] = raw(total.close())
    assert sums[1] == sums[3] == raw(uploads[0])


# Randomness


def test_secrets_are_centred_binomial():
    drawn = np.concatenate([new_secret() for _ in range(200)])
    assert drawn.dtype == np.int64
    assert np.abs(drawn).max() <= 21
    error = math.sqrt(10.5 / drawn.size)
    assert abs(drawn.mean()) < 5 * error
    assert drawn.var() == pytest.approx(10.5, rel=5 * math.sqrt(2 / drawn.size))
    expected = np.array([math.comb(42, k) for k in range(43)]) / 2**42 * drawn.size
    counts, likely = np.bincount(drawn + 21, minlength=43), expected > 10
    assert (((counts - expected) ** 2 / expected)[likely]).sum() < likely.sum() + 5 * math.sqrt(2 * likely.sum())


@BY_PROFILE
def test_errors_are_centred_binomial(profile):
    """Under a secret of zeros an upload of zeros is its error alone."""
    length = 50_000 * profile.lanes
    nothing = np.zeros(SECRET, dtype=np.int64)
    (chunk,) = encrypt(profile, np.zeros(length, dtype=np.int32), 1, new_mask(SEED, nothing))
    wholes = np.array(hand.unpacked(bytes(chunk.view), 50_000))
    errors = np.where(wholes > MODULUS // 2, wholes - MODULUS, wholes)
    assert np.abs(errors).max() <= 21
    assert abs(errors.mean()) < 5 * math.sqrt(10.5 / errors.size)
    assert errors.var() == pytest.approx(10.5, rel=5 * math.sqrt(2 / errors.size))


def test_randomness_is_fresh():
    assert len({new_secret().tobytes() for _ in range(5)}) == 5
    steps, secret = np.zeros(100, dtype=np.int32), new_secret()
    assert len({raw(encrypt(WIDE, steps, 1, new_mask(SEED, secret))) for _ in range(5)}) == 5


def test_masks_differ_by_seed_secret_and_block():
    steps, nothing = np.zeros(4096, dtype=np.int32), bytes(32)
    uploads = [
        raw(encrypt(WIDE, steps, 1, new_mask(seed, new_secret(key), ENTROPY)))
        for key in (SEED, nothing)
        for seed in (SEED, nothing)
    ]
    columns = [np.frombuffer(upload[: 4 * 4096], "<u4")[k::2] for upload in uploads for k in (0, 1)]
    for i, one in enumerate(columns):
        assert all((one == other).mean() < 0.01 for other in columns[:i])
