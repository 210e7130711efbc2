"""Sums of vectors under one-time secrets: b_i = a·s_i + e_i + 2^10·m_i in Z_Q[x]/(x^2048 + 1), Q just below 2^50.

a is public and the same for all clients, one polynomial per block, s_i a client's secret for one upload, e_i its error
and m_i its values. Whoever has Σs_i, rebuilt from Shamir shares, computes Σb_i − a·Σs_i = Σe_i + 2^10·Σm_i and rounds
the error away, so sums are exact. No key opens a single upload. Upload and sum have the same size.

Secrets and errors are centred binomials of 21 + 21 bits. That Σs_i and Σe_i over h honest clients become known
reduces the variance of each by the fraction 1/h and no more: with h = 2, 113 bits of security remain (core-SVP).

A secret must mask one vector only: the difference of two vectors under one secret would be in the clear. And only one
sum may ever be opened of the same uploads: the sums over two sets of clients differ by single clients' values.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import cache
from math import sqrt
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.kdf import KEY_BYTES, derive
from paraaegis.crypto.masks import Mask
from paraaegis.crypto.residues import BOUND, ERROR_BITS, binomials, pack, packed_size, padded
from paraaegis.crypto.ring import DEGREE, Words, transform
from paraaegis.crypto.rlwe_chunks import Transform, add_chunk, encrypt_chunk, mask_chunk, open_chunk, products, unpacked
from paraaegis.crypto.rlwe_profiles import PROFILES, Profile, check_reach, largest_error, rounded
from paraaegis.crypto.shamir import NARROW
from paraaegis.crypto.streams import keystream
from paraaegis.errors import CryptoError
from paraaegis.fixed_point import chunk_counts, slices
from paraaegis.parallel import parallel_map
from paraaegis.plural import plural
from paraaegis.types import Blob, FixedPoint

__all__ = [
    "FIELD",
    "PROFILES",
    "SECRET",
    "SECURITY",
    "Profile",
    "RlweMask",
    "RlweSum",
    "check_reach",
    "decrypt",
    "encrypt",
    "new_mask",
    "new_secret",
    "precompute",
    "rounded",
]

SECRET = DEGREE  # numbers in a secret
FIELD = NARROW  # of its shares: summed secrets are below half its prime
SECURITY = MappingProxyType({2: 113, 3: 114, 4: 115, 8: 115, 20: 116})  # core-SVP bits, by honest clients in a sum
RlweMask: TypeAlias = Mask[Callable[[int, int], Words]]  # a·s + e of a chunk, by its index and number of coefficients
_FAILURE = 50  # the sum of the right secrets is refused with a probability of e^-50


def new_secret(entropy: bytes | None = None) -> NDArray[np.int64]:
    """A secret for one upload: 2048 numbers within ±21. `entropy`, 32 bytes that replace the system's, is for tests."""
    return binomials(keystream(derive(_entropy(entropy), "rlwe secret")), SECRET)


def new_mask(seed: bytes, secret: NDArray[np.int64] | None = None, entropy: bytes | None = None) -> RlweMask:
    """A mask for one upload under a fresh secret. Each chunk is computed when it is needed; see also `precompute`.

    `seed` is public and the same for all clients of a sum. A given secret, and `entropy`, 32 bytes that replace the
    system's, are for tests.
    """
    secret = new_secret() if secret is None else secret
    transformed, seed, entropy = _transformed(secret, 1), _seed(seed), _entropy(entropy)

    def compute(index: int, count: int) -> Words:
        return mask_chunk(seed, index, count, transformed, derive(entropy, "rlwe errors", index))

    return Mask(secret, compute)


