"""A round of lwe-secagg (Stevens et al. 2022): masked values up, then shares of the masks' secret, never one alone.

exchange 1   client → server   h_i = x_i + A·s_i + e_i, and shares of s_i, each sealed to one fellow member
exchange 2   server → client   who is in the sum, and the sealed shares that they sent to this client
             client → server   the sum of these shares and of the one that it kept
the server   rebuilds Σs_i and is left with Σx_i + Σe_i; the summed errors are the DP noise
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto import lwe
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.shamir import Q, rebuild, share
from paraaegis.crypto.streams import system
from paraaegis.errors import CryptoError, ForgedError, ProtocolError
from paraaegis.fixed_point import STEP, pack_grid, unpack_grid
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.ledger import Exposure
from paraaegis.protocol.catch_up import begins, called, rescue
from paraaegis.protocol.client_context import Silo
from paraaegis.protocol.messages import Message, ShareSum, Survivors, Upload, Where, expect
from paraaegis.protocol.protect import Protected, Revealed, Sight, Turn
from paraaegis.protocol.round_server import Desk, Steps
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.sums import GridSum, expect_kind
from paraaegis.types import Blob, Payload, Vector

Row = NDArray[np.int64]  # one holder's shares of a secret


@dataclass(frozen=True)
class LweHalf:
    """The client's half."""

    run: str
    form: str
    gaussian: Gaussian
    quorum: int
    colluders: int
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
        """Clip, weigh, scale, round; mask; share the mask's secret."""
        if not 0 < turn.weight <= turn.heaviest or turn.name not in turn.members:
            raise ProtocolError(
                f"{turn.name} with weight {turn.weight:.4g} is not among the members {turn.members} "
                f"of weight up to {turn.heaviest:.4g}"
            )
        ready = turn.ready()
        cover = ready if isinstance(ready, lwe.Cover) else self.ahead(turn, update.size)
        scale = self.gaussian.shrink(update) * turn.weight * self.numbers(turn, update.size).scale
        masked, noised = lwe.conceal(update, scale, cover)
        rows = share(cover.secret, len(turn.members), self.quorum, system())
        shares = dict(zip(turn.members, rows, strict=True))
        return Protected(Payload("lwe", update.size, pack_grid(masked)), (noised,), shares=shares)

    def reveal(self, aggregate: Payload, sight: Sight) -> Revealed:
        """See ClientHalf: the noised sum."""
        expect_kind(aggregate, "lwe")
        scale = self.numbers(sight, aggregate.length).scale
        steps = unpack_grid(aggregate.chunks, aggregate.length)
        return Revealed(steps, (steps,), 1 / (scale * STEP))

    def numbers(self, sight: Sight, length: int) -> lwe.Plan:
        """Scale and error for sensitivity θ·max n_i/W; both sides of the round derive the same."""
        clip, sigma = self.gaussian.clip * sight.heaviest, self.gaussian.sigmas[sight.number - 1] * sight.heaviest
        return lwe.plan(clip, sigma, length, sight.clients, self.quorum, self.colluders)


def seal_shares(silo: Silo, state: ClientState, shares: Mapping[str, Row]) -> dict[str, Blob]:
    """Shares of this client's secret, each sealed to its holder, for this round, attempt and view."""
    purpose, group = _purpose(state), derive(state.keys.step, "shares")
    return {
        holder: Blob(silo.seal_to(holder, row.astype("<u4").tobytes(), *purpose, group=group))
        for holder, row in shares.items()
        if holder != silo.name
    }


