"""Secure aggregation by learning with errors (Stevens et al. 2022), modulo the prime q = 2^31 − 1.

Client i sends h_i = x_i + A·s_i + e_i mod q: x_i its rounded values, A public and expanded from a seed, s_i a
secret for one attempt of one round, e_i a Gaussian error. With Σs_i, rebuilt from Shamir shares, the server
computes Σh_i − A·Σs_i = Σx_i + Σe_i. The errors hide the values and, summed, are the noise that gives DP.

ring    blocks of 1024 values: a_b·s in Z_q[x]/(x^1024 + 1), a new public a_b for each block, one ternary s.
matrix  a new row of 710 public numbers for each value, s uniform mod q, as published.

Whoever opens the sum learns Σs_i and Σx_i + Σe_i over its h honest clients. The latter reduces the variance of each
client's error by the fraction 1/h; the former, in ring form, reveals some of the ternary coefficients. `bits` is the
security that remains, by h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import floor, isfinite, log2, sqrt
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.kdf import derive
from paraaegis.crypto.shamir import Q as Q
from paraaegis.crypto.shamir import centre
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.fixed_point import slices
from paraaegis.parallel import parallel_map

Integers: TypeAlias = NDArray[np.int64]

RING = 1024
MATRIX = 710
MIN_ERROR_STD = 1000.0
TAIL = 10.0  # standard deviations of headroom against overflow; one draw in 10^9 exceeds 6, and a sum has 10^7 draws
_BLOCKS = 32  # ring blocks multiplied at once; A depends on this and the next, so all parties must use the same
_ROWS = 128  # matrix rows in memory at once
_BASE = 128  # base of a secret's digits in an FFT: q·1024·64 < 2^48, and float64 is exact below 2^53
_TWIST = np.exp(1j * np.pi * np.arange(RING // 2) / RING)


class Ring:
    """Blocks of 1024 values, one ternary secret polynomial."""

    name = "ring"
    size = RING
    bound = 1  # the largest |coefficient| of one client's secret
    bits = MappingProxyType({2: 87, 3: 113, 4: 122, 5: 125, 6: 126, 7: 127, 10: 128})  # by h: core-SVP, error std 1000
    least_honest = 4

    def secret(self, rng: np.random.Generator) -> Integers:
        """Draw 1024 coefficients, uniform in {−1, 0, 1}; `rng` must be cryptographic."""
        return rng.integers(-1, 2, size=RING, dtype=np.int64)

    def mask(self, seed: bytes, secret: Integers, length: int) -> Integers:
        """Return A·s, `length` values in [0, q). Exact for any secret; fastest for coefficients below 64."""
        result = np.empty(length, dtype=np.int64)

        def fill(_: int, span: slice) -> None:
            part = result[span]
            public = expand(seed, self.name, span.start, -(-part.size // RING), RING)
            part[:] = multiply(public, secret).reshape(-1)[: part.size]

        parallel_map(fill, slices(length, _BLOCKS * RING))
        return result


class Matrix:
    """A row of 710 public numbers per value, a uniform secret vector."""

    name = "matrix"
    size = MATRIX
    bound = Q // 2
    bits = MappingProxyType({2: 127, 3: 130, 4: 131, 5: 132, 7: 133})  # as above
    least_honest = 2

    def secret(self, rng: np.random.Generator) -> Integers:
        """Draw 710 numbers, uniform in [0, q); `rng` must be cryptographic."""
        return rng.integers(0, Q, size=MATRIX, dtype=np.int64)

    def mask(self, seed: bytes, secret: Integers, length: int) -> Integers:
        """Return A·s, `length` values in [0, q). Digits of 11 bits keep float64 sums below 2^51, exact."""
        shifts = np.array([0, 11, 22])
        digits = (((secret % Q)[:, None] >> shifts) & 2047).astype(np.float64)
        result = np.empty(length, dtype=np.int64)

        def fill(_: int, span: slice) -> None:
            part = result[span]
            public = expand(seed, self.name, span.start, part.size, MATRIX).astype(np.float64)
            part[:] = (((public @ digits).astype(np.int64) % Q) << shifts).sum(axis=1) % Q

        parallel_map(fill, slices(length, _ROWS))
        return result


Form: TypeAlias = Ring | Matrix
FORMS: dict[str, Form] = {"ring": Ring(), "matrix": Matrix()}


def hardness(bits: Mapping[int, int], honest: int) -> int:
    """Bits of security that remain for each of `honest` clients once the sum of their secrets is known, by a table."""
    return bits[max(h for h in bits if h <= honest)] if honest >= min(bits) else 0


class LweMask:
    """The mask A·s and error e that hide one client's values for one attempt of one round; computed without them."""

    def __init__(self, secret: Integers, mask: Integers, noise: Integers) -> None:
        self.secret = secret
        self._parts: tuple[Integers, Integers] | None = (mask, noise)

    def take(self) -> tuple[Integers, Integers]:
        """Mask and error, once: the difference of two vectors under the same mask would be in the clear."""
        parts, self._parts = self._parts, None
        if parts is None:
            raise CryptoError("mask already used; masks are single-use")
        return parts


