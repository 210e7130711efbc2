"""The messages between client and server: typed, versioned, length-checked, never pickled.

A message is sent as frames: a msgpack header, then its blobs as they are. The header holds each blob's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from paraaegis.errors import ProtocolError
from paraaegis.plural import plural
from paraaegis.types import Blob, Buffer, Metrics, Payload, primed

VERSION = 5
Frames = tuple[Buffer, ...]


class RoundId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run, round and attempt of a message; both sides know them before they read the rest. Rounds count from 1."""

    run: str
    method: str
    length: int
    number: int
    attempt: int
    version: int = VERSION


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client reports next to its values: metrics of its model after `applied` rounds, seconds by phase."""

    applied: int
    metrics: Metrics = {}
    seconds: dict[str, float] = {}


class Aggregate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One round's outcome: the sum over `clients`, with the nonces of their uploads. A void round has no payload.

    `elected` is left out for clients that took part, since they know it. `tag` is the sum of the uploads' tags.
    """

    number: int
    attempt: int
    clients: tuple[str, ...] = ()
    elected: Blob | None = None
    payload: Payload | None = None
    nonces: tuple[bytes, ...] = ()
    tag: bytes = b""


class Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    rename={"round_id": "where"},
):
    """Any message."""

    round_id: RoundId


class Rescue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peer's model and keys after `applied` rounds, sealed to a client that fell behind the kept aggregates."""

    applied: int
    sender: str
    once: bytes  # the one-time public key that it is sealed to
    sealed: Blob


class RollCall(Message, frozen=True, tag="roll-call"):
    """Server: asks who is present. `joined` is another client's proof that it has the keys of run `root`."""

    root: int = 0
    joined: str = ""


class OneTimeKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's one-time public key, and for each fellow client a proof that it is this client's."""

    public: bytes
    proofs: dict[str, bytes]


class Hello(Message, frozen=True, tag="hello"):
    """Client: digests of configuration and first model, its weight, and a proof of which keys it has."""

    config: str
    model: str
    weight: int
    joined: str
    root: int  # index of the root from which it derived this run's keys
    once: OneTimeKey  # to which a peer would seal its model
    proofs: dict[str, bytes] = {}  # of its weight, one for each fellow client
    applied: int = 0  # rounds in its model
    holds: int = 0  # the round whose elected positions it still knows


class Begin(Message, frozen=True, tag="begin"):
    """Server: the aggregates this client has not seen. Then the client trains or, without `train`, only reports."""

    aggregates: tuple[Aggregate, ...]
    train: bool = True
    counts: dict[str, int] = {}  # every client's weight, unless weights are uniform
    proofs: dict[str, bytes] = {}  # of these weights, each made by its client for the receiver
    rescue: Rescue | None = None


class Ballot(Message, frozen=True, tag="ballot"):
    """Client: its k votes in the secret order of the round."""

    votes: Blob
    fingerprint: str
    report: Report


class Elected(Message, frozen=True, tag="elected"):
    """Server: the k positions with the most votes."""

    positions: Blob


class Upload(Message, frozen=True, tag="upload"):
    """Client: the protected update."""

    payload: Payload
    fingerprint: str
    report: Report
    nonce: bytes = b""  # fresh for each upload
    tag: bytes = b""
    shares: dict[str, Blob] = {}  # of its mask's secret, one sealed to each fellow member


class Survivors(Message, frozen=True, tag="survivors"):
    """Server: whose uploads were summed, and the sealed shares that these clients addressed to this one."""

    clients: tuple[str, ...]
    shares: dict[str, Blob]


class ShareSum(Message, frozen=True, tag="share-sum"):
    """Client: the sum of the survivors' shares that it holds, including its own.

    `parameters` are the indices of the elected ones, if the server opens the sum.
    """

    row: Blob
    parameters: Blob | None = None


class Finish(Message, frozen=True, tag="finish"):
    """Server: the last aggregates; the run is over."""

    aggregates: tuple[Aggregate, ...]
    counts: dict[str, int] = {}
    proofs: dict[str, bytes] = {}
    rescue: Rescue | None = None


class Receiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client that fell far behind: its one-time key, the number of rounds it has applied, and a proof of both."""

    once: bytes
    applied: int
    proof: bytes


class SnapshotRequest(Message, frozen=True, tag="peek"):
    """Server: asks for model and keys, sealed to these clients."""

    receivers: dict[str, Receiver]


class Snapshot(Message, frozen=True, tag="snapshot"):
    """Client: its model and keys after `applied` rounds, sealed to each receiver. The server cannot open it."""

    applied: int
    sealed: dict[str, Blob]


