"""RLWE sums come back as the exact integers that went in; everything else is refused."""

import hashlib
import math
import os
from fractions import Fraction

import numpy as np
import pytest

import rlwe_by_hand as hand
from paraaegis.crypto import rlwe
from paraaegis.crypto.residues import packed_size
from paraaegis.crypto.ring import MODULUS, PRIMES
from paraaegis.crypto.rlwe import PROFILES, SECRET, RlweSum, check_reach, decrypt, encrypt, new_secret, rounded
from paraaegis.crypto.rlwe_profiles import largest_error
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.fixed_point import STEP
from paraaegis.types import Blob

WIDE, DOUBLE = PROFILES["wide"], PROFILES["double"]
SEED, ENTROPY = bytes(range(32)), bytes(range(32, 64))
LENGTHS = [0, 1, 2, 2047, 2048, 2049, 131_071, 131_072, 131_073, 262_143, 262_144, 262_145]
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
        total.add(encrypt(profile, row, len(rows), secret, SEED))
    return decrypt(profile, total.close(), rows[0].size, sum(secrets), SEED, len(rows))


# Vectors


@BY_PROFILE
def test_a_small_upload_is_what_integers_give(profile):
    """A full polynomial and more, all of it recomputed by schoolbook multiplication modulo Q."""
    length = (2048 + 5) * profile.lanes - (profile.lanes - 1)
    steps, secret = draw(profile, 0, length), hand.secret_of(ENTROPY)
    places = [*range(0, 2053, 41), 2047, 2048, 2052]
    (chunk,) = encrypt(profile, steps, 1, np.array(secret), SEED, ENTROPY)
    found = hand.unpacked(bytes(chunk.view), 2053)
    expected = hand.masked(profile.lanes, steps.tolist(), secret, SEED, ENTROPY, only=places)
    assert {place: found[place] for place in places} == expected


@BY_PROFILE
def test_a_full_small_case_is_what_integers_give(profile):
    steps, secret = draw(profile, 1, 130), hand.secret_of(ENTROPY)
    expected = hand.masked(profile.lanes, steps.tolist(), secret, SEED, ENTROPY)
    assert raw(encrypt(profile, steps, 1, np.array(secret), SEED, ENTROPY)) == hand.packed(expected.values())


def test_a_second_chunk_has_polynomials_and_errors_of_its_own():
    steps, secret = draw(WIDE, 2, WIDE.chunk + 9), hand.secret_of(ENTROPY)
    _, chunk = encrypt(WIDE, steps, 1, np.array(secret), SEED, ENTROPY)
    expected = hand.masked(1, steps[WIDE.chunk :].tolist(), secret, SEED, ENTROPY, index=1)
    assert bytes(chunk.view) == hand.packed(expected.values())


PINNED = {
    ("wide", 5000): "",
    ("wide", 131_072 + 3000): "",
    ("double", 5000): "",
    ("double", 262_144 + 3001): "",
}


@pytest.mark.parametrize(("name", "length"), PINNED)
def test_uploads_are_pinned(name, length):
    """Clients on other machines and with other library versions must send these too, else no sum opens."""
    steps = np.arange(length) * 7919 % 200_003 - 100_001
    upload = encrypt(PROFILES[name], steps, 10, new_secret(ENTROPY), SEED, ENTROPY)
    assert hashlib.sha256(raw(upload)).hexdigest()[:16] == PINNED[name, length]


def test_secrets_are_pinned_and_those_of_a_second_implementation():
    assert new_secret(ENTROPY).tolist() == hand.secret_of(ENTROPY)
    assert hashlib.sha256(new_secret(ENTROPY).astype("<i8").tobytes()).hexdigest()[:16] == ""


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
        monkeypatch.setattr("paraaegis.crypto.rlwe.keystream", lambda _, octet=octet: lambda size: octet * size)
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
    assert len({raw(encrypt(profile, form, 3, secret, SEED, ENTROPY)) for form in forms}) == 1


