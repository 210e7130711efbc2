"""The server's bookkeeping: exchanges, reports, round records, and the aggregates that clients may still need."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from paraaegis.crypto.mac import NONCE_BYTES, TAG_BYTES, add_tags
from paraaegis.errors import CryptoError, DriftError, LostTrustError, ProtocolError
from paraaegis.fixed_point import from_fixed_point
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
from paraaegis.protocol.voting import unpack_positions
from paraaegis.types import Blob, FixedPoint, Metrics, Payload, Vector


@dataclass(frozen=True)
class Exchange:
    """Messages to send; replies are handed back one at a time, then None when there are no more."""

    messages: Mapping[str, Frames]


@dataclass(frozen=True)
class Reply:
    """A client's reply: frames, or why there are none; `lost` if that reason is not from the client itself."""

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


class Served(Protocol):
    """A model that the server makes of the mean updates that it opens."""

    def take(self, number: int, mean: Vector) -> None:
        """Take the mean update of a round."""

    def measure(self, number: int) -> Metrics:
        """Metrics of the model after this round."""


class RoundServer:
    """The server's side of a run, built from public parameters alone; holds no key and no model.

    `keep` receives each round's aggregate and returns the same one, stored somewhere cheaper than memory.
    """

    def __init__(
        self,
        parameters: RunParameters,
        half: ServerHalf,
        state: ServerState,
        keep: Keep = lambda past: past,
        served: Served | None = None,
    ) -> None:
        self.parameters, self.half, self.state, self._keep, self._served = parameters, half, state, keep, served
        self._taken = 0  # the last round whose mean update `served` was given, until it has measured its model
        self._measured: dict[int, Metrics] = {}  # by round
        self.silent: set[str] = set()  # clients that did not answer when last asked
        self.needs_roll_call: set[str] = set()  # clients that answered with an error: ask again what they have
        # By client: the round in which it last said hello, and the round whose elected positions it knew then.
        self.known_positions: dict[str, tuple[int, int]] = {}
        self.rescues: dict[str, Rescue] = {}
        self.one_time_keys: dict[str, OneTimeKey] = {}  # to which a peer's model is sealed
        self.keyless: set[str] = set()  # clients without keys for this run, which need a peer's model and keys
        self._started = time.perf_counter()
        self._reports: dict[str, list[Report]] = {}

    def open_record(self, number: int) -> RoundRecord:
        """The record of a round that begins now."""
        self._started = time.perf_counter()
        elected = self.parameters.k(number) if self.half.votes else 0
        ratio, out = self.parameters.schedule.ratio_at(number), dict.fromkeys(self.state.ended, ENDED)
        return RoundRecord(round=number, ratio=ratio, elected=elected, dropped=out)

    def ask(self, record: RoundRecord, messages: Mapping[str, Message], take: Callable[[str, Message], None]) -> Asked:
        """One exchange. Returns the clients whose answers were accepted; the record says why others were dropped."""
        packed = {id(message): pack(message) for message in messages.values()}
        frames = {client: packed[id(message)] for client, message in messages.items()}

        def count(client: str) -> None:
            # A Begin carries the previous round's aggregate, so it counts towards that round.
            charged = (self.state.pending or record) if isinstance(messages[client], Begin) else record
            _count_into(charged.bytes_down, sizes(messages[client], frames[client]))

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
        """Keep a client's report for the round records that it belongs to."""
        self._reports.setdefault(client, []).append(report)

    def take_upload(self, client: str, upload: Upload, total: Sum, uploads: dict[str, Upload]) -> None:
        """Add an upload to the sum if it agrees with the others, and keep it without its payload."""
        sizes_due = (NONCE_BYTES, TAG_BYTES) if self.half.keyed else (0, 0)
        if (len(upload.nonce), len(upload.tag)) != sizes_due:
            raise ProtocolError(
                "expected a nonce of {} bytes and a tag of {} bytes, got {} and {}".format(
                    *sizes_due, len(upload.nonce), len(upload.tag)
                )
            )
        prints = {name: one.fingerprint for name, one in uploads.items()}
        same({**prints, client: upload.fingerprint}, FINGERPRINTED)
        total.add(upload.payload)
        uploads[client] = msgspec.structs.replace(upload, payload=Payload(upload.payload.kind, 0))
        self.note(client, upload.report)

    def take_opened(
        self, number: int, steps: FixedPoint, counted: list[str], parameters: Mapping[str, Blob | None]
    ) -> None:
        """Add the mean update of a round whose sum the server opened to what has changed since the first model.

        `parameters` are the elected ones, as each client said, if there was a vote.
        """
        weights = self.state.weights
        mean = from_fixed_point(steps, sum(weights.values()) / sum(weights[client] for client in counted))
        if self.half.votes:
            told = {client: "" if blob is None else bytes(blob.view).hex() for client, blob in parameters.items()}
            same(told, "the elected parameters")
            positions = next(blob for blob in parameters.values() if blob is not None)
            elected = unpack_positions(positions, self.parameters.k(number), self.parameters.length)
            whole = np.zeros(self.parameters.length, dtype=np.float32)
            whole[elected] = mean
            mean = whole
        before = np.frombuffer(self.state.change, dtype=np.float32) if self.state.change else np.float32(0)
        self.state.change = (before + mean).tobytes()
        if self._served is not None:
            self._served.take(number, mean)
            self._taken = number

    def measure(self) -> None:
        """Measure the model that the server made in the last round; called when its state has been saved."""
        if self._served is not None and 0 < self._taken == self.state.number:
            self._measured[self._taken], self._taken = self._served.measure(self._taken), 0

    def reported(self, record: RoundRecord, client: str, reply: Message, member: bool) -> bool:
        """Take a report if no more was asked for, or if a member declines to take part; False for any other reply."""
        if member and not isinstance(reply, ReportOnly):
            return False
        message = expect(reply, ReportOnly, self.parameters.round_id(record.round, self.state.attempt))
        if member != bool(message.declined):
            raise ProtocolError(
                f"{client} was asked to train, but sent only a report, without a reason for declining"
                if member
                else f"{client} was not asked to train but gave a reason for declining: {message.declined!r}"
            )
        if member:
            record.declined[client] = message.declined
        self.note(client, message.report)
        return True

    def stop(self, record: RoundRecord, counted: list[str]) -> bool:
        """Whether the run ends before this round because too few clients are willing to take part in it."""
        if not record.declined or len(counted) >= self.parameters.quorum:
            return False
        first = min(record.declined, key=self.parameters.clients.index)
        self.state.stopped = f"round {record.round}: {record.declined[first]}"
        return True

    def combine(
        self, record: RoundRecord, total: Sum, counted: list[str], elected: Blob | None, uploads: Mapping[str, Upload]
    ) -> None:
        """Line 18 of Algorithm 1: close the sum and add up its tags, or void the round if too few clients are left."""
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
        """Yield the record of round `applied`, now that the clients that answered have applied it."""
        self.state.seen.update(dict.fromkeys(answered, applied))
        record, self.state.pending = self.state.pending, None
        if record is None:
            return
        reports = {client: self._reports[client] for client in answered if client in self._reports}
        for phase in ("reveal", "evaluate"):
            self._mean_into(record, phase, reports)
        measured = {client: sent[0].metrics for client, sent in reports.items() if sent[0].metrics}
        record.metrics = _means(measured, self.state.weights) | self._measured.pop(record.round, {})
        record.sites = measured if len(measured) > 1 else {}
        self.state.lines += 1
        yield record

    def _mean_into(self, record: RoundRecord, phase: str, reports: Mapping[str, list[Report]]) -> None:
        """Record the mean over clients of the seconds that they report for this phase."""
        reported = [report.seconds.get(phase, math.nan) for sent in reports.values() for report in sent]
        spent = [seconds for seconds in reported if math.isfinite(seconds)]
        if spent:
            record.seconds[phase] = sum(spent) / len(spent)