def precompute(mask: RlweMask, profile: Profile, length: int) -> RlweMask:
    """The same mask, computed in full for this many values; it takes 8 bytes per coefficient."""
    counts, compute = _counts(profile, length), mask.take()
    chunks = _pairs(counts)

    def fill(index: int, count: int) -> None:
        chunks[index][:] = compute(index, count)

    def computed(index: int, count: int) -> Words:
        if counts[index : index + 1] != [count]:
            raise CryptoError(f"this mask was computed for {plural(length, 'value')} and cannot hide any other number")
        return chunks[index]

    parallel_map(fill, counts)
    return Mask(mask.secret, computed)


def encrypt(profile: Profile, steps: FixedPoint, clients: int, mask: RlweMask) -> tuple[Blob, ...]:
    """Mask grid steps, in chunks that can be summed over up to `clients` clients."""
    check_reach(profile, steps, clients)
    counts, masks = _counts(profile, steps.size), mask.take()
    parts = _blank(counts)

    def work(index: int, span: slice) -> Blob:
        encrypt_chunk(profile, _contiguous(steps[span]), masks(index, counts[index]), parts[index])
        return Blob(parts[index].data)

    return tuple(parallel_map(work, slices(steps.size, profile.chunk)))


class RlweSum:
    """The server's side: one running sum, which it cannot open."""

    def __init__(self, profile: Profile, length: int) -> None:
        self.profile, self.length = profile, length
        self._counts = _counts(profile, length)
        self._uploads = 0
        self._totals = _pairs(self._counts)

    def add(self, chunks: Sequence[Blob]) -> None:
        """Add one client's chunks: all of them or, with an error, none."""
        self._merge(chunks, subtract=False)
        self._uploads += 1

    def subtract(self, chunks: Sequence[Blob]) -> None:
        """Remove a client's chunks that were added before."""
        self._merge(chunks, subtract=True)
        self._uploads -= 1

    def _merge(self, chunks: Sequence[Blob], subtract: bool) -> None:
        pairs, merged = _paired(chunks, self._counts, self.length), list[int]()

        def work(index: int, pair: tuple[Blob, int]) -> None:
            add_chunk(self._totals[index], *pair, subtract)
            merged.append(index)

        try:
            parallel_map(work, pairs)
        except BaseException:
            for index in merged:  # exactly undone, since totals are reduced
                add_chunk(self._totals[index], *pairs[index], not subtract)
            raise

    def close(self) -> tuple[Blob, ...]:
        """The sum's chunks; this object cannot be used afterwards."""
        if self._uploads == 0 and self._counts:
            raise CryptoError("a sum of no uploads has no chunks; add at least one upload before closing it")
        parts = _blank(self._counts)
        parallel_map(lambda index, part: pack(self._totals[index], self._counts[index], part), parts)
        return tuple(Blob(part.data) for part in parts)


def decrypt(
    profile: Profile, chunks: Sequence[Blob], length: int, secret_sum: NDArray[np.int64], seed: bytes, clients: int
) -> FixedPoint:
    """Open the sum of `length` values over `clients` clients with the sum of their secrets; returns grid steps.

    Under a wrong sum of secrets the errors are uniform. That is refused unless there are only a few values.
    """
    if not 1 <= clients <= profile.max_clients:
        raise CryptoError(f"profile {profile.name!r} opens sums over 1 to {profile.max_clients} clients, got {clients}")
    transformed, seed = _transformed(secret_sum, clients), _seed(seed)
    counts, spans = _counts(profile, length), list(slices(length, profile.chunk))
    steps = np.empty(length, dtype=np.int64)

    def work(index: int, pair: tuple[Blob, int]) -> tuple[int, int]:
        masks = products(seed, index, counts[index], transformed)
        return open_chunk(profile, unpacked(*pair), masks, steps[spans[index]])

    _check_errors(parallel_map(work, _paired(chunks, counts, length)), sum(counts), clients)
    return steps


