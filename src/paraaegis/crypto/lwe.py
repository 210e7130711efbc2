"""Secure aggregation by learning with errors (Stevens et al. 2022).

Client i sends h_i = x_i + A·s_i + e_i: x_i its rounded values, A public and expanded from a seed, s_i a secret for one
attempt of one round, e_i a Gaussian error. With Σs_i, rebuilt from Shamir shares, the server computes
Σh_i − A·Σs_i = Σx_i + Σe_i. The errors hide the values and, summed, are the noise that gives DP.

ring    products of public polynomials with one small secret in Z_p[x]/(x^2048 + 1), on the kernel of rlwe.py. Of each
        chunk, the first half is taken modulo p1 and the rest modulo p2, both just below 2^25: 3.13 bytes per value.
matrix  modulo q = 2^31 − 1, a new row of 710 public numbers for each value, s uniform mod q, as published.

Whoever opens the sum learns Σs_i and Σx_i + Σe_i over its h honest clients. The latter reduces the variance of each
client's error by the fraction 1/h and the former, in ring form, that of its secret. `bits` is the security that
remains, by h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import floor, isfinite, log2, sqrt
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto import rlwe
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.masks import Mask
from paraaegis.crypto.residues import BOUND, binomials, pack, packed_size, padded
from paraaegis.crypto.ring import DEGREE, PRIMES, transform
from paraaegis.crypto.rlwe_chunks import products, unpacked
from paraaegis.crypto.shamir import NARROW, WIDE, centre
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.fixed_point import pack_fixed_point, slices
from paraaegis.parallel import parallel_map
from paraaegis.types import Blob

Integers: TypeAlias = NDArray[np.int64]

COLUMNS = 710  # of the matrix
TAIL = 10.0  # standard deviations of headroom against overflow; one draw in 10^9 exceeds 6, and a sum has 10^7 draws
SHAPE = rlwe.PROFILES["double"]  # how the ring form's values fill chunks: two per pair of residues
_ROWS = 128  # matrix rows in memory at once; A depends on it, so all parties must use the same


class Ring:
    """Products of public polynomials with one secret of small numbers, modulo two primes just below 2^25."""

    name = "ring"
    size = DEGREE
    bound = BOUND  # the largest |number| of one client's secret
    field = NARROW
    max_clients = NARROW.prime // 2 // BOUND  # whose summed secrets are known from their residues
    limit = min(PRIMES) // 2  # the largest |value| of a sum
    least_error = 16.0
    bits = MappingProxyType({2: 128})  # by h; core-SVP is 325 for the least error, but generators have keys of 128 bits

    def secret(self, rng: np.random.Generator) -> Integers:
        """Draw 2048 numbers, centred binomials of 21 + 21 bits; `rng` must be cryptographic."""
        return binomials(rng.bytes, DEGREE)

    def moduli(self, size: int) -> Integers:
        """The modulus of each value of a chunk of this size."""
        return np.repeat(np.array(PRIMES), (_half(size), size - _half(size)))

    def mask(self, seed: bytes, secret: Integers, length: int) -> Integers:
        """Return A·s: `length` values, each reduced by its modulus. Exact for any secret."""
        transformed = transform(secret)
        result = np.empty(length, dtype=np.int64)

        def fill(index: int, span: slice) -> None:
            part, first = result[span], _half(span.stop - span.start)
            numbers = products(seed, index, first, transformed)
            part[:first], part[first:] = numbers[0, :first], numbers[1, : part.size - first]
            part %= self.moduli(part.size)

        parallel_map(fill, slices(length, SHAPE.chunk))
        return result

    def pack(self, masked: NDArray[np.int32]) -> tuple[Blob, ...]:
        """Masked values in the kernel's wire format: each pair of residues in fifty bits."""

        def work(_: int, span: slice) -> Blob:
            part, count = masked[span], _half(span.stop - span.start)
            pairs, out = np.zeros((2, padded(count)), dtype=np.uint32), np.empty(packed_size(count), dtype=np.uint8)
            pairs[0, :count], pairs[1, : part.size - count] = part[:count], part[count:]
            pack(pairs, count, out)
            return Blob(out.data)

        return tuple(parallel_map(work, slices(masked.size, SHAPE.chunk)))

    def unpack(self, chunks: Sequence[Blob], length: int) -> Integers:
        """The sum of masked values, each reduced by its modulus, that a `rlwe.RlweSum` of the form's shape closed."""
        result = np.empty(length, dtype=np.int64)

        def fill(index: int, span: slice) -> None:
            part, count = result[span], _half(span.stop - span.start)
            pairs = unpacked(chunks[index], count)
            part[:count], part[count:] = pairs[0], pairs[1, : part.size - count]

        parallel_map(fill, slices(length, SHAPE.chunk))
        return result


