"""A round of lwe-secagg (Stevens et al. 2022): masked values up, then shares of the masks' secret, never one alone.

exchange 1   client → server   h_i = x_i + A·s_i + e_i, and shares of s_i, each sealed to one member
exchange 2   server → client   who is in the sum, and the sealed shares that they sent to this client
             client → server   the sum of these shares
the server   rebuilds Σs_i and is left with Σx_i + Σe_i; the summed errors are the DP noise
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto import lwe
from paraaegis.crypto.sealing import seal, unseal
from paraaegis.crypto.shamir import Packing, Q, rebuild, share, thresholds
from paraaegis.crypto.streams import system
from paraaegis.errors import CryptoError, ProtocolError
from paraaegis.grid import STEP, from_grid, pack_grid, unpack_grid
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.ledger import Exposure
from paraaegis.protocol.combine import GridSum, expect_kind
from paraaegis.protocol.desk import Desk, Steps, same
from paraaegis.protocol.messages import Message, ShareSum, Survivors, Upload, Where, expect
from paraaegis.protocol.news import begins, called, rescue
from paraaegis.protocol.protect import Protected, Sight, Turn
from paraaegis.types import Blob, Payload, Vector


@dataclass(frozen=True)
class LweHalf:
    """The client's half. `group` is a secret of the clients, so that the server cannot seal shares of its own."""

    run: str
    form: str
    gaussian: Gaussian
    quorum: int
    colluders: int
    group: bytes = field(repr=False)
    votes: bool = False
    withholds: bool = False

    @property
    def exposures(self) -> tuple[Exposure, ...]:
        """The server unmasks the noised sum and nothing else; clients get it from there."""
        return (
            Exposure(
                "update",
                server="summed",
                clients="noised",
                noise=self.gaussian,
                quorum=self.quorum,
                colluders=self.colluders,
            ),
        )

    def ahead(self, turn: Turn, length: int) -> lwe.Cover:
        """See ClientHalf: a fresh secret's mask, with the error."""
        seed = public_seed(self.run, turn.number, turn.attempt)
        return lwe.new_cover(
            lwe.FORMS[self.form], seed, system(), self.numbers(turn, length).error_std, turn.rng, length
        )

    def protect(self, update: Vector, turn: Turn) -> Protected:
        """Clip, weigh, scale, round; cover; seal the shares of the cover's secret."""
        if not 0 < turn.weight <= turn.heaviest or turn.name not in turn.publics:
            raise ProtocolError(
                f"{turn.name} with weight {turn.weight:.4g} is not among the members {sorted(turn.publics)} "
                f"of weight up to {turn.heaviest:.4g}"
            )
        ready = turn.ready()
        cover = ready if isinstance(ready, lwe.Cover) else self.ahead(turn, update.size)
        scale = self.gaussian.shrink(update) * turn.weight * self.numbers(turn, update.size).scale
        masked = lwe.conceal(update, scale, cover)
        rows = share(cover.secret, thresholds(len(turn.publics), self.quorum), system())
        shares = {
            name: Blob(
                seal(public, row.astype("<u4").tobytes(), self._context(turn, turn.name, name), group=self.group)
            )
            for (name, public), row in zip(turn.publics.items(), rows, strict=True)
        }
        return Protected(Payload("lwe", update.size, pack_grid(masked)), shares=shares)

    def answer(self, message: Survivors, name: str, private: bytes, members: Collection[str]) -> Blob:
        """The sum of the survivors' shares; for one set a round, of at least quorum size, with this client in it."""
        survivors = message.clients
        if len(set(survivors)) != len(survivors) or not set(survivors) <= set(members) or name not in survivors:
            raise ProtocolError(f"survivors must be members of the round with {name} among them, got {survivors}")
        if len(survivors) < self.quorum or set(message.shares) != set(survivors):
            raise ProtocolError(
                f"shares of at least {self.quorum} survivors are summed, got {len(survivors)} survivors and "
                f"{len(message.shares)} shares"
            )
        total = np.zeros(thresholds(len(members), self.quorum).columns(lwe.FORMS[self.form].size), dtype=np.int64)
        for sender in survivors:
            context = self._context(message.where, sender, name)
            row = unseal(private, bytes(message.shares[sender].view), context, group=self.group)
            if len(row) != 4 * total.size:
                raise CryptoError(f"a share has {4 * total.size} bytes, got {len(row)} from {sender}")
            total += np.frombuffer(row, dtype="<u4")
        return Blob((total % Q).astype("<u4").data)

    def reveal(self, aggregate: Payload, sight: Sight, factor: float) -> Vector:
        """`factor` times the noised sum, in real units."""
        expect_kind(aggregate, "lwe")
        scale = self.numbers(sight, aggregate.length).scale
        return from_grid(unpack_grid(aggregate.chunks, aggregate.length), factor / (scale * STEP))

    def numbers(self, sight: Sight, length: int) -> lwe.Plan:
        """Scale and error for sensitivity θ·max n_i/W; both sides of the round derive the same."""
        clip, sigma = self.gaussian.clip * sight.heaviest, self.gaussian.sigmas[sight.number - 1] * sight.heaviest
        return lwe.plan(clip, sigma, length, sight.clients, self.quorum, self.colluders)

    def _context(self, place: Sight | Where, sender: str, receiver: str) -> bytes:
        return msgspec.msgpack.encode([self.run, place.number, place.attempt, sender, receiver])