def same(values: Mapping[str, str], what: str, wanted: str | None = None) -> None:
    """Refuse clients whose value differs from the others', and name them."""
    usual = wanted or (Counter(values.values()).most_common(1)[0][0] if values else "")
    differing = sorted(client for client, value in values.items() if value != usual)
    if differing:
        raise DriftError(f"{what} differ from the other clients' at {', '.join(differing)}; nothing was aggregated")


def _means(measured: Mapping[str, Metrics], weights: Mapping[str, int]) -> Metrics:
    """Each metric's weighted mean over the clients that reported a number; NaN if none did, or one is infinite.

    NaN is ordinary: a site whose test data has one class has no AUC.
    """
    means = {}
    for name in dict.fromkeys(name for metrics in measured.values() for name in metrics):
        values = {client: metrics[name] for client, metrics in measured.items() if name in metrics}
        values = {client: value for client, value in values.items() if not math.isnan(value)}
        total = sum(weights[client] for client in values)
        mean = sum(value * weights[client] / total for client, value in values.items()) if values else math.nan
        means[name] = mean if math.isfinite(mean) else math.nan  # as it is read back from a file
    return means


def _count_into(counted: dict[str, int], more: Mapping[str, int]) -> None:
    for kind, size in more.items():
        counted[kind] = counted.get(kind, 0) + size