@BY_PROFILE
def test_the_number_of_threads_changes_no_bit(profile, monkeypatch):
    steps, secret, found = draw(profile, 0, 3 * profile.chunk - 77, 2), new_secret(), set()
    for cores in (1, 2, 7):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        total = RlweSum(profile, steps.size)
        for _ in range(2):
            total.add(encrypt(profile, steps, 2, secret, SEED, ENTROPY))
        closed = total.close()
        opened = decrypt(profile, closed, steps.size, 2 * secret, SEED, 2)
        np.testing.assert_array_equal(opened, 2 * steps)
        found.add(raw(closed))
    assert len(found) == 1


@BY_PROFILE
def test_a_chunk_does_not_depend_on_those_after_it(profile):
    steps, secret = draw(profile, 0, profile.chunk + 100), new_secret()
    alone = encrypt(profile, steps[: profile.chunk], 1, secret, SEED, ENTROPY)
    assert raw(encrypt(profile, steps, 1, secret, SEED, ENTROPY)[:1]) == raw(alone)


def test_an_upload_and_a_sum_take_six_and_a_quarter_bytes_a_coefficient():
    for profile, length in ((WIDE, 131_072 + 10), (DOUBLE, 2 * (131_072 + 10) - 1)):
        total = RlweSum(profile, length)
        total.add(encrypt(profile, np.zeros(length, dtype=np.int32), 1, new_secret(), SEED))
        assert [len(chunk) for chunk in total.close()] == [819_200, 63]


