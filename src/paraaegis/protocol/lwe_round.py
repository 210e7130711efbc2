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
from paraaegis.fixed_point import STEP, pack_fixed_point, unpack_fixed_point
from paraaegis.privacy.gaussian import Gaussian
from paraaegis.privacy.ledger import Exposure
from paraaegis.protocol.catch_up import begins, called, rescue
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Message, RoundId, ShareSum, Survivors, Upload, expect
from paraaegis.protocol.protect import Protected, RevealContext, Revealed, UploadContext
from paraaegis.protocol.round_server import RoundServer, Steps
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.sums import FixedPointSum, expect_kind
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

    def ahead(self, context: UploadContext, length: int) -> lwe.LweMask:
        """See ClientHalf: a fresh secret's mask, with the error."""
        seed = public_seed(self.run, context.number, context.attempt)
        return lwe.new_mask(
            lwe.FORMS[self.form], seed, system(), self.numbers(context, length).error_std, context.rng, length
        )

    def protect(self, update: Vector, context: UploadContext) -> Protected:
        """Clip, weigh, scale, round; mask; share the mask's secret."""
        if not 0 < context.weight <= context.heaviest or context.name not in context.members:
            raise ProtocolError(
                f"{context.name} with weight {context.weight:.4g} is not among the members {context.members} "
                f"of weight up to {context.heaviest:.4g}"
            )
        ready = context.ready()
        lwe_mask = ready if isinstance(ready, lwe.LweMask) else self.ahead(context, update.size)
        scale = self.gaussian.shrink(update) * context.weight * self.numbers(context, update.size).scale
        masked, noised = lwe.apply_mask(update, scale, lwe_mask)
        rows = share(lwe_mask.secret, len(context.members), self.quorum, system())
        shares = dict(zip(context.members, rows, strict=True))
        return Protected(Payload("lwe", update.size, pack_fixed_point(masked)), (noised,), shares=shares)

    def reveal(self, aggregate: Payload, context: RevealContext) -> Revealed:
        """See ClientHalf: the noised sum."""
        expect_kind(aggregate, "lwe")
        scale = self.numbers(context, aggregate.length).scale
        steps = unpack_fixed_point(aggregate.chunks, aggregate.length)
        return Revealed(steps, (steps,), 1 / (scale * STEP))

    def numbers(self, context: RevealContext, length: int) -> lwe.LweParameters:
        """Scale and error for sensitivity θ·max n_i/W; both sides of the round derive the same."""
        clip, sigma = self.gaussian.clip * context.heaviest, self.gaussian.sigmas[context.number - 1] * context.heaviest
        return lwe.lwe_parameters(clip, sigma, length, context.clients, self.quorum, self.colluders)


def seal_shares(client: ClientContext, state: ClientState, shares: Mapping[str, Row]) -> dict[str, Blob]:
    """Shares of this client's secret, each sealed to its holder, for this round, attempt and view."""
    purpose, group = _purpose(state), derive(state.keys.step, "shares")
    return {
        holder: Blob(client.seal_to(holder, row.astype("<u4").tobytes(), *purpose, group=group))
        for holder, row in shares.items()
        if holder != client.name
    }


def sum_shares(client: ClientContext, state: ClientState, own: Row, message: Survivors) -> Blob:
    """The sum of the survivors' shares: for one set a round, of at least quorum size, with this client in it."""
    survivors, members = message.clients, client.parameters.members(state.number)
    if client.name not in survivors or survivors != tuple(name for name in members if name in survivors):
        raise ProtocolError(f"survivors must be members of the round with {client.name} among them, got {survivors}")
    if len(survivors) < client.parameters.quorum or set(message.shares) != {*survivors} - {client.name}:
        raise ProtocolError(
            f"shares of at least {client.parameters.quorum} survivors are summed, got {len(survivors)} survivors and "
            f"shares from {sorted(message.shares)}"
        )
    total, purpose, group = own.copy(), _purpose(state), derive(state.keys.step, "shares")
    for sender, sealed in message.shares.items():
        row = client.open_from(sender, bytes(sealed.view), *purpose, group=group)
        if len(row) != 4 * total.size:
            raise ForgedError
        total += np.frombuffer(row, dtype="<u4")
    return Blob((total % Q).astype("<u4").data)


def _purpose(state: ClientState) -> tuple[str, int, int, str]:
    return "share", state.number, state.attempt, state.view


def serve_lwe_round(server: RoundServer, number: int) -> Steps:
    """One round as the server sees it."""
    parameters, state, record = server.parameters, server.state, server.open_record(number)
    total, form = FixedPointSum(parameters.length, "lwe"), lwe.FORMS[server.half.shares]
    if state.opening[0] == number and state.opening[1] < state.attempt:
        # Shares were asked for before an interruption, and no client gives them out twice: the round is void.
        server.combine(record, total, [], None, {})
        return
    round_id, members = parameters.round_id(number, state.attempt), parameters.members(number)
    uploads: dict[str, Upload] = {}
    rows: dict[int, Row] = {}

    def take_upload(client: str, reply: Message) -> None:
        if server.reported(record, client, reply, client in members):
            return
        upload = expect(reply, Upload, round_id)
        if set(upload.shares) != {*members} - {client}:
            raise ProtocolError(f"shares for the other members were expected, got {sorted(upload.shares)}")
        server.take_upload(client, upload, total, uploads)

    def take_shares(client: str, reply: Message) -> None:
        row = expect(reply, ShareSum, round_id).row
        if len(row) != 4 * form.size:
            raise ProtocolError(f"a share sum has {4 * form.size} bytes, got {len(row)}")
        rows[members.index(client)] = np.frombuffer(row.view, "<u4").astype(np.int64)

    yield from rescue(server, record, round_id, called(server, set(members)))
    answered = yield from server.ask(record, begins(server, record, round_id, set(members)), take_upload)
    yield from server.conclude(answered, number - 1)
    survivors = [client for client in answered if client in uploads]
    if server.stop(record, survivors):
        return
    if len(survivors) < parameters.quorum:
        server.combine(record, total, [], None, {})
        return
    requests: dict[str, Message] = {
        client: Survivors(
            round_id=round_id,
            clients=tuple(survivors),
            shares={sender: uploads[sender].shares[client] for sender in survivors if sender != client},
        )
        for client in survivors
    }
    state.opening = (number, state.attempt)
    yield state
    yield from server.ask(record, requests, take_shares)
    try:
        unmask(total, form, round_id, rows, parameters.quorum, len(survivors))
    except CryptoError as error:  # too few shares, or a wrong one: the round is void, the run continues
        record.dropped["(shares)"] = str(error)
        server.combine(record, total, [], None, {})
        return
    server.combine(record, total, survivors, None, uploads)


def unmask(
    total: FixedPointSum, form: lwe.Form, round_id: RoundId, rows: dict[int, Row], quorum: int, survivors: int
) -> None:
    """Rebuild the sum of the survivors' secrets from the sums of their shares, and take its mask off the total."""
    secret = rebuild(rows, quorum)
    seed = public_seed(round_id.run, round_id.number, round_id.attempt)
    total.values = lwe.unmask(total.values, form, seed, secret, survivors)


def public_seed(run: str, number: int, attempt: int) -> bytes:
    """The seed of a round's public matrix: anyone can compute it, nobody chose it."""
    return hashlib.sha256(msgspec.msgpack.encode(["paraaegis lwe matrix", run, number, attempt])).digest()