class Matrix:
    """A row of 710 public numbers per value, a uniform secret vector."""

    name = "matrix"
    size = COLUMNS
    field = WIDE
    bound = WIDE.prime // 2
    max_clients = WIDE.prime  # any number: secrets are uniform
    limit = WIDE.prime // 2
    least_error = 1000.0
    bits = MappingProxyType({2: 127, 3: 128})  # core-SVP, up to the bits of a generator's key

    def secret(self, rng: np.random.Generator) -> Integers:
        """Draw 710 numbers, uniform in [0, q); `rng` must be cryptographic."""
        return rng.integers(0, WIDE.prime, size=COLUMNS, dtype=np.int64)

    def moduli(self, size: int) -> Integers:  # noqa: ARG002
        """The modulus of every value, q."""
        return np.array(WIDE.prime)

    def mask(self, seed: bytes, secret: Integers, length: int) -> Integers:
        """Return A·s, `length` values in [0, q). Digits of 11 bits keep float64 sums below 2^51, exact."""
        q, shifts = WIDE.prime, np.array([0, 11, 22])
        digits = (((secret % q)[:, None] >> shifts) & 2047).astype(np.float64)
        result = np.empty(length, dtype=np.int64)

        def fill(_: int, span: slice) -> None:
            part = result[span]
            public = expand(seed, span.start, part.size).astype(np.float64)
            part[:] = (((public @ digits).astype(np.int64) % q) << shifts).sum(axis=1) % q

        parallel_map(fill, slices(length, _ROWS))
        return result

    def pack(self, masked: NDArray[np.int32]) -> tuple[Blob, ...]:
        """Masked values at four bytes each."""
        return pack_fixed_point(masked)


Form: TypeAlias = Ring | Matrix
LweMask: TypeAlias = Mask[tuple[Form, Integers, Integers]]  # of this form: A·s and the error e
RING, MATRIX = Ring(), Matrix()
FORMS: dict[str, Form] = {"ring": RING, "matrix": MATRIX}


def hardness(bits: Mapping[int, int], honest: int) -> int:
    """Bits of security that remain for each of `honest` clients once the sum of their secrets is known, by a table."""
    return bits[max(h for h in bits if h <= honest)] if honest >= min(bits) else 0


def new_mask(
    form: Form, seed: bytes, secrets: np.random.Generator, error_std: float, errors: np.random.Generator, length: int
) -> LweMask:
    """A mask for `length` values under a fresh secret. Both generators must be cryptographic."""
    secret, noise = form.secret(secrets), error(form, errors, error_std, length)
    return Mask(secret, (form, form.mask(seed, secret, length), noise))


def apply_mask(values: NDArray[np.floating], scale: float, lwe_mask: LweMask) -> tuple[NDArray[np.int32], Integers]:
    """Return h = x + A·s + e mod q, which a client sends, and x + e, its part of the sum; x = round(scale·values)."""
    masked, (form, mask, noised) = np.empty(values.size, dtype=np.int32), lwe_mask.take()

    def add(_: int, span: slice) -> None:
        scaled = np.multiply(values[span], scale, dtype=np.float64)
        np.rint(scaled, out=scaled)
        if not max(float(scaled.max()), -float(scaled.min())) <= form.limit:
            raise UpdateError(
                f"scaled values must lie within ±{form.limit} to be summed; use the scale from `lwe_parameters`"
            )
        noised[span] += scaled.astype(np.int64)
        masked[span] = (noised[span] + mask[span]) % form.moduli(scaled.size)

    parallel_map(add, slices(values.size, SHAPE.chunk))
    return masked, noised


def unmask(total: Integers, form: Form, seed: bytes, secret: Integers, clients: int) -> Integers:
    """Return Σx_i + Σe_i, centred, from total = Σh_i and the summed secret of the same `clients` clients."""
    limit = clients * form.bound
    if secret.shape != (form.size,) or np.abs(centre(secret, form.field.prime)).max() > limit:
        raise CryptoError(
            f"the sum of {clients} secrets in {form.name} form should have {form.size} numbers within ±{limit}, "
            f"got {secret.size} numbers that do not fit; a share is wrong or missing"
        )
    values = form.mask(seed, secret, total.size)

    def subtract(_: int, span: slice) -> None:
        values[span] = centre(total[span] - values[span], form.moduli(span.stop - span.start))

    parallel_map(subtract, slices(total.size, SHAPE.chunk))
    return values