def new_mask(
    form: Form, seed: bytes, secrets: np.random.Generator, error_std: float, errors: np.random.Generator, length: int
) -> LweMask:
    """A mask for `length` values under a fresh secret. Both generators must be cryptographic."""
    secret, noise = form.secret(secrets), error(errors, error_std, length)
    return LweMask(secret, form.mask(seed, secret, length), noise)


def apply_mask(values: NDArray[np.floating], scale: float, lwe_mask: LweMask) -> tuple[NDArray[np.int32], Integers]:
    """Return h = x + A·s + e mod q, which a client sends, and x + e, its part of the sum; x = round(scale·values)."""
    masked, (mask, noised) = np.empty(values.size, dtype=np.int32), lwe_mask.take()

    def add(_: int, span: slice) -> None:
        scaled = np.multiply(values[span], scale, dtype=np.float64)
        np.rint(scaled, out=scaled)
        if not max(float(scaled.max()), -float(scaled.min())) <= Q // 2:
            raise UpdateError(
                f"scaled values must lie within ±{Q // 2} to be summed; use the scale from `lwe_parameters`"
            )
        noised[span] += scaled.astype(np.int64)
        masked[span] = (noised[span] + mask[span]) % Q

    parallel_map(add, slices(values.size))
    return masked, noised


def unmask(total: Integers, form: Form, seed: bytes, secret: Integers, clients: int) -> Integers:
    """Return Σx_i + Σe_i, centred, from total = Σh_i and the summed secret of the same `clients` clients."""
    limit = clients * form.bound
    if secret.shape != (form.size,) or np.abs(centre(secret)).max() > limit:
        raise CryptoError(
            f"the sum of {clients} secrets in {form.name} form should have {form.size} numbers within ±{limit}, "
            f"got {secret.size} numbers that do not fit; a share is wrong or missing"
        )
    values = form.mask(seed, secret, total.size)

    def subtract(_: int, span: slice) -> None:
        values[span] = centre(total[span] - values[span])

    parallel_map(subtract, slices(total.size))
    return values


def error(rng: np.random.Generator, std: float, size: int) -> Integers:
    """Draw one client's errors: a Gaussian rounded to integers. Rounding adds only a std of 0.29 to one of 1000."""
    if not (std >= MIN_ERROR_STD and isfinite(std)):
        raise CryptoError(
            f"an LWE error needs a std of at least {MIN_ERROR_STD:.0f} in integer units, got {std:.4g}; "
            "use more noise (lower epsilon)"
        )
    noise = rng.normal(0.0, std, size)
    return np.rint(noise, out=noise).astype(np.int64)


@dataclass(frozen=True)
class LweParameters:
    """The scale of x = round(scale·u), by which real values become integers; the other two are in integer units."""

    scale: float
    sensitivity: float
    error_std: float


