"""CKKS keys follow from a seed, and are what SEAL takes them for."""

import hashlib
import hmac
import math
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from tenseal import sealapi

from ckks_secrets import PRECISE, draw
from paraaegis.crypto.ckks import PROFILES, CipherSum, Secret, secret_key
from paraaegis.errors import CryptoError
from paraaegis.fixed_point import STEP

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