class ReportOnly(Message, frozen=True, tag="reported"):
    """Client: only a report; `declined` says why, if more was asked for."""

    report: Report
    declined: str = ""


class Ended(Message, frozen=True, tag="ended"):
    """Client: a check of what the server passed on has failed; from then on the client sends nothing else."""


AnyMessage = (
    RollCall
    | Hello
    | Begin
    | Ballot
    | Elected
    | Upload
    | Survivors
    | ShareSum
    | SnapshotRequest
    | Snapshot
    | Finish
    | ReportOnly
    | Ended
)
primed(AnyMessage)
Some = TypeVar("Some", bound=Message)


def pack(message: Message | Aggregate) -> Frames:
    """The frames of a message; blobs are not copied."""
    blobs: list[Buffer] = []

    def aside(value: Any) -> int:
        if not isinstance(value, Blob):
            raise TypeError(f"a message cannot hold a {type(value).__name__}")
        blobs.append(value.view)
        return len(value)

    header = msgspec.msgpack.encode(message, enc_hook=aside)
    return (header, *blobs)


def unpack(frames: Sequence[Buffer]) -> Message:
    """The message in these frames; refuses foreign, truncated or surplus bytes."""
    message: Message = _unpacked(frames, AnyMessage)
    return message


def unpack_aggregate(frames: Sequence[Buffer]) -> Aggregate:
    """The aggregate in these frames."""
    aggregate: Aggregate = _unpacked(frames, Aggregate)
    return aggregate


def _unpacked(frames: Sequence[Buffer], kind: Any) -> Any:
    if not frames:
        raise ProtocolError("a message needs at least one frame, got none")
    rest: Iterator[Buffer] = iter(frames[1:])

    def take(kind: type, size: Any) -> Blob:
        blob = Blob(next(rest, b""))
        if kind is not Blob or len(blob) != size:
            raise ValueError(f"expected a blob of {size} bytes, got {len(blob)}")
        return blob

    try:
        message = msgspec.msgpack.decode(frames[0], type=kind, dec_hook=take)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message of this protocol: {error}") from error
    if (surplus := sum(1 for _ in rest)) > 0:
        raise ProtocolError(f"{type(message).__name__} has {plural(surplus, 'surplus frame')}")
    return message


def expect(message: Message, kind: type[Some], round_id: RoundId) -> Some:
    """The message, if it is of the expected kind; refuses one of another kind, run, round, length or method."""
    if not isinstance(message, kind):
        raise ProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    if message.round_id != round_id:
        wrong = [
            f"expected {name} {getattr(round_id, name)!r}, got {getattr(message.round_id, name)!r}"
            for name in RoundId.__struct_fields__
            if getattr(round_id, name) != getattr(message.round_id, name)
        ]
        if message.round_id.version != round_id.version:
            wrong.append("every silo and the server must run the same version of paraaegis")
        raise ProtocolError(f"{kind.__name__} does not belong here: {'; '.join(wrong)}")
    return message


def sizes(message: Message, frames: Frames) -> dict[str, int]:
    """Bytes of a message by kind: ballot, elected, ckks, grid …, and the header."""
    counted = {"header": len(frames[0])}
    for kind, blob in _blobs(message):
        counted[kind] = counted.get(kind, 0) + len(blob)
    return counted


def _blobs(message: Message) -> Iterator[tuple[str, Blob]]:
    match message:
        case Ballot():
            yield "ballot", message.votes
        case Elected():
            yield "elected", message.positions
        case Upload():
            yield from (("shares", blob) for blob in message.shares.values())
            yield from payload_blobs(message.payload)
        case Survivors():
            yield from (("shares", blob) for blob in message.shares.values())
        case ShareSum():
            yield "shares", message.row
            if message.parameters is not None:
                yield "elected", message.parameters
        case Snapshot():
            yield from (("snapshot", blob) for blob in message.sealed.values())
        case Begin() | Finish():
            yield from _aggregate_blobs(message)


def _aggregate_blobs(message: Begin | Finish) -> Iterator[tuple[str, Blob]]:
    if message.rescue is not None:
        yield "snapshot", message.rescue.sealed
    for aggregate in message.aggregates:
        if aggregate.elected is not None:
            yield "elected", aggregate.elected
        if aggregate.payload is not None:
            yield from payload_blobs(aggregate.payload)


def payload_blobs(payload: Payload) -> Iterator[tuple[str, Blob]]:
    """The kind and bytes of each chunk of a payload."""
    for chunk in payload.chunks:
        yield payload.kind, chunk
    for part in payload.parts:
        yield from payload_blobs(part)