def lwe_parameters(
    clip: float, sigma: float, length: int, clients: int, quorum: int, colluders: int = 1
) -> LweParameters:
    """Choose the scale, the largest power of two at which N `clients` cannot overflow, and the error's std.

    `sigma` is the std that the sum needs at sensitivity `clip` (θ), both in real units. Each error has std
    (σ/θ)·Δ/√(m − c), with Δ the accounted sensitivity: c of a quorum of m survivors know their own errors, and
    the errors of the others must still add up to σ. No overflow: N·(scale·θ + ½) + TAIL·√N·error_std < q/2.
    """
    if not (0 < clip < float("inf") and 0 < sigma < float("inf")):
        raise CryptoError(f"LWE needs a finite clip and noise above 0, got clip {clip} and sigma {sigma}")
    if not 1 <= colluders < quorum <= clients:
        raise CryptoError(
            f"LWE needs 1 ≤ colluders < quorum ≤ clients, got {colluders} colluders, quorum {quorum}, {clients} clients"
        )
    multiplier = sigma / clip / sqrt(quorum - colluders)  # of one client's error
    tails = TAIL * sqrt(clients) * multiplier
    room = Q / 2 - clients / 2 - tails * accounted_sensitivity(0.0, clip, length)
    given = f"{length} values, {clients} clients and noise of {sigma / clip:.4g} times the clip"
    if room <= 0:
        raise CryptoError(f"{given} overflow at any scale; use less noise (raise epsilon) or fewer clients")
    scale = 2.0 ** floor(log2(room / (clip * (clients + tails))))
    sensitivity = accounted_sensitivity(scale, clip, length)
    if multiplier * sensitivity < MIN_ERROR_STD:
        raise CryptoError(
            f"{given} give an error std of {multiplier * sensitivity:.4g} at the largest scale without "
            f"overflow, but LWE needs {MIN_ERROR_STD:.0f}; use more noise (lower epsilon) or fewer clients"
        )
    return LweParameters(scale, sensitivity, multiplier * sensitivity)


def accounted_sensitivity(scale: float, clip: float, length: int) -> float:
    """Return Δ = scale·θ + √d/2, the most one client can change the sum, in integer units, rounding included."""
    return scale * clip + sqrt(length) / 2


def public_seed(run: str, number: int, attempt: int) -> bytes:
    """Return the seed of A for one attempt of a round: anyone can compute it, nobody chose it."""
    return sha256(msgspec.msgpack.encode(["paraaegis lwe matrix", run, number, attempt])).digest()


def expand(seed: bytes, form: str, start: int, rows: int, columns: int) -> NDArray[np.int32]:
    """Expand the public numbers for the values from `start` on, uniform mod q and centred.

    The stream is standard AES-256-CTR, so every client gets the same A, whatever its numpy version.
    """
    return draw(keystream(derive(seed, "lwe", form, start)), rows * columns).reshape(rows, columns)


def draw(stream: Callable[[int], bytes], count: int) -> NDArray[np.int32]:
    """Draw numbers uniform in [−(q − 1)/2, (q − 1)/2], from 31 bits each; −2^30 is drawn again."""
    numbers = np.frombuffer(stream(4 * count), dtype="<i4") >> 1
    while (again := np.flatnonzero(numbers == -(2**30))).size:
        numbers[again] = np.frombuffer(stream(4 * again.size), dtype="<i4") >> 1
    return numbers


def multiply(blocks: NDArray[np.int32], secret: Integers) -> Integers:
    """Return blocks·secret in Z_q[x]/(x^1024 + 1), in [0, q), for centred blocks (count × 1024); exact."""
    digits = [centre(secret)]  # in base 128, from −64 to 63, lowest first; a ternary secret has one
    while (carry := (digits[-1] + _BASE // 2) // _BASE).any():
        digits[-1] = digits[-1] - carry * _BASE
        digits.append(carry)
    spectrum = _transform(blocks)
    result = np.zeros((), dtype=np.int64)
    for digit in reversed(digits):
        folded = np.fft.ifft(spectrum * _transform(digit)) * _TWIST.conj()
        product = np.rint(np.concatenate([folded.real, folded.imag], axis=-1)).astype(np.int64)
        result = (result * _BASE + product) % Q
    return result


def _transform(blocks: NDArray[np.signedinteger]) -> NDArray[np.complex128]:
    """Evaluate at the 512 roots of x^512 = i; the values at the other 512 are their conjugates."""
    low, high = np.split(blocks, 2, axis=-1)
    return np.fft.fft((low + 1j * high) * _TWIST)
