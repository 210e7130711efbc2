"""The server's desk: exchanges, reports, the line of each round and the aggregates that clients may still need."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from paraaegis.crypto.mac import NONCE_BYTES, TAG_BYTES, add_tags
from paraaegis.errors import CryptoError, DriftError, LostTrustError, ProtocolError
from paraaegis.protocol.messages import (
    Aggregate,
    Begin,
    Ended,
    Frames,
    Message,
    OneTimeKey,
    Report,
    ReportOnly,
    Rescue,
    Upload,
    expect,
    pack,
    sizes,
    unpack,
)
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.state import ServerState
from paraaegis.protocol.sums import ServerHalf, Sum
from paraaegis.types import Blob, Payload


@dataclass(frozen=True)
class Exchange:
    """Messages to send; replies are handed back one at a time, None when no more will come."""

    messages: Mapping[str, Frames]


@dataclass(frozen=True)
class Reply:
    """What came back from a client: frames, or why there are none; `lost` if it was not the client that said so."""

    client: str
    frames: Frames = ()
    error: str = ""
    lost: bool = False
    sent: bool = True  # False: the message did not leave the server


ENDED = "ended the run, because a check of what the server passed on failed"
FINGERPRINTED = "models, secret orders, rosters, sample counts, elected positions or past rounds"
Keep = Callable[[Aggregate], Aggregate]
Item = Exchange | RoundRecord | ServerState | None
Steps = Generator[Item, Reply | None, None]
Asked = Generator[Item, Reply | None, list[str]]


class RoundServer:
    """Built from public parameters alone; holds no key and no model.

    `keep` is given each round's aggregate and returns the same, put away somewhere cheaper than memory.
    """

    def __init__(
        self, parameters: RunParameters, half: ServerHalf, state: ServerState, keep: Keep = lambda past: past
    ) -> None:
        self.parameters, self.half, self.state, self._keep = parameters, half, state, keep
        self.silent: set[str] = set()  # who did not answer when it was last asked
        self.needs_roll_call: set[str] = set()  # who answered with an error: what it has is asked again
        # Client → (the round in which it said so, the round whose elected positions it still has).
        self.known_positions: dict[str, tuple[int, int]] = {}
        self.rescues: dict[str, Rescue] = {}
        self.one_time_keys: dict[str, OneTimeKey] = {}  # one-time keys that a peer's model is sealed to
        self.keyless: set[str] = set()  # who has no keys of this run and needs a model that brings them
        self._started = time.perf_counter()
        self._reports: dict[str, list[Report]] = {}

    @property
    def weights(self) -> list[int]:
        """The weights of all enrolled clients."""
        return list(self.state.weights.values())

    def open_record(self, number: int) -> RoundRecord:
        """The line of a round that begins now."""
        self._started = time.perf_counter()
        elected = self.parameters.k(number) if self.half.votes else 0
        ratio, out = self.parameters.schedule.ratio_at(number), dict.fromkeys(self.state.ended, ENDED)
        return RoundRecord(round=number, ratio=ratio, elected=elected, dropped=out)

    def ask(self, record: RoundRecord, messages: Mapping[str, Message], take: Callable[[str, Message], None]) -> Asked:
        """One exchange. Returns who answered well; who did not is named in the line, with the reason."""
        packed = {id(message): pack(message) for message in messages.values()}
        frames = {client: packed[id(message)] for client, message in messages.items()}

        def count(client: str) -> None:
            # A Begin brings the aggregate of the round before it, and is counted there.
            paying = (self.state.pending or record) if isinstance(messages[client], Begin) else record
            _count_into(paying.bytes_down, sizes(messages[client], frames[client]))

        waiting, answered = set(messages), []
        reply = yield Exchange(frames)
        while reply is not None:
            if reply.client in waiting:
                waiting.discard(reply.client)
                if reply.sent:
                    count(reply.client)
                (self.silent.add if reply.lost else self.silent.discard)(reply.client)
                if self._take(record, reply, take):
                    answered.append(reply.client)
                elif not reply.lost:
                    self.needs_roll_call.add(reply.client)
            if not waiting:
                break
            reply = yield None
        for client in waiting:
            count(client)
        self.silent |= waiting
        record.dropped.update(dict.fromkeys(sorted(waiting), "did not answer in time"))
        return sorted(answered, key=self.parameters.clients.index)

    def _take(self, record: RoundRecord, reply: Reply, take: Callable[[str, Message], None]) -> bool:
        start = time.perf_counter()
        try:
            if reply.error:
                raise ProtocolError(reply.error)
            message = unpack(reply.frames)
            _count_into(record.bytes_up, sizes(message, reply.frames))
            if isinstance(message, Ended):
                self._end(reply.client)
            take(reply.client, message)
        except (DriftError, LostTrustError):
            raise
        except (ProtocolError, CryptoError) as error:
            record.dropped[reply.client] = str(error)
            return False
        finally:
            record.seconds["combine"] = record.seconds.get("combine", 0.0) + time.perf_counter() - start
        return True

    def _end(self, client: str) -> None:
        if client not in self.state.ended:
            self.state.ended.append(client)
        if len(self.parameters.clients) - len(self.state.ended) < self.parameters.quorum:
            raise LostTrustError(
                f"{', '.join(sorted(self.state.ended))} {ENDED}; fewer than {self.parameters.quorum} clients "
                "are left. Find out who changed a message or a sum"
            )
        raise ProtocolError(ENDED)

    def note(self, client: str, report: Report) -> None:
        """Keep a client's report for the lines that it belongs to."""
        self._reports.setdefault(client, []).append(report)

    def take_upload(self, client: str, upload: Upload, total: Sum, uploads: dict[str, Upload]) -> None:
        """Add an upload to the sum if it fits the others, and keep what is left of it."""
        sizes_due = (NONCE_BYTES, TAG_BYTES) if self.half.keyed else (0, 0)
        if (len(upload.nonce), len(upload.tag)) != sizes_due:
            raise ProtocolError(
                "a nonce of {} and a tag of {} bytes were expected, got {} and {}".format(
                    *sizes_due, len(upload.nonce), len(upload.tag)
                )
            )
        prints = {name: one.fingerprint for name, one in uploads.items()}
        same({**prints, client: upload.fingerprint}, FINGERPRINTED)
        total.add(upload.payload)
        uploads[client] = msgspec.structs.replace(upload, payload=Payload(upload.payload.kind, 0))
        self.note(client, upload.report)

    def reported(self, record: RoundRecord, client: str, reply: Message, member: bool) -> bool:
        """Take a report where no more was asked for, or where a member declines to take part. False: it is more."""
        if member and not isinstance(reply, ReportOnly):
            return False
        message = expect(reply, ReportOnly, self.parameters.round_id(record.round, self.state.attempt))
        if member != bool(message.declined):
            raise ProtocolError(f"{client} was {'' if member else 'not '}asked to train, got {message.declined!r}")
        if member:
            record.declined[client] = message.declined
        self.note(client, message.report)
        return True

    def stop(self, record: RoundRecord, counted: list[str]) -> bool:
        """Whether the run ends before this round because too few are willing to take part in it."""
        if not record.declined or len(counted) >= self.parameters.quorum:
            return False
        first = min(record.declined, key=self.parameters.clients.index)
        self.state.stopped = f"round {record.round}: {record.declined[first]}"
        return True

    def combine(
        self, record: RoundRecord, total: Sum, counted: list[str], elected: Blob | None, uploads: Mapping[str, Upload]
    ) -> None:
        """Line 18 of Algorithm 1: close the sum and add up its tags, or abort the round where too few are left."""
        start = time.perf_counter()
        number, attempt = record.round, self.state.attempt
        aggregate = Aggregate(number, attempt)
        if len(counted) >= self.parameters.quorum:
            aggregate = Aggregate(
                number,
                attempt,
                tuple(counted),
                elected,
                total.close(),
                tuple(uploads[client].nonce for client in counted),
                add_tags(uploads[client].tag for client in counted),
            )
            record.clients = counted
        now = time.perf_counter()
        record.seconds["combine"] = record.seconds.get("combine", 0.0) + now - start
        record.seconds["wall"] = now - self._started
        for phase in ("train", "vote", "protect"):
            self._mean_into(record, phase, self._reports)
        self._reports = {}
        self._remember(record, aggregate)

    def _remember(self, record: RoundRecord, aggregate: Aggregate) -> None:
        state = self.state
        state.number, state.pending = record.round, record
        oldest = max(min(state.seen.values()), record.round - self.parameters.history)
        state.history = [past for past in state.history if past.number > oldest] + [self._keep(aggregate)]

    def conclude(self, answered: list[str], applied: int) -> Iterator[RoundRecord]:
        """Give out the line of round `applied`, now that those who answered have applied it."""
        self.state.seen.update(dict.fromkeys(answered, applied))
        record, self.state.pending = self.state.pending, None
        if record is None:
            return
        reports = {client: self._reports[client] for client in answered if client in self._reports}
        for phase in ("reveal", "evaluate"):
            self._mean_into(record, phase, reports)
        measured = {client: found[0].metrics for client, found in reports.items() if found[0].metrics}
        for name in sorted({name for metrics in measured.values() for name in metrics}):
            found = {client: metrics[name] for client, metrics in measured.items() if name in metrics}
            weight = sum(self.state.weights[client] for client in found)
            record.metrics[name] = sum(value * self.state.weights[client] / weight for client, value in found.items())
        self.state.lines += 1
        yield record

    def _mean_into(self, record: RoundRecord, phase: str, reports: Mapping[str, list[Report]]) -> None:
        """The mean over clients of what they say that they spent in this phase."""
        told = [report.seconds.get(phase, math.nan) for found in reports.values() for report in found]
        spent = [seconds for seconds in told if math.isfinite(seconds)]
        if spent:
            record.seconds[phase] = sum(spent) / len(spent)


def same(values: Mapping[str, str], what: str, wanted: str | None = None) -> None:
    """Refuse clients that differ, naming them."""
    usual = wanted or (Counter(values.values()).most_common(1)[0][0] if values else "")
    odd = sorted(client for client, value in values.items() if value != usual)
    if odd:
        raise DriftError(f"{what} differ from the other clients' at {', '.join(odd)}; nothing was aggregated")


def _count_into(counted: dict[str, int], more: Mapping[str, int]) -> None:
    for kind, size in more.items():
        counted[kind] = counted.get(kind, 0) + size
