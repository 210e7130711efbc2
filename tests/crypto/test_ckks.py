"""CKKS sums come back as the exact integers that went in; everything else is refused."""

import hashlib
import hmac
import math
import struct
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from tenseal import sealapi

from paraaegis.crypto.ckks import PROFILES, CipherSum, Profile, Secret, check_reach, new_key, profile, secret_key
from paraaegis.errors import ConfigError, CryptoError, UpdateError
from paraaegis.fixed_point import STEP
from paraaegis.types import Blob

PRECISE = PROFILES["precise"]
KEY = new_key(PRECISE)
SECRET = Secret(PRECISE, KEY)
STRANGER = Secret(PRECISE, new_key(PRECISE))
LENGTHS = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537]
HEADER = 36
PATTERNS = {
    "high": np.ones(4096, dtype=np.int64),
    "low": -np.ones(4096, dtype=np.int64),
    "alternating": np.tile([1, -1], 2048),
    "signs": np.random.default_rng(0).choice([-1, 1], 4096),
    "aligned": np.tile([1, 1, -1, 1], 1024),  # all of it meets in one coefficient, √2 larger than the values
    "one": np.eye(1, 4096, 77, dtype=np.int64)[0],
}


def draw(seed, length, peak=10**8):
    return np.random.default_rng(seed).integers(-peak, peak, length, endpoint=True)


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
    with pytest.raises(UpdateError, match="up to 126 clients exactly, got 127"):
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


