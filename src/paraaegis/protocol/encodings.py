"""How a mechanism's steps are sent: as they are, or encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from paraaegis.crypto import rlwe
from paraaegis.crypto.ckks import Profile, Secret, rounded, secret_key
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.pool import SecretPool
from paraaegis.crypto.shamir import Shares, rebuild, share
from paraaegis.crypto.streams import system
from paraaegis.errors import CryptoError, ForgedError, ProtocolError
from paraaegis.fixed_point import STEP, pack_fixed_point, unpack_fixed_point
from paraaegis.privacy.ledger import Seen
from paraaegis.protocol.contexts import Opener, Packed, RevealContext, UploadContext
from paraaegis.protocol.rows import HOLDER_BYTES, open_row
from paraaegis.protocol.single_flight import SingleFlight
from paraaegis.protocol.sums import ROWS, expect_kind, public_seed
from paraaegis.types import FixedPoint, Payload


class Encoding(Protocol):
    """How a mechanism's steps (see fixed_point.py) are sent."""

    @property
    def sight(self) -> Seen:
        """What the server can see of one client's: everything, or what a key or a mask hides; see privacy/ledger.py."""

    @property
    def opener(self) -> Opener:
        """Who opens their sum with the clients' sums of shares."""

    @property
    def step(self) -> float:
        """The step that values are rounded to."""

    def rounded(self, steps: FixedPoint) -> FixedPoint:
        """The steps as they will be summed."""

    def ahead(self, context: UploadContext, length: int) -> Any:
        """What hides this many steps, computed in full; None if nothing can be computed without them."""

    def pack(self, steps: FixedPoint, context: UploadContext, mask: Any = None) -> Packed:
        """One client's rounded steps as they are sent. `mask` is what `ahead` returned, if it was called."""

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """The summed steps of an aggregate."""


class Plain:
    """Steps in the clear."""

    sight: Seen = "clear"
    opener: Opener = "nobody"
    step = STEP

    def rounded(self, steps: FixedPoint) -> FixedPoint:
        """The steps, unchanged."""
        return steps

    def ahead(self, context: UploadContext, length: int) -> None:
        """Nothing hides the steps."""

    def pack(self, steps: FixedPoint, context: UploadContext, mask: None = None) -> Packed:  # noqa: ARG002
        """The steps at 4 bytes per value, 8 in chunks with large values."""
        return Packed(Payload("grid", steps.size, pack_fixed_point(steps)))

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:  # noqa: ARG002
        """The summed steps."""
        expect_kind(payload, "grid")
        return unpack_fixed_point(payload.chunks, payload.length)


@dataclass(frozen=True)
class Ckks:
    """Steps under CKKS, exact on the profile's grid. Every round and attempt has its own secret key."""

    profile: Profile
    pool: SecretPool | None = None
    sight: Seen = "hidden"
    opener: Opener = "nobody"
    _secrets: SingleFlight = field(default_factory=SingleFlight, repr=False)  # shared by the clients of one process

    @property
    def step(self) -> float:
        """The profile's step."""
        return self.profile.step

    def rounded(self, steps: FixedPoint) -> FixedPoint:
        """The steps rounded to the profile's grid."""
        return rounded(self.profile, steps)

    def ahead(self, context: UploadContext, length: int) -> None:
        """Nothing: steps and randomness are encrypted together."""

    def pack(self, steps: FixedPoint, context: UploadContext, mask: None = None) -> Packed:  # noqa: ARG002
        """Fresh, seeded, symmetric ciphertexts."""
        return Packed(Payload("ckks", steps.size, self._secret(context.step).encrypt(steps, context.clients)))

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """The decrypted sum."""
        expect_kind(payload, "ckks")
        return self._secret(context.step).decrypt(payload.chunks, payload.length)

    def _secret(self, key: bytes) -> Secret:
        def made() -> Secret:
            return Secret(self.profile, secret_key(self.profile, derive(key, "ckks")), self.pool)

        return self._secrets(key, made)


@dataclass(frozen=True)
class Rlwe:
    """Steps under a one-time secret for each upload, which nobody stores: its shares open sums over a quorum alone."""

    profile: rlwe.Profile
    quorum: int
    opener: Opener = "clients"

    @property
    def sight(self) -> Seen:
        """Nothing, or the sum."""
        return "summed" if self.opener == "server" else "masked"

    @property
    def step(self) -> float:
        """The profile's step."""
        return self.profile.step

    def rounded(self, steps: FixedPoint) -> FixedPoint:
        """The steps rounded to the profile's grid."""
        return rlwe.rounded(self.profile, steps)

    def ahead(self, context: UploadContext, length: int) -> rlwe.RlweMask:
        """A mask under a fresh secret."""
        return rlwe.precompute(rlwe.new_mask(public_seed(context.round_id)), self.profile, length)

    def pack(self, steps: FixedPoint, context: UploadContext, mask: rlwe.RlweMask | None = None) -> Packed:
        """Masked steps, and the shares of the mask's secret."""
        if context.name not in context.members:
            raise ProtocolError(f"{context.name} is not among the members {context.members} of the round")
        mask = mask or rlwe.new_mask(public_seed(context.round_id))
        chunks = rlwe.encrypt(self.profile, steps, context.clients, mask)
        rows = share(mask.secret, len(context.members), self.quorum, system(), rlwe.FIELD)
        return Packed(Payload("rlwe", steps.size, chunks), dict(zip(context.members, rows, strict=True)))

    def unpack(self, payload: Payload, context: RevealContext) -> FixedPoint:
        """The sum, opened with the rows of a quorum. A wrong row ends the run, like any other forgery."""
        if self.opener == "server":
            expect_kind(payload, "grid")
            return unpack_fixed_point(payload.chunks, payload.length)
        expect_kind(payload, "rlwe", 1)
        (rows,) = payload.parts
        expect_kind(rows, ROWS)
        try:
            secret = rebuild(dict(self._opened(rows, context.step)), self.quorum)
            seed = public_seed(context.round_id)
            return rlwe.decrypt(self.profile, payload.chunks, payload.length, secret, seed, context.counted)
        except CryptoError as error:
            raise ForgedError from error

    def _opened(self, rows: Payload, step: bytes) -> Iterator[tuple[int, Shares]]:
        for blob in rows.chunks:
            holder = int.from_bytes(blob.view[:HOLDER_BYTES], "little")
            yield holder, open_row(bytes(blob.view[HOLDER_BYTES:]), step, holder, rlwe.SECRET, rlwe.FIELD)