def sum_shares(silo: Silo, state: ClientState, own: Row, message: Survivors) -> Blob:
    """The sum of the survivors' shares: for one set a round, of at least quorum size, with this client in it."""
    survivors, members = message.clients, silo.plan.members(state.number)
    if silo.name not in survivors or survivors != tuple(name for name in members if name in survivors):
        raise ProtocolError(f"survivors must be members of the round with {silo.name} among them, got {survivors}")
    if len(survivors) < silo.plan.quorum or set(message.shares) != {*survivors} - {silo.name}:
        raise ProtocolError(
            f"shares of at least {silo.plan.quorum} survivors are summed, got {len(survivors)} survivors and "
            f"shares from {sorted(message.shares)}"
        )
    total, purpose, group = own.copy(), _purpose(state), derive(state.keys.step, "shares")
    for sender, sealed in message.shares.items():
        row = silo.open_from(sender, bytes(sealed.view), *purpose, group=group)
        if len(row) != 4 * total.size:
            raise ForgedError
        total += np.frombuffer(row, dtype="<u4")
    return Blob((total % Q).astype("<u4").data)


def _purpose(state: ClientState) -> tuple[str, int, int, str]:
    return "share", state.number, state.attempt, state.view


def serve_lwe_round(desk: Desk, number: int) -> Steps:
    """One round as the server sees it."""
    plan, state, line = desk.plan, desk.state, desk.open_line(number)
    total, form = GridSum(plan.length, "lwe"), lwe.FORMS[desk.half.shares]
    if state.opening[0] == number and state.opening[1] < state.attempt:
        # Shares were asked for before an interruption, and no client gives them out twice: the round is void.
        desk.combine(line, total, [], None, {})
        return
    where, members = plan.where(number, state.attempt), plan.members(number)
    uploads: dict[str, Upload] = {}
    rows: dict[int, Row] = {}

    def take_upload(client: str, reply: Message) -> None:
        if desk.reported(line, client, reply, client in members):
            return
        upload = expect(reply, Upload, where)
        if set(upload.shares) != {*members} - {client}:
            raise ProtocolError(f"shares for the other members were expected, got {sorted(upload.shares)}")
        desk.take_upload(client, upload, total, uploads)

    def take_shares(client: str, reply: Message) -> None:
        row = expect(reply, ShareSum, where).row
        if len(row) != 4 * form.size:
            raise ProtocolError(f"a share sum has {4 * form.size} bytes, got {len(row)}")
        rows[members.index(client)] = np.frombuffer(row.view, "<u4").astype(np.int64)

    yield from rescue(desk, line, where, called(desk, set(members)))
    answered = yield from desk.ask(line, begins(desk, line, where, set(members)), take_upload)
    yield from desk.conclude(answered, number - 1)
    survivors = [client for client in answered if client in uploads]
    if desk.stop(line, survivors):
        return
    if len(survivors) < plan.quorum:
        desk.combine(line, total, [], None, {})
        return
    requests: dict[str, Message] = {
        client: Survivors(
            where=where,
            clients=tuple(survivors),
            shares={sender: uploads[sender].shares[client] for sender in survivors if sender != client},
        )
        for client in survivors
    }
    state.opening = (number, state.attempt)
    yield state
    yield from desk.ask(line, requests, take_shares)
    try:
        unmask(total, form, where, rows, plan.quorum, len(survivors))
    except CryptoError as error:  # too few shares, or a wrong one: the round is void, the run continues
        line.dropped["(shares)"] = str(error)
        desk.combine(line, total, [], None, {})
        return
    desk.combine(line, total, survivors, None, uploads)


def unmask(total: GridSum, form: lwe.Form, where: Where, rows: dict[int, Row], quorum: int, survivors: int) -> None:
    """Rebuild the sum of the survivors' secrets from the sums of their shares, and take its mask off the total."""
    secret = rebuild(rows, quorum)
    seed = public_seed(where.run, where.number, where.attempt)
    total.values = lwe.unmask(total.values, form, seed, secret, survivors)


def public_seed(run: str, number: int, attempt: int) -> bytes:
    """The seed of a round's public matrix: anyone can compute it, nobody chose it."""
    return hashlib.sha256(msgspec.msgpack.encode(["paraaegis lwe matrix", run, number, attempt])).digest()
