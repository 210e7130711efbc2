from __future__ import annotations

import io
import subprocess
import sys
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rlwe_by_hand as by_hand
from paraaegis.crypto import lwe, shamir
from paraaegis.crypto.lwe import FORMS, MATRIX, RING
from paraaegis.crypto.rlwe import RlweSum
from paraaegis.errors import CryptoError, UpdateError

SEED = bytes(range(32))
BOTH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
Integers = NDArray[np.int64]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def carried(form: lwe.Form, uploads: list[NDArray[np.int32]]) -> Integers:
    """The sum of masked values as the server gets it, through the wire format."""
    if form is MATRIX:
        return np.sum(uploads, axis=0, dtype=np.int64)
    total = RlweSum(lwe.SHAPE, uploads[0].size)
    for masked in uploads:
        total.add(RING.pack(masked))
    return RING.unpack(total.close(), uploads[0].size)


def upload(form: lwe.Form, values: Integers) -> tuple[list[Integers], Integers, Integers]:
    """The secrets s_i, Σh_i, and Σx_i + Σe_i with the errors drawn again."""
    secrets, errors, again = rng(11), rng(12), rng(12)
    covers = [lwe.new_mask(form, SEED, secrets, 1500.0, errors, x.size) for x in values]
    masked = [lwe.apply_mask(x, 1.0, cover)[0] for x, cover in zip(values, covers, strict=True)]
    drawn = np.sum([lwe.error(form, again, 1500.0, x.size) for x in values], axis=0)
    return [cover.secret for cover in covers], carried(form, masked), values.sum(axis=0) + drawn


@BOTH
@pytest.mark.parametrize("length", [1, 2, 2047, 2048, 4097])
def test_the_sum_of_clients_is_the_plain_sum_plus_their_errors(form: lwe.Form, length: int) -> None:
    values = rng().integers(-(10**6), 10**6, size=(5, length))
    secrets, total, expected = upload(form, values)
    np.testing.assert_array_equal(lwe.unmask(total, form, SEED, np.sum(secrets, axis=0), 5), expected)
    assert (expected != values.sum(axis=0)).any()


@BOTH
def test_the_sum_comes_back_from_summed_shares_with_clients_gone_after_the_upload(form: lwe.Form) -> None:
    draws = rng(1)
    values = draws.integers(-1000, 1000, size=(6, 300))
    secrets, total, expected = upload(form, values)
    shared = [shamir.share(secret, 6, 4, draws, form.field) for secret in secrets]
    held = [shamir.add(of_one) for of_one in zip(*shared, strict=True)]
    summed = shamir.rebuild({holder: held[holder] for holder in (0, 2, 3, 5)}, 4)
    np.testing.assert_array_equal(lwe.unmask(total, form, SEED, summed, clients=6), expected)


@BOTH
def test_what_is_sent_differs_from_what_the_sum_will_hold_by_the_mask(form: lwe.Form) -> None:
    values = rng().integers(-1000, 1000, size=300)
    cover = lwe.new_mask(form, SEED, rng(1), 1500.0, rng(2), 300)
    masked, noised = lwe.apply_mask(values, 1.0, cover)
    np.testing.assert_array_equal(noised, values + lwe.error(form, rng(2), 1500.0, 300))
    np.testing.assert_array_equal((masked - noised) % form.moduli(300), form.mask(SEED, cover.secret, 300))


@BOTH
def test_a_client_knows_what_the_sum_will_hold_of_its_upload(form: lwe.Form) -> None:
    values = rng(5).normal(size=3000)
    cover = lwe.new_mask(form, SEED, rng(1), 1500.0, rng(2), values.size)
    masked, noised = lwe.apply_mask(values, 64.0, cover)
    np.testing.assert_array_equal(noised, np.rint(64 * values).astype(np.int64) + lwe.error(form, rng(2), 1500.0, 3000))
    np.testing.assert_array_equal(lwe.unmask(masked.astype(np.int64), form, SEED, cover.secret, 1), noised)


@BOTH
def test_more_honest_clients_in_a_sum_leave_more_bits_and_too_few_leave_none(form: lwe.Form) -> None:
    bits = [lwe.hardness(form.bits, honest) for honest in range(100)]
    assert bits == sorted(bits)
    assert bits[:3] == [0, 0, form.bits[2]]
    assert bits[99] == max(form.bits.values())
    assert form.bits[2] >= 120


