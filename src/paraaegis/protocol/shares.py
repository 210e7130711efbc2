"""Opening a sum of masked values: clients share the secrets of their masks, and reveal only sums of these shares.

with the upload  client → server   shares of its secret, each sealed to one fellow member of the round
then             server → client   who is in the sum, and the sealed shares that these clients addressed to this one
                 client → server   the sum of these shares and its own
the server       rebuilds the sum of the secrets from a quorum of share sums; it opens the sum of the uploads, no other

Share sums for two different sets of clients would open the difference of their sums, so a client answers once per
upload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paraaegis.crypto.kdf import derive
from paraaegis.crypto.shamir import Shares, add, field_of
from paraaegis.errors import CryptoError, ForgedError, ProtocolError
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Message, RoundId, ShareSum, Survivors, Upload, expect
from paraaegis.protocol.protect import ClientHalf
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import Asked, RoundServer
from paraaegis.protocol.rows import seal_row, unpack_row
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.sums import Sum
from paraaegis.types import Blob


def seal_shares(client: ClientContext, state: ClientState, shares: Mapping[str, Shares]) -> dict[str, Blob]:
    """Shares of this client's secret, each sealed to its holder, for this round, attempt and view."""
    purpose, group = _purpose(state), derive(state.keys.step, "shares")
    return {
        holder: Blob(client.seal_to(holder, share.tobytes(), *purpose, group=group))
        for holder, share in shares.items()
        if holder != client.name
    }


def sum_shares(client: ClientContext, state: ClientState, own: Shares, message: Survivors) -> Blob:
    """The sum of the survivors' shares, if the survivors include this client and are at least a quorum."""
    survivors, members = message.clients, client.parameters.members(state.number)
    if client.name not in survivors or survivors != tuple(name for name in members if name in survivors):
        raise ProtocolError(f"survivors must be members of the round with {client.name} among them, got {survivors}")
    if len(survivors) < client.parameters.quorum or set(message.shares) != {*survivors} - {client.name}:
        raise ProtocolError(
            f"at least {client.parameters.quorum} survivors and a share from each other one are needed, got "
            f"{len(survivors)} survivors and shares from {sorted(message.shares)}"
        )
    purpose, group = _purpose(state), derive(state.keys.step, "shares")
    rows, field = [own], field_of(own)
    for sender, sealed in message.shares.items():
        row = client.open_from(sender, bytes(sealed.view), *purpose, group=group)
        try:
            rows.append(unpack_row(row, own.size, field))
        except CryptoError as error:
            raise ForgedError from error
    return row_of(client.half, state.keys.step, members.index(client.name), rows)


def row_of(half: ClientHalf, step: bytes, holder: int, rows: Iterable[Shares]) -> Blob:
    """The sum of a holder's rows as it is sent: sealed for the clients if they open the sum, not the server."""
    total = add(rows)
    return Blob(seal_row(total, step, holder) if half.opener == "clients" else total.tobytes())


def _purpose(state: ClientState) -> tuple[str, int, int, str]:
    return "share", state.number, state.attempt, state.view


def check_addressed(upload: Upload, total: Sum, client: str, members: Sequence[str]) -> None:
    """Refuse an upload without a share for each other member or, if its sum needs no shares, with any.

    Whoever receives a share that does not open ends the run. So those of a wrong size are not passed on.
    """
    holders = {*members} - {client} if total.row_bytes else set()
    if set(upload.shares) != holders:
        raise ProtocolError(
            f"the upload should contain shares for {sorted(holders) or 'nobody'}, got {sorted(upload.shares)}"
        )
    if wrong := {holder: len(share) for holder, share in upload.shares.items() if len(share) != total.share_bytes}:
        holder, size = next(iter(wrong.items()))
        raise ProtocolError(f"a sealed share has {total.share_bytes} bytes, got {size} for {holder}")


def interrupted(server: RoundServer, number: int) -> bool:
    """Whether share sums for this round were requested before an interruption: no client gives one out twice."""
    opened, attempt = server.state.opening
    return opened == number and attempt < server.state.attempt


def open_sum(
    server: RoundServer,
    record: RoundRecord,
    round_id: RoundId,
    total: Sum,
    survivors: list[str],
    uploads: Mapping[str, Upload],
) -> Asked:
    """Ask the survivors for their share sums, and open the sum. Returns who is in it; nobody if it cannot be opened."""
    members = server.parameters.members(round_id.number)
    rows: dict[int, Blob] = {}
    parameters: dict[str, Blob | None] = {}

    def take(client: str, reply: Message) -> None:
        share_sum = expect(reply, ShareSum, round_id)
        if len(share_sum.row) != total.row_bytes:
            raise ProtocolError(f"a share sum has {total.row_bytes} bytes, got {len(share_sum.row)}")
        rows[members.index(client)], parameters[client] = share_sum.row, share_sum.parameters

    requests: dict[str, Message] = {
        client: Survivors(
            round_id=round_id,
            clients=tuple(survivors),
            shares={sender: uploads[sender].shares[client] for sender in survivors if sender != client},
        )
        for client in survivors
    }
    server.state.opening = (round_id.number, round_id.attempt)
    yield server.state  # saved before anyone is asked
    yield from server.ask(record, requests, take)
    try:
        total.open(rows, server.parameters.quorum, len(survivors))
    except CryptoError as error:  # too few shares, or a wrong one: the round is void, the run continues
        record.dropped["(shares)"] = str(error)
        return []
    if total.opened is not None:
        server.take_opened(round_id.number, total.opened, survivors, parameters)
    return survivors