@cache
def warm() -> None:
    """Load the compiled loops ahead of use, which takes a second in a new process."""
    secret, seed = np.zeros(SECRET, dtype=np.int64), bytes(32)
    for profile in PROFILES.values():
        for kind in (np.int32, np.int64):
            total = RlweSum(profile, 2)
            total.add(encrypt(profile, np.zeros(2, dtype=kind), 1, new_mask(seed, secret)))
            decrypt(profile, total.close(), 2, secret, seed, 1)


def _check_errors(found: Sequence[tuple[int, int]], count: int, clients: int) -> None:
    """Refuse errors that are larger than those of `clients` clients, each by itself or in their sum of squares.

    Errors are sub-Gaussian with their own variance v. So Σe² over n of them exceeds v·(n + 2√(n·t) + 2t) with a
    probability of at most e^-t (Hsu, Kakade and Zhang 2012). Over many clients this reveals uniform errors sooner.
    """
    largest, squares = max((each for each, _ in found), default=0), sum(each for _, each in found)
    variance = ERROR_BITS / 4 * clients
    if largest > largest_error(clients) or squares > variance * (count + 2 * sqrt(count * _FAILURE) + 2 * _FAILURE):
        raise CryptoError(
            f"the sum over {plural(clients, 'client')} does not open: its errors go up to {largest} with a mean square "
            f"of {squares / count:.5g}, but must stay within {largest_error(clients)} and near {variance:g}; the sum "
            "of secrets is not that of the uploads in the sum, or the seed differs from the clients'"
        )


def _counts(profile: Profile, length: int) -> list[int]:
    """The number of coefficients in each chunk."""
    return [profile.coefficients(values) for values in chunk_counts(length, profile.chunk)]


def _pairs(counts: Sequence[int]) -> list[Words]:
    """Zero coefficients for each chunk, as pairs of residues with room for padding; in one array, as in `_blank`."""
    sizes = [padded(count) for count in counts]
    return np.split(np.zeros((2, sum(sizes)), dtype=np.uint32), np.cumsum(sizes)[:-1], axis=1) if sizes else []


def _blank(counts: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Room for the bytes of each chunk, in one array: for a large one, numpy asks the system for large pages."""
    sizes = [packed_size(count) for count in counts]
    return np.split(np.empty(sum(sizes), dtype=np.uint8), np.cumsum(sizes)[:-1]) if sizes else []


def _paired(chunks: Sequence[Blob], counts: Sequence[int], length: int) -> list[tuple[Blob, int]]:
    """Each chunk with its number of coefficients. Missing, surplus and truncated chunks are refused."""
    if len(chunks) != len(counts):
        raise CryptoError(f"{length} values need {plural(len(counts), 'chunk')}, got {len(chunks)}")
    for index, (blob, count) in enumerate(zip(chunks, counts, strict=True)):
        if len(blob) != packed_size(count):
            raise CryptoError(f"chunk {index} of masked values must have {packed_size(count)} bytes, got {len(blob)}")
    return list(zip(chunks, counts, strict=True))


def _transformed(secret: NDArray[np.int64], clients: int) -> Transform:
    """The transform of a secret or of the sum of several clients' secrets."""
    limit = BOUND * clients
    if secret.shape != (SECRET,) or not -limit <= secret.min() <= secret.max() <= limit:
        raise CryptoError(
            f"the sum of the secrets of {plural(clients, 'client')} has {SECRET} numbers within ±{limit}, got "
            f"{secret.size} from {secret.min(initial=0)} to {secret.max(initial=0)}; a share is wrong or missing"
        )
    return transform(secret)


def _contiguous(steps: FixedPoint) -> FixedPoint:
    return np.ascontiguousarray(steps, dtype=np.int32 if steps.dtype == np.int32 else np.int64)


def _entropy(given: bytes | None) -> bytes:
    return secrets.token_bytes(KEY_BYTES) if given is None else _seed(given)


def _seed(given: bytes) -> bytes:
    if len(given) != KEY_BYTES:
        raise CryptoError(f"a seed has {KEY_BYTES} bytes, got {len(given)}")
    return given