LENGTH = PRECISE.chunk + 100  # two chunks
STEPS = draw(0, LENGTH)
GOOD = SECRET.encrypt(STEPS, 3)
OTHER = SECRET.encrypt(draw(1, LENGTH), 3)
BAD = {
    "another key": STRANGER.encrypt(STEPS, 3),
    "another key's last chunk": (GOOD[0], STRANGER.encrypt(STEPS, 3)[1]),
    "last chunk cut": (GOOD[0], Blob(bytes(GOOD[1].view)[:-1])),
    "first chunk cut": (Blob(bytes(GOOD[0].view)[: len(GOOD[0]) // 2]), GOOD[1]),
    "header cut": (GOOD[0], Blob(bytes(GOOD[1].view)[: HEADER - 1])),
    "sizes cut": (GOOD[0], Blob(bytes(GOOD[1].view)[:HEADER])),
    "empty chunk": (GOOD[0], Blob(b"")),
    "surplus bytes": (GOOD[0], Blob(bytes(GOOD[1].view) + b"\0")),
    "missing chunk": GOOD[:1],
    "surplus chunk": (*GOOD, GOOD[1]),
    "no chunk": (),
    "reordered": GOOD[::-1],
    "repeated": (GOOD[0], GOOD[0]),
    "another length": SECRET.encrypt(STEPS[:-1], 3),
    "foreign bytes": (GOOD[0], Blob(b"\x17" * len(GOOD[1]))),
    "another profile": (GOOD[0], Blob(bytes(GOOD[1].view).replace(b"precise\0", b"another\0", 1))),
    "grid steps": (GOOD[0], Blob(STEPS[:100].data)),
    "noise for a ciphertext": (GOOD[0], Blob(bytes(GOOD[1].view)[: HEADER + 4] + bytes(len(GOOD[1]) - HEADER - 4))),
}


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused_and_leaves_the_sum_as_it_was(name, before):
    total = CipherSum(PRECISE, LENGTH)
    for upload in (GOOD, OTHER)[:before]:
        total.add(upload)
    if name == "another key" and before == 0:
        total.add(BAD[name])  # the keyless server cannot know whose key is right until a second one comes
        with pytest.raises(CryptoError, match="another CKKS key"):
            total.add(GOOD)
        return
    with pytest.raises(CryptoError):
        total.add(BAD[name])
    total.add(GOOD)
    expected = STEPS + sum([STEPS, draw(1, LENGTH)][:before])
    np.testing.assert_array_equal(SECRET.decrypt(total.close(), LENGTH), expected)


@pytest.mark.parametrize("name", [name for name in BAD if name not in ("another key", "grid steps")])
def test_a_bad_aggregate_is_refused(name):
    with pytest.raises(CryptoError):
        SECRET.decrypt(BAD[name], LENGTH)


def test_every_bit_of_a_header_counts():
    (chunk,) = SECRET.encrypt(STEPS[:5000], 1)
    for at in range(HEADER + 8):
        for bit in (0, 5):
            with pytest.raises(CryptoError):
                SECRET.decrypt([flipped(chunk, at, bit)], 5000)


def test_a_flipped_bit_anywhere_in_an_upload_is_refused():
    """Else a byte spoilt on the way becomes a garbage model at every client, without a word."""
    (chunk,) = SECRET.encrypt(STEPS[:4096], 1)
    places = np.random.default_rng(0).integers(HEADER + 4, len(chunk), 60)
    accepted = []
    for at in places:
        total = CipherSum(PRECISE, 4096)
        try:
            total.add([flipped(chunk, at, int(at) % 8)])
        except CryptoError:
            continue
        accepted.append(int(at))
    assert accepted == []


def test_what_was_added_can_be_subtracted():
    total = CipherSum(PRECISE, LENGTH)
    for upload in (GOOD, OTHER):
        total.add(upload)
    total.subtract(OTHER)
    np.testing.assert_array_equal(SECRET.decrypt(total.close(), LENGTH), STEPS)


# Keys that follow from a seed

SEEDS = [bytes(32), bytes(range(32)), b"\xff" * 32]
BEFORE = 16 + 4 * 8 + 8 + 8 + 16 + 8  # bytes of a key: two headers, the parameters' name, sizes and scale
BY_NAME = pytest.mark.parametrize("made", PROFILES.values(), ids=PROFILES)


def drawn(seed, count):
    """By a second implementation: bytes of AES-CTR under an HKDF of the seed, without 255, modulo 3, less 1."""
    info = b"\x91\xa7ternary"  # as msgpack packs a list of this one word
    key = hmac.digest(hmac.digest(bytes(32), seed, hashlib.sha256), info + b"\x01", hashlib.sha256)
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return [byte % 3 - 1 for byte in cipher.update(bytes(2 * count)) if byte != 255][:count]


@cache
def context_of(made):
    parms = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    parms.set_poly_modulus_degree(made.degree)
    parms.set_coeff_modulus(sealapi.CoeffModulus.Create(made.degree, [made.bits]))
    return sealapi.SEALContext(parms, True, sealapi.SEC_LEVEL_TYPE.TC128)


def as_seal_reads(made, key, path):
    """The coefficients of a key: SEAL's decoder gives its values at complex roots of unity, an inverse FFT the rest."""
    path.write_bytes(key)
    plain = sealapi.Plaintext()  # a key lies in a file as a plaintext does
    plain.load(context_of(made), str(path))
    slots = sealapi.CKKSEncoder(context_of(made)).decode_complex(plain)
    degree, power = made.degree, 1
    values = np.zeros(degree, dtype=np.complex128)  # [k]: at exp(πi(2k + 1)/degree); slots come at powers of 3
    for slot in slots:
        values[power // 2], values[degree - 1 - power // 2] = slot, slot.conjugate()
        power = 3 * power % (2 * degree)
    found = np.fft.fft(values) / degree * np.exp(-1j * np.pi * np.arange(degree) / degree)
    assert np.abs(found - np.rint(found.real)).max() < 1e-9
    return np.rint(found.real).astype(int).tolist()


@BY_NAME
@pytest.mark.parametrize("seed", SEEDS, ids=["zeros", "counting", "ones"])
def test_seal_reads_the_coefficients_that_the_seed_gives(made, seed, tmp_path):
    assert as_seal_reads(made, secret_key(made, seed), tmp_path / "key") == drawn(seed, made.degree)


@BY_NAME
def test_a_keys_coefficients_are_ternary_and_balanced(made, tmp_path):
    """Of 8 keys, each kind within five standard errors of a third; and neighbours as independent as that."""
    found = [as_seal_reads(made, secret_key(made, bytes([n]) * 32), tmp_path / "key") for n in range(8)]
    kinds = np.concatenate(found) + 1
    error = math.sqrt(kinds.size * (1 / 3) * (2 / 3))
    assert set(kinds) == {0, 1, 2}
    assert np.abs(np.bincount(kinds) - kinds.size / 3).max() < 5 * error
    pairs = np.bincount(3 * kinds[:-1] + kinds[1:], minlength=9)
    assert np.abs(pairs - kinds.size / 9).max() < 5 * math.sqrt(kinds.size / 9)


@BY_NAME
def test_a_key_holds_its_polynomials_values_at_odd_powers_of_the_smallest_root(made):
    """By integers of any size, at some of the places."""
    seed, degree = SEEDS[1], made.degree
    modulus = int(context_of(made).key_context_data().parms().coeff_modulus()[0].value())
    found = next(power for base in range(2, 100) if pow(power := pow(base, (modulus - 1) // degree // 2, modulus),
                 degree, modulus) == modulus - 1)  # fmt: skip
    root = min(pow(found, odd, modulus) for odd in range(1, 2 * degree, 2))
    values = np.frombuffer(secret_key(made, seed)[BEFORE:], "<u8")
    assert values.size == degree
    bits = degree.bit_length() - 1
    for place in (0, 1, 2, 3, degree // 2 - 1, degree // 2, degree - 2, degree - 1, 1234):
        point, value = pow(root, 2 * int(f"{place:0{bits}b}"[::-1], 2) + 1, modulus), 0
        for coefficient in reversed(drawn(seed, degree)):
            value = (value * point + coefficient) % modulus
        assert int(values[place]) == value


@BY_NAME
def test_a_seed_gives_one_key_and_another_seed_another(made):
    keys = {secret_key(made, seed) for seed in SEEDS}
    assert len(keys) == len(SEEDS)
    assert keys == {secret_key(made, seed) for seed in SEEDS}
    near = secret_key(made, bytes(31) + b"\x01"), secret_key(made, bytes(32))
    same = np.mean(np.frombuffer(near[0][BEFORE:], "<u8") == np.frombuffer(near[1][BEFORE:], "<u8"))
    assert same < 0.01  # one bit of the seed changes every value of the transform


def test_keys_of_two_profiles_share_no_bytes_but_zeros():
    keys = [secret_key(made, SEEDS[0])[BEFORE:] for made in PROFILES.values()]
    assert len({*np.frombuffer(keys[0], "<u8")} & {*np.frombuffer(keys[1], "<u8")}) < 3


@BY_NAME
def test_keys_are_pinned(made):
    """Silos with other library versions must derive these too, else their ciphertexts cannot be added."""
    expected = {"precise": "7b7919cef6098317", "compact": "e6da601867cef23d"}
    assert hashlib.sha256(secret_key(made, SEEDS[1])[BEFORE:]).hexdigest()[:16] == expected[made.name]


def test_another_process_derives_the_same_key():
    code = (
        "import sys; from paraaegis.crypto.ckks import PROFILES, secret_key; "
        "sys.stdout.buffer.write(secret_key(PROFILES['compact'], bytes(range(32))))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert found == secret_key(PROFILES["compact"], SEEDS[1])


@BY_NAME
def test_seal_takes_a_derived_key_and_saves_it_as_it_came(made, tmp_path):
    key, saved = secret_key(made, SEEDS[1]), tmp_path / "saved"
    (tmp_path / "came").write_bytes(key)
    loaded = sealapi.SecretKey()
    loaded.load(context_of(made), str(tmp_path / "came"))
    loaded.save(str(saved))
    assert as_seal_reads(made, saved.read_bytes(), saved) == drawn(SEEDS[1], made.degree)


@BY_NAME
def test_sums_under_a_derived_key_are_exact_and_another_seed_opens_nothing(made):
    mine, peer = (Secret(made, secret_key(made, SEEDS[1])) for _ in range(2))
    peak = math.floor(made.reach / 3 / STEP)
    rows = [draw(seed, made.degree + 5, peak) // made.unit * made.unit for seed in range(3)]
    total = CipherSum(made, made.degree + 5)
    for index, row in enumerate(rows):
        total.add((mine, peer)[index % 2].encrypt(row, 3))
    closed = total.close()
    for secret in (mine, peer):
        np.testing.assert_array_equal(secret.decrypt(closed, made.degree + 5), sum(rows))
    with pytest.raises(CryptoError, match="another CKKS key"):
        Secret(made, secret_key(made, SEEDS[0])).decrypt(closed, made.degree + 5)


@BY_NAME
def test_what_is_opened_with_another_seeds_key_is_noise(made):
    """Not only refused by name: the numbers are of no use."""
    mine, other = (Secret(made, secret_key(made, seed)) for seed in SEEDS[:2])
    steps = draw(0, made.degree, 1000) * made.unit
    upload = mine.encrypt(steps, 1)
    other._chunks.id = mine.id
    wrong = other.decrypt(upload, made.degree)
    assert np.mean(wrong == steps) < 0.01
    assert abs(np.corrcoef(wrong, steps)[0, 1]) < 5 / math.sqrt(made.degree)


def test_a_key_of_another_profile_is_refused():
    with pytest.raises(CryptoError, match="not a ciphertext or key"):
        Secret(PRECISE, secret_key(PROFILES["compact"], SEEDS[0]))
