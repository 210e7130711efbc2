"""CKKS sums of whole vectors: clients encrypt grid steps, a keyless server adds, clients decrypt the exact sum.

Vectors are processed chunk by chunk, on all cores if a pool is given and the vector is long enough.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import numpy as np

from paraaegis.crypto.chunks import key_id_of, paired
from paraaegis.crypto.ckks_seal import ChunkSecret, ChunkSums, secret_key
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.profiles import PROFILES, Profile, fitting, profile
from paraaegis.errors import CryptoError, UpdateError
from paraaegis.fixed_point import STEP, chunk_counts, slices
from paraaegis.plural import plural
from paraaegis.types import Blob, FixedPoint

__all__ = ["PROFILES", "CipherSum", "Profile", "Secret", "check_reach", "new_key", "profile", "rounded", "secret_key"]


def new_key(profile: Profile) -> bytes:
    """A fresh secret key."""
    return secret_key(profile, secrets.token_bytes(32))


class Secret:
    """The client side: encrypts its own values and decrypts sums."""

    def __init__(self, profile: Profile, key: bytes, pool: SecretPool | None = None) -> None:
        self.profile = profile
        self._chunks, self._key, self._pool = ChunkSecret(profile, key), key, pool

    @property
    def id(self) -> bytes:
        """The key's public fingerprint."""
        return self._chunks.id

    def __repr__(self) -> str:
        return f"Secret({self.profile.name}, id={self.id.hex()})"

    def encrypt(self, steps: FixedPoint, clients: int) -> tuple[Blob, ...]:
        """Encrypt grid steps into chunks that can be summed over up to `clients` clients."""
        check_reach(self.profile, steps, clients)
        spans = slices(steps.size, self.profile.chunk)
        parts = (np.ascontiguousarray(rounded(self.profile, steps[span]), np.int64) for span in spans)
        count = len(chunk_counts(steps.size, self.profile.chunk))
        if (pool := self._sharing(count)) is None:
            return tuple(Blob(self._chunks.encrypt(index, part)) for index, part in enumerate(parts))
        tasks = (("encrypt", (self.id, index), part.data) for index, part in enumerate(parts))
        return tuple(Blob(chunk) for chunk in pool.map(tasks))

    def decrypt(self, chunks: Sequence[Blob], length: int) -> FixedPoint:
        """Decrypt a sum of `length` values to grid steps."""
        pairs = paired(self.profile, chunks, length)
        steps = np.empty(length, dtype=np.int64)
        parts: Iterable[FixedPoint]
        if (pool := self._sharing(len(pairs))) is None:
            parts = (self._chunks.decrypt(index, blob.view, count) for index, (blob, count) in enumerate(pairs))
        else:
            tasks = (("decrypt", (self.id, i, count), blob.view) for i, (blob, count) in enumerate(pairs))
            parts = (np.frombuffer(part, dtype=np.int64) for part in pool.map(tasks))
        for span, part in zip(slices(length, self.profile.chunk), parts, strict=True):
            steps[span] = part
        return steps

    def _sharing(self, chunks: int) -> SecretPool | None:
        if self._pool is None or not self._pool.worth(chunks):
            return None
        self._pool.know(self.id, self.profile.name, self._key)
        return self._pool


class CipherSum:
    """The server side: one running sum of ciphertexts. Neither it nor its workers hold a key."""

    def __init__(self, profile: Profile, length: int, pool: Pool | None = None) -> None:
        self.profile, self.length = profile, length
        self._counts = chunk_counts(length, profile.chunk)
        self._pool = pool if pool is not None and pool.worth(len(self._counts)) else None
        self._uploads = 0
        self._key_id = bytes(8)
        self._clear()

    def _clear(self) -> None:
        self._sums = ChunkSums(self.profile)
        self._id = self._pool.new_sum(self._sums) if self._pool is not None else 0

    def add(self, chunks: Sequence[Blob]) -> None:
        """Add one client's chunks, all or none: if one is bad, the others are subtracted again."""
        pairs = paired(self.profile, chunks, self.length)
        if self._uploads == 0 and pairs:
            self._key_id = key_id_of(self.profile, pairs[0][0].view)
        failed = self._merge(dict(enumerate(chunks)), subtract=False)
        if failed:
            good = {index: blob for index, blob in enumerate(chunks) if index not in failed}
            self._take_back(good)
            raise next(iter(failed.values()))
        self._uploads += 1

    def subtract(self, chunks: Sequence[Blob]) -> None:
        """Remove a client's chunks that were added before."""
        self._uploads -= 1
        self._take_back(dict(enumerate(chunks)))

    def _take_back(self, chunks: dict[int, Blob]) -> None:
        if self._uploads == 0:  # nothing is left to keep, and SEAL refuses a sum that would be zero
            self._clear()
        else:
            self._merge(chunks, subtract=True)

    def _merge(self, chunks: dict[int, Blob], subtract: bool) -> dict[int, CryptoError]:
        """Merge chunks by index; return the errors of those that failed."""
        if self._pool is not None:
            futures = {
                i: self._pool.submit(
                    i, "merge", (self._id, self.profile.name, i, self._counts[i], self._key_id, subtract), blob.view
                )
                for i, blob in chunks.items()
            }
            errors = {i: error for i, future in futures.items() if (error := future.exception()) is not None}
            return {i: e if isinstance(e, CryptoError) else CryptoError(f"{e!r}") for i, e in errors.items()}
        failed: dict[int, CryptoError] = {}
        for i, blob in chunks.items():
            try:
                self._sums.merge(i, blob.view, self._counts[i], self._key_id, subtract)
            except CryptoError as error:
                failed[i] = error
        return failed

    def close(self) -> tuple[Blob, ...]:
        """The sum's chunks; this object cannot be used afterwards."""
        if self._uploads == 0 and self._counts:
            raise CryptoError("a sum of no uploads has no ciphertext; add at least one upload before closing it")
        if self._pool is None:
            return tuple(Blob(self._sums.close(i, count, self._key_id)) for i, count in enumerate(self._counts))
        tasks = (("close", (self._id, i, count, self._key_id), b"") for i, count in enumerate(self._counts))
        return tuple(Blob(chunk) for chunk in self._pool.map(tasks))


def rounded(profile: Profile, steps: FixedPoint) -> FixedPoint:
    """Steps rounded to the profile's own grid."""
    return steps if profile.unit == 1 else (np.rint(steps / profile.unit) * profile.unit).astype(np.int64)


def check_reach(profile: Profile, steps: FixedPoint, clients: int) -> None:
    """Refuse values whose sum over `clients` could wrap around the modulus or decrypt inexactly."""
    # SEAL's encoder needs a spare factor of two; with several clients the bound on the sum leaves one anyway.
    largest = float(max(steps.max(), -steps.min())) + (profile.unit - 1) / 2 if steps.size else 0.0
    peak = largest * STEP * max(clients, 2)
    if clients > profile.max_clients:
        raise UpdateError(
            f"profile {profile.name!r} sums at most {profile.max_clients} clients exactly, got {clients}; "
            f"{fitting(peak, clients)}"
        )
    if peak > profile.reach:
        raise UpdateError(
            f"profile {profile.name!r} supports sums within ±{profile.reach:.6g}, but {plural(clients, 'client')} with "
            f"values up to {peak / max(clients, 2):.6g} could reach {peak:.6g}; {fitting(peak, clients)}"
        )