def error(form: Form, rng: np.random.Generator, std: float, size: int) -> Integers:
    """Draw one client's errors: a Gaussian rounded to integers."""
    if not (std >= form.least_error and isfinite(std)):
        raise CryptoError(
            f"an LWE error needs a std of at least {form.least_error:.0f} in integer units, got {std:.4g}; "
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
    form: Form, clip: float, sigma: float, length: int, clients: int, quorum: int, colluders: int = 1
) -> LweParameters:
    """Choose the scale, the largest power of two at which N `clients` cannot overflow, and the error's std.

    `sigma` is the std that the sum needs at sensitivity `clip` (θ), both in real units. Each error has std
    (σ/θ)·Δ/√(m − c), with Δ the accounted sensitivity: c of a quorum of m survivors know their own errors, and
    the errors of the others must still add up to σ. No overflow: N·(scale·θ + ½) + TAIL·√N·error_std within the form's
    limit.
    """
    if not (0 < clip < float("inf") and 0 < sigma < float("inf")):
        raise CryptoError(f"LWE needs a finite clip and noise above 0, got clip {clip} and sigma {sigma}")
    if not 1 <= colluders < quorum <= clients:
        raise CryptoError(
            f"LWE needs 1 ≤ colluders < quorum ≤ clients, got {colluders} colluders, quorum {quorum}, {clients} clients"
        )
    if clients > form.max_clients:
        raise CryptoError(f"LWE in {form.name} form sums at most {form.max_clients} clients, got {clients}")
    multiplier = sigma / clip / sqrt(quorum - colluders)  # of one client's error
    tails = TAIL * sqrt(clients) * multiplier
    room = form.limit - clients / 2 - tails * accounted_sensitivity(0.0, clip, length)
    given = f"{length} values, {clients} clients and noise of {sigma / clip:.4g} times the clip"
    if room <= 0:
        other = "protect.lwe = 'matrix'" if form.limit < MATRIX.limit else "fewer clients"
        raise CryptoError(f"{given} overflow at any scale; use less noise (raise epsilon) or {other}")
    scale = 2.0 ** floor(log2(room / (clip * (clients + tails))))
    sensitivity = accounted_sensitivity(scale, clip, length)
    if multiplier * sensitivity < form.least_error:
        raise CryptoError(
            f"{given} give an error std of {multiplier * sensitivity:.4g} at the largest scale without "
            f"overflow, but LWE needs {form.least_error:.0f}; use more noise (lower epsilon) or fewer clients"
        )
    return LweParameters(scale, sensitivity, multiplier * sensitivity)


def accounted_sensitivity(scale: float, clip: float, length: int) -> float:
    """Return Δ = scale·θ + √d/2, the most one client can change the sum, in integer units, rounding included."""
    return scale * clip + sqrt(length) / 2


def public_seed(run: str, number: int, attempt: int) -> bytes:
    """Return the seed of A for one attempt of a round: anyone can compute it, nobody chose it."""
    return sha256(msgspec.msgpack.encode(["paraaegis lwe matrix", run, number, attempt])).digest()


def expand(seed: bytes, start: int, rows: int) -> NDArray[np.int32]:
    """Expand the matrix's rows for the values from `start` on, uniform mod q and centred.

    The stream is standard AES-256-CTR, so every client gets the same A, whatever its numpy version.
    """
    return draw(keystream(derive(seed, "lwe", "matrix", start)), rows * COLUMNS).reshape(rows, COLUMNS)


def draw(stream: Callable[[int], bytes], count: int) -> NDArray[np.int32]:
    """Draw numbers uniform in [−(q − 1)/2, (q − 1)/2], from 31 bits each; −2^30 is drawn again."""
    numbers = np.frombuffer(stream(4 * count), dtype="<i4") >> 1
    while (again := np.flatnonzero(numbers == -(2**30))).size:
        numbers[again] = np.frombuffer(stream(4 * again.size), dtype="<i4") >> 1
    return numbers


def _half(size: int) -> int:
    """How many values of a chunk are taken modulo the first prime."""
    return -(-size // 2)