def test_what_was_added_can_be_subtracted():
    uploads = [encrypt(WIDE, draw(WIDE, n, 2049, 3), 3, new_secret(), SEED) for n in range(3)]
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
    (chunk,) = encrypt(profile, np.zeros(length, dtype=np.int32), 1, nothing, SEED)
    wholes = np.array(hand.unpacked(bytes(chunk.view), 50_000))
    errors = np.where(wholes > MODULUS // 2, wholes - MODULUS, wholes)
    assert np.abs(errors).max() <= 21
    assert abs(errors.mean()) < 5 * math.sqrt(10.5 / errors.size)
    assert errors.var() == pytest.approx(10.5, rel=5 * math.sqrt(2 / errors.size))


def test_randomness_is_fresh():
    assert len({new_secret().tobytes() for _ in range(5)}) == 5
    steps, secret = np.zeros(100, dtype=np.int32), new_secret()
    assert len({raw(encrypt(WIDE, steps, 1, secret, SEED)) for _ in range(5)}) == 5


def test_masks_differ_by_seed_secret_and_block():
    steps, nothing = np.zeros(4096, dtype=np.int32), bytes(32)
    uploads = [
        raw(encrypt(WIDE, steps, 1, new_secret(key), seed, ENTROPY))
        for key in (SEED, nothing)
        for seed in (SEED, nothing)
    ]
    columns = [np.frombuffer(upload[: 4 * 4096], "<u4")[k::2] for upload in uploads for k in (0, 1)]
    for i, one in enumerate(columns):
        assert all((one == other).mean() < 0.01 for other in columns[:i])


# Refusals


@BY_PROFILE
@pytest.mark.parametrize(("clients", "sign"), [(1, 1), (1, -1), (10, 1), (10, -1), (249, 1)])
def test_overflow_is_refused_before_anything_is_encrypted(monkeypatch, profile, clients, sign):
    steps = np.zeros(70_000, dtype=np.int64)
    steps[-1] = sign * (profile.reach_units // clients) * profile.unit
    check_reach(profile, steps, clients)
    steps[-1] += sign * (profile.unit // 2 + 1)
    monkeypatch.setattr(rlwe, "products", None)
    with pytest.raises(UpdateError, match=rf"'{profile.name}' supports sums within ±.*could reach") as caught:
        encrypt(profile, steps, clients, new_secret(), SEED)
    assert f"{clients} client{'s' if clients > 1 else ''} with" in str(caught.value)
    hint = "no profile fits" if profile is WIDE else "profile 'wide' would fit"
    assert hint in str(caught.value)


@BY_PROFILE
def test_the_extremes_of_int64_are_refused(profile):
    for extreme in (2**63 - 1, -(2**63)):
        with pytest.raises(UpdateError, match="could reach"):
            encrypt(profile, np.array([0, extreme]), 1, new_secret(), SEED)


@BY_PROFILE
def test_one_client_too_many_is_refused(profile):
    assert profile.max_clients == 249
    nothing = np.zeros(3, dtype=np.int32)
    with pytest.raises(UpdateError, match="up to 249 clients exactly, got 250; no profile fits"):
        encrypt(profile, nothing, 250, new_secret(), SEED)
    for clients in (0, 250):
        with pytest.raises(CryptoError, match=f"over 1 to 249 clients, got {clients}"):
            decrypt(profile, [Blob(bytes(19))], 3, new_secret(), SEED, clients)


def test_errors_are_bounded_by_ten_deviations_or_by_all_clients():
    assert [largest_error(n) for n in (1, 2, 9, 24, 249)] == [21, 42, 97, 158, 511]
    assert 21 * 24 < 512 <= 21 * 25
    assert largest_error(250) == 512


LENGTH = WIDE.chunk + 101
SECRETS = [new_secret() for _ in range(3)]
ROWS = [draw(WIDE, n, LENGTH, 3) for n in range(3)]
UPLOADS = [encrypt(WIDE, row, 3, secret, SEED) for row, secret in zip(ROWS, SECRETS, strict=True)]


def changed(blob, octets, at=0):
    data = bytearray(blob.view)
    data[at : at + len(octets)] = octets
    return Blob(data)


GOOD = UPLOADS[0]
BAD = {
    "no chunk": (),
    "missing chunk": GOOD[:1],
    "surplus chunk": (*GOOD, GOOD[1]),
    "reordered": GOOD[::-1],
    "repeated": (GOOD[0], GOOD[0]),
    "empty chunk": (GOOD[0], Blob(b"")),
    "first chunk cut": (Blob(bytes(GOOD[0].view)[:-1]), GOOD[1]),
    "last chunk cut": (GOOD[0], Blob(bytes(GOOD[1].view)[:-1])),
    "surplus bytes": (GOOD[0], Blob(bytes(GOOD[1].view) + b"\0")),
    "r1 not reduced, first chunk": (changed(GOOD[0], PRIMES[0].to_bytes(4, "little")), GOOD[1]),
    "r1 not reduced, last chunk": (GOOD[0], changed(GOOD[1], (2**25 - 1).to_bytes(4, "little"), 4 * 100)),
    "r2 not reduced": (GOOD[0], changed(changed(changed(GOOD[1], b"\xff" * 4), b"\xff" * 2, 404), b"\xff", 606)),
    "unused bits": (GOOD[0], changed(GOOD[1], b"\xff", packed_size(101) - 1)),
    "another length": encrypt(WIDE, ROWS[0][:-1], 3, SECRETS[0], SEED),
    "another profile": encrypt(DOUBLE, ROWS[0] % 1000, 3, SECRETS[0], SEED),
}


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused_and_leaves_the_sum_as_it_was(name, before):
    total, untouched = RlweSum(WIDE, LENGTH), RlweSum(WIDE, LENGTH)
    for upload in UPLOADS[1 : 1 + before]:
        total.add(upload)
        untouched.add(upload)
    for change in (total.add, total.subtract):
        with pytest.raises(CryptoError):
            change(BAD[name])
    if before == 0:
        with pytest.raises(CryptoError, match="no uploads"):
            total.close()
    total.add(GOOD)
    untouched.add(GOOD)
    assert raw(total.close()) == raw(untouched.close())


@pytest.mark.parametrize("name", BAD)
def test_a_bad_aggregate_is_refused(name):
    with pytest.raises(CryptoError):
        decrypt(WIDE, BAD[name], LENGTH, SECRETS[0], SEED, 1)


def test_refusals_say_what_was_expected():
    total = RlweSum(WIDE, LENGTH)
    with pytest.raises(CryptoError, match="131173 values need 2 chunks, got 1"):
        total.add(BAD["missing chunk"])
    with pytest.raises(CryptoError, match="chunk 1 of masked values must have 632 bytes, got 631"):
        total.add(BAD["last chunk cut"])
    with pytest.raises(CryptoError, match="a sum of no uploads has no chunks"):
        total.close()


def off_by_one():
    wrong = sum(SECRETS)
    wrong[777] += 1
    return wrong


WRONG = {
    "one client's alone": SECRETS[0],
    "one missing": SECRETS[0] + SECRETS[1],
    "one number off by one": off_by_one(),
    "reversed": sum(SECRETS)[::-1],
    "negated": -sum(SECRETS),
    "nothing": np.zeros(SECRET, dtype=np.int64),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sum_of_secrets_is_detected(name):
    total = RlweSum(WIDE, LENGTH)
    for upload in UPLOADS:
        total.add(upload)
    closed = total.close()
    np.testing.assert_array_equal(decrypt(WIDE, closed, LENGTH, sum(SECRETS), SEED, 3), sum(ROWS))
    with pytest.raises(CryptoError, match="the sum over 3 clients does not open: its errors go up to 51[0-2] where 56"):
        decrypt(WIDE, closed, LENGTH, WRONG[name], SEED, 3)
    with pytest.raises(CryptoError, match="does not open"):
        decrypt(WIDE, closed, LENGTH, sum(SECRETS), ENTROPY, 3)


def test_a_wrong_sum_of_very_many_secrets_is_detected_by_its_variance():
    """Over 249 clients a uniform error is nearly always within ten deviations."""
    for seed in range(20):
        upload = encrypt(WIDE, np.zeros(50, dtype=np.int32), 249, new_secret(), SEED)
        with pytest.raises(CryptoError, match="does not open"):
            decrypt(WIDE, upload, 50, np.full(SECRET, seed), SEED, 249)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(
    "wrong", [np.zeros(2047, dtype=np.int64), np.zeros((1, 2048), dtype=np.int64), np.zeros(0, dtype=np.int64)], ids=len
)
def test_a_secret_of_another_shape_is_refused(wrong, clients):
    with pytest.raises(CryptoError, match=f"has 2048 numbers within ±{21 * clients}, got {wrong.size} from 0 to 0"):
        decrypt(WIDE, GOOD, LENGTH, wrong, SEED, clients)


@pytest.mark.parametrize("peak", [22, -22, 2**31, -(2**63)])
def test_a_secret_out_of_range_is_refused(peak):
    wrong = new_secret()
    wrong[5] = peak
    with pytest.raises(CryptoError, match=r"within ±21, got 2048 from .*a share is wrong or missing"):
        encrypt(WIDE, ROWS[0], 3, wrong, SEED)
    with pytest.raises(CryptoError, match="within ±21, got 2048"):
        decrypt(WIDE, GOOD, LENGTH, wrong, SEED, 1)


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33)], ids=len)
def test_seeds_have_32_bytes(wrong):
    steps = np.zeros(1, dtype=np.int32)
    for call in (
        lambda: new_secret(wrong),
        lambda: encrypt(WIDE, steps, 1, SECRETS[0], wrong),
        lambda: encrypt(WIDE, steps, 1, SECRETS[0], SEED, wrong),
        lambda: decrypt(WIDE, [Blob(bytes(7))], 1, SECRETS[0], wrong, 1),
    ):
        with pytest.raises(CryptoError, match=f"a seed has 32 bytes, got {len(wrong)}"):
            call()


def test_warming_loads_every_loop():
    rlwe.warm()