@pytest.mark.parametrize("length", [9, 4096, 4103])
def test_the_ring_form_is_the_schoolbook_product_modulo_both_primes(length: int) -> None:
    secret = np.sum([RING.secret(rng(seed)) for seed in range(3)], axis=0)
    mask, half = RING.mask(SEED, secret, length), -(-length // 2)
    polynomials = -(-half // by_hand.N)
    public = by_hand.public_polynomials(SEED, 0, polynomials)
    for place in {0, 1, half - 1, half, length - 1}:
        lane, i = divmod(place, half)
        number = by_hand.coefficient(public[i % polynomials], secret.tolist(), i // polynomials)
        assert mask[place] == number % by_hand.P[lane]


def test_a_second_chunk_has_other_public_polynomials() -> None:
    secret, chunk = RING.secret(rng(5)), lwe.SHAPE.chunk
    mask = RING.mask(SEED, secret, 2 * chunk)
    assert np.mean(mask[:chunk] == mask[chunk:]) < 0.001


def test_the_ring_form_takes_little_more_than_three_bytes_per_value() -> None:
    masked, _ = lwe.apply_mask(np.zeros(4096), 1.0, lwe.new_mask(RING, SEED, rng(), 1500.0, rng(1), 4096))
    chunks = RING.pack(masked)
    assert sum(map(len, chunks)) == 3.125 * 4096
    np.testing.assert_array_equal(RING.unpack(chunks, 4096), masked)


def test_the_matrix_product_is_exact() -> None:
    secret, rows, q = MATRIX.secret(rng(4)), lwe._ROWS, MATRIX.field.prime
    secret[:3] = [0, q - 1, q // 2]
    parts = [lwe.expand(SEED, start, count) for start, count in ((0, rows), (rows, 3))]
    expected = np.concatenate(parts).astype(object) @ secret.astype(object) % q
    np.testing.assert_array_equal(MATRIX.mask(SEED, secret, rows + 3), expected.astype(np.int64))


@BOTH
def test_a_seed_expands_to_one_mask_and_another_seed_or_secret_to_another(form: lwe.Form) -> None:
    secret, other = form.secret(rng(7)), form.secret(rng(8))
    mask = form.mask(SEED, secret, 70_000 if form is RING else 1500)
    assert mask.min() >= 0
    assert (mask < form.moduli(mask.size)).all()
    np.testing.assert_array_equal(mask, form.mask(SEED, secret, mask.size))
    assert np.mean(mask == form.mask(bytes(32), secret, mask.size)) < 0.01
    assert np.mean(mask == form.mask(SEED, other, mask.size)) < 0.01
    blocks = mask[: mask.size // 500 * 500].reshape(-1, 500)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


def test_the_expansion_is_the_one_that_every_release_must_make() -> None:
    assert lwe.expand(SEED, 0, 1)[0, :4].tolist() == [991813254, -85246383, -440474784, 792096555]


def test_two_secrets_of_one_generator_differ_and_have_their_form() -> None:
    draws = rng(9)
    small = [RING.secret(draws) for _ in range(2)]
    large = [MATRIX.secret(draws) for _ in range(2)]
    assert (small[0].size, large[0].size) == (2048, 710)
    assert np.abs(small).max() <= 21
    assert np.var(small) == pytest.approx(10.5, rel=0.1)
    assert np.mean(small[0] == small[1]) < 0.2
    assert not np.any(large[0] == large[1])


def test_the_public_numbers_are_uniform_and_the_surplus_value_is_drawn_again() -> None:
    words = np.array([-(2**31), 2**31 - 1, -(2**31) + 1, 6, -(2**31) + 2, -3], dtype="<i4").tobytes()
    assert lwe.draw(io.BytesIO(words).read, 3).tolist() == [3, 2**30 - 1, -(2**30) + 1]
    q, numbers = MATRIX.field.prime, lwe.expand(SEED, 0, 128)
    assert abs(numbers.mean()) < 5 * q / sqrt(12 * numbers.size)
    assert numbers.std() == pytest.approx(q / sqrt(12), rel=0.01)


def test_errors_have_the_std_that_was_asked_for() -> None:
    noise = lwe.error(RING, rng(10), 2500.0, 200_000)
    assert noise.std() == pytest.approx(2500, rel=0.01)
    assert abs(noise.mean()) < 5 * 2500 / sqrt(noise.size)


@BOTH
@pytest.mark.parametrize("std", [0.0, 3.2, float("nan"), float("inf"), None])
def test_an_error_too_small_for_lwe_is_refused(form: lwe.Form, std: float | None) -> None:
    std = np.nextafter(form.least_error, 0) if std is None else std
    with pytest.raises(CryptoError, match=f"at least {form.least_error:.0f} in integer units"):
        lwe.new_mask(form, SEED, rng(), std, rng(), 4)


@BOTH
def test_values_beyond_half_the_modulus_are_refused(form: lwe.Form) -> None:
    for value in (form.limit + 1, -form.limit - 1):
        with pytest.raises(UpdateError, match="within"):
            lwe.apply_mask(np.array([value]), 1.0, lwe.new_mask(form, SEED, rng(), 1000.0, rng(), 1))


def test_a_summed_secret_that_the_clients_cannot_have_is_refused() -> None:
    for secret in (np.full(2048, 64), np.full(2048, -64), np.arange(0), np.zeros(5, dtype=np.int64)):
        with pytest.raises(CryptoError, match="wrong or missing"):
            lwe.unmask(np.zeros(8, dtype=np.int64), RING, SEED, secret, clients=3)


@BOTH
@pytest.mark.parametrize("sigma", [0.01, 0.0717, 26.38])
@pytest.mark.parametrize(("clients", "quorum", "colluders"), [(2, 2, 1), (10, 8, 1), (50, 40, 10)])
def test_a_plan_leaves_no_overflow_at_its_scale_and_would_at_the_next(
    form: lwe.Form, sigma: float, clients: int, quorum: int, colluders: int
) -> None:
    clip, length = 1.5, 11_191_242

    def largest(scale: float) -> float:
        delta = scale * clip + sqrt(length) / 2
        std = sigma / clip * delta / sqrt(quorum - colluders)
        return clients * (scale * clip + 0.5) + lwe.TAIL * std * sqrt(clients)

    parameters = lwe.lwe_parameters(form, clip, sigma, length, clients, quorum, colluders)
    assert largest(parameters.scale) < form.limit <= largest(2 * parameters.scale)
    assert parameters.scale == 2.0 ** round(np.log2(parameters.scale))


def test_the_errors_of_the_honest_survivors_keep_the_noise_multiplier_with_rounding_counted() -> None:
    parameters = lwe.lwe_parameters(RING, clip=2.0, sigma=3.0, length=10_000, clients=10, quorum=8, colluders=2)
    assert (
        parameters.sensitivity
        == parameters.scale * 2.0 + 50
        == lwe.accounted_sensitivity(parameters.scale, 2.0, 10_000)
    )
    assert sqrt(8 - 2) * parameters.error_std / parameters.sensitivity == pytest.approx(3.0 / 2.0)


def test_rounding_moves_a_clipped_update_by_no_more_than_the_accounted_sensitivity() -> None:
    update = rng(11).normal(size=5000)
    update /= np.linalg.norm(update)
    assert np.linalg.norm(np.rint(64 * update)) <= lwe.accounted_sensitivity(64, 1.0, 5000)


REFUSED = [
    ({"sigma": 1e-6}, "use more noise"),
    ({"sigma": 1e7}, r"overflow at any scale; use less noise \(raise epsilon\) or protect.lwe = 'matrix'"),
    ({"sigma": 0.0}, "above 0"),
    ({"clip": float("nan")}, "finite"),
    ({"colluders": 0}, "1 ≤ colluders"),
    ({"colluders": 8}, "colluders < quorum"),
    ({"quorum": 11}, "quorum ≤ clients"),
    ({"clients": 1561, "quorum": 1000}, "sums at most 1560 clients, got 1561"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_a_plan_that_cannot_be_kept_is_refused_with_what_to_change(changed: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"clip": 1, "sigma": 1, "length": 10**7, "clients": 10, "quorum": 8, "colluders": 1}
    assert lwe.lwe_parameters(RING, **asked).error_std > RING.least_error
    with pytest.raises(CryptoError, match=message):
        lwe.lwe_parameters(RING, **{**asked, **changed})


def test_importing_loads_neither_torch_nor_tenseal() -> None:
    names = "paraaegis.crypto.lwe, paraaegis.crypto.shamir, paraaegis.crypto.sealed_box"
    check = f"import sys, {names}; sys.exit(bool({{'torch', 'tenseal'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@BOTH
def test_a_mask_is_used_once(form: lwe.Form) -> None:
    cover = lwe.new_mask(form, SEED, rng(), 1500.0, rng(1), 100)
    lwe.apply_mask(np.zeros(100), 1.0, cover)
    with pytest.raises(CryptoError, match="masks are single-use"):
        lwe.apply_mask(np.ones(100), 1.0, cover)