def serve_lwe_round(desk: Desk, number: int) -> Steps:
    """One round as the server sees it."""
    plan, where, line = desk.plan, desk.plan.where(number, desk.state.attempt), desk.open_line(number)
    members = plan.members(number)
    total, form = GridSum(plan.length, "lwe"), lwe.FORMS[desk.half.shares]
    packing = thresholds(len(members), plan.quorum)
    sealed: dict[str, dict[str, Blob]] = {}
    rows: dict[int, NDArray[np.int64]] = {}
    prints: dict[str, str] = {}

    def take_upload(client: str, reply: Message) -> None:
        if desk.reported(line, client, reply, client in members):
            return
        upload = expect(reply, Upload, where)
        same({**prints, client: upload.fingerprint}, "models")
        if set(upload.shares) != set(members):
            raise ProtocolError(f"shares for {sorted(members)} were expected, got {sorted(upload.shares)}")
        total.add(upload.payload)
        sealed[client], prints[client] = upload.shares, upload.fingerprint
        desk.note(client, upload.report)

    def take_shares(client: str, reply: Message) -> None:
        row = expect(reply, ShareSum, where).row
        if len(row) != 4 * packing.columns(form.size):
            raise ProtocolError(f"a share sum has {4 * packing.columns(form.size)} bytes, got {len(row)}")
        rows[members.index(client)] = np.frombuffer(row.view, "<u4").astype(np.int64)

    yield from rescue(desk, line, where, called(desk, set(members)))
    answered = yield from desk.ask(line, begins(desk, where, set(members)), take_upload)
    yield from desk.conclude(answered, number - 1)
    survivors = [client for client in answered if client in prints]
    if desk.stop(line, survivors):
        return
    if len(survivors) < plan.quorum:
        desk.combine(line, None, [], None)
        return
    requests: dict[str, Message] = {
        client: Survivors(
            where=where, clients=tuple(survivors), shares={sender: sealed[sender][client] for sender in survivors}
        )
        for client in survivors
    }
    yield from desk.ask(line, requests, take_shares)
    if len(rows) < packing.needed:  # too few shares: nothing can be revealed, and the round is aborted
        desk.combine(line, None, [], None)
        return
    try:
        unmask(total, form, where, rows, packing, len(survivors))
    except CryptoError as error:  # a wrong share spoils the round, not the run
        line.dropped["(shares)"] = str(error)
        desk.combine(line, None, [], None)
        return
    desk.combine(line, total, survivors, None)


def unmask(
    total: GridSum, form: lwe.Form, where: Where, rows: dict[int, NDArray[np.int64]], packing: Packing, survivors: int
) -> None:
    """Rebuild the sum of the survivors' secrets from the sums of their shares, and take its mask off the total."""
    secret = rebuild(rows, form.size, packing)
    seed = public_seed(where.run, where.number, where.attempt)
    total.values = lwe.unmask(total.values, form, seed, secret, survivors)


def public_seed(run: str, number: int, attempt: int) -> bytes:
    """The seed of a round's public matrix: anyone can compute it, nobody chose it."""
    return hashlib.sha256(msgspec.msgpack.encode(["paraaegis lwe matrix", run, number, attempt])).digest()
