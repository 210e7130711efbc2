"""What the RLWE cipher refuses: values out of reach, bytes that are no masked values, secrets that open nothing."""

import numpy as np
import pytest

import rlwe_by_hand as hand
from paraaegis.crypto import rlwe
from paraaegis.crypto.residues import packed_size
from paraaegis.crypto.ring import PRIMES
from paraaegis.crypto.rlwe import PROFILES, SECRET, RlweSum, check_reach, decrypt, encrypt, new_mask, new_secret
from paraaegis.crypto.rlwe_profiles import largest_error
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.types import Blob

WIDE, DOUBLE = PROFILES["wide"], PROFILES["double"]
SEED, ENTROPY = bytes(range(32)), bytes(range(32, 64))
BY_PROFILE = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def raw(chunks):
    return b"".join(bytes(chunk.view) for chunk in chunks)


@BY_PROFILE
@pytest.mark.parametrize(("clients", "sign"), [(1, 1), (1, -1), (10, 1), (10, -1), (249, 1)])
def test_overflow_is_refused_before_anything_is_encrypted(monkeypatch, profile, clients, sign):
    steps = np.zeros(70_000, dtype=np.int64)
    steps[-1] = sign * (profile.reach_units // clients) * profile.unit
    check_reach(profile, steps, clients)
    steps[-1] += sign * (profile.unit // 2 + 1)
    monkeypatch.setattr(rlwe, "mask_chunk", None)
    with pytest.raises(UpdateError, match=rf"'{profile.name}' supports sums within ±.*could reach") as caught:
        encrypt(profile, steps, clients, new_mask(SEED))
    assert f"{clients} client{'s' if clients > 1 else ''} with" in str(caught.value)
    hint = "no profile fits" if profile is WIDE else "profile 'wide' would fit"
    assert hint in str(caught.value)


@BY_PROFILE
def test_the_extremes_of_int64_are_refused(profile):
    for extreme in (2**63 - 1, -(2**63)):
        with pytest.raises(UpdateError, match="could reach"):
            encrypt(profile, np.array([0, extreme]), 1, new_mask(SEED))


@BY_PROFILE
def test_one_client_too_many_is_refused(profile):
    assert profile.max_clients == 249
    nothing = np.zeros(3, dtype=np.int32)
    with pytest.raises(UpdateError, match="up to 249 clients exactly, got 250; no profile fits"):
        encrypt(profile, nothing, 250, new_mask(SEED))
    for clients in (0, 250):
        with pytest.raises(CryptoError, match=f"over 1 to 249 clients, got {clients}"):
            decrypt(profile, [Blob(bytes(19))], 3, new_secret(), SEED, clients)


def test_errors_are_bounded_by_ten_deviations_or_by_all_clients():
    assert [largest_error(n) for n in (1, 2, 9, 24, 249)] == [21, 42, 97, 158, 511]
    assert 21 * 24 < 512 <= 21 * 25
    assert largest_error(250) == 512


LENGTH = WIDE.chunk + 101
SECRETS = [new_secret() for _ in range(3)]
PEAK = WIDE.reach_units // 3
ROWS = [np.random.default_rng(n).integers(-PEAK, PEAK, LENGTH, endpoint=True) for n in range(3)]
UPLOADS = [encrypt(WIDE, row, 3, new_mask(SEED, secret)) for row, secret in zip(ROWS, SECRETS, strict=True)]


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
    "another length": encrypt(WIDE, ROWS[0][:-1], 3, new_mask(SEED, SECRETS[0])),
    "another profile": encrypt(DOUBLE, ROWS[0] % 1000, 3, new_mask(SEED, SECRETS[0])),
}


@pytest.mark.parametrize("change", ["add", "subtract"])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused_and_leaves_the_sum_as_it_was(name, before, change):
    total, untouched = RlweSum(WIDE, LENGTH), RlweSum(WIDE, LENGTH)
    for upload in UPLOADS[1 : 1 + before]:
        total.add(upload)
        untouched.add(upload)
    with pytest.raises(CryptoError):
        getattr(total, change)(BAD[name])
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
    with pytest.raises(
        CryptoError,
        match=r"the sum over 3 clients does not open: its errors go up to 51[0-2] .* within 56 and near 31\.5",
    ):
        decrypt(WIDE, closed, LENGTH, WRONG[name], SEED, 3)
    with pytest.raises(CryptoError, match="does not open"):
        decrypt(WIDE, closed, LENGTH, sum(SECRETS), ENTROPY, 3)


def test_errors_that_two_clients_share_are_detected():
    """Their sum is twice as large, which its variance shows."""
    total, steps = RlweSum(WIDE, 5000), np.zeros(5000, dtype=np.int32)
    for _ in range(2):
        total.add(encrypt(WIDE, steps, 2, new_mask(SEED, SECRETS[0], ENTROPY)))
    with pytest.raises(CryptoError, match=r"a mean square of 4.*near 21; "):
        decrypt(WIDE, total.close(), 5000, 2 * SECRETS[0], SEED, 2)


@pytest.mark.parametrize(("extra", "refused"), [(0, False), (43, True), (-43, True)])
def test_one_error_that_is_too_large_is_detected(extra, refused):
    """Among so many values the variance does not show it."""
    (chunk,) = encrypt(WIDE, np.zeros(5000, dtype=np.int32), 1, new_mask(SEED, SECRETS[0]))
    coefficients = hand.unpacked(bytes(chunk.view), 5000)
    coefficients[4000] = (coefficients[4000] + extra) % hand.Q
    spoilt = [Blob(hand.packed(coefficients))]
    if refused:
        with pytest.raises(CryptoError, match=r"errors go up to \d\d with .*within 21 and near 10\.5"):
            decrypt(WIDE, spoilt, 5000, SECRETS[0], SEED, 1)
    else:
        assert not decrypt(WIDE, spoilt, 5000, SECRETS[0], SEED, 1).any()


def test_a_wrong_sum_of_very_many_secrets_is_detected_by_its_variance():
    """Over 249 clients a uniform error is nearly always within ten deviations."""
    for seed in range(20):
        upload = encrypt(WIDE, np.zeros(50, dtype=np.int32), 249, new_mask(SEED))
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
        encrypt(WIDE, ROWS[0], 3, new_mask(SEED, wrong))
    with pytest.raises(CryptoError, match="within ±21, got 2048"):
        decrypt(WIDE, GOOD, LENGTH, wrong, SEED, 1)


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33)], ids=len)
def test_seeds_have_32_bytes(wrong):
    steps = np.zeros(1, dtype=np.int32)
    for call in (
        lambda: new_secret(wrong),
        lambda: encrypt(WIDE, steps, 1, new_mask(wrong, SECRETS[0])),
        lambda: encrypt(WIDE, steps, 1, new_mask(SEED, SECRETS[0], wrong)),
        lambda: decrypt(WIDE, [Blob(bytes(7))], 1, SECRETS[0], wrong, 1),
    ):
        with pytest.raises(CryptoError, match=f"a seed has 32 bytes, got {len(wrong)}"):
            call()


def test_warming_loads_every_loop():
    rlwe.warm()
