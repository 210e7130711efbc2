"""The ledger: every release is recorded before it is sent, and a release that exceeds the budget is not sent.

A recorded release counts even if it was lost in transit. Seeded noise that is replayed bit for bit is one release;
fresh noise for the same round is a second one. guarantee.py derives guarantees from the ledger.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import msgspec

from paraaegis.errors import PrivacyError, RunError
from paraaegis.privacy.gaussian import Gaussian

Seen = Literal["nothing", "clear", "noised", "summed", "hidden", "masked"]


@dataclass(frozen=True)
class Exposure:
    """How a part of every update is seen: by the server in transit, by the clients once it is summed and revealed.

    `noise` is the noise that protects it: the client's own, or, if clients share the noise of a sum, what remains of
    it once colluders have subtracted theirs.
    """

    what: str
    server: Seen
    clients: Seen
    noise: Gaussian | None = None
    quorum: int = 0  # for noise that clients share: by at least how many, and how many of them may reveal theirs
    colluders: int = 0


class Release(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that one client released in one round. `sigma` is the std of the noise on a value clipped to `clip`.

    A record-private training is recorded as well, before it starts: `sigma` is that of the noise on the sum of a step's
    gradients, each clipped to `clip`. Whatever is released of its result needs no further accounting.

    "hidden" means hidden by a key: values under CKKS, positions of votes under the secret order. "masked" means that no
    key opens it, only its sum with others: values under one-time secrets. "summed" means that only its sum with others
    can be seen, without noise if `sigma` is 0. Both rest on the hardness of learning with errors, and on a quorum that
    does not help an attacker.
    """

    round: int
    client: str
    what: str
    server: Seen
    clients: Seen
    attempt: int = 0
    clip: float = 0.0
    sigma: float = 0.0
    quorum: int = 0  # as in Exposure
    colluders: int = 0
    sample_rate: float = 0.0  # of a training: the probability that a step draws a record, and its steps
    steps: int = 0
    simulated: bool = False
    run: str = ""  # a deployed client keeps one ledger for all its runs
    model: str = ""  # digest of the model that training started from
    question: str = ""  # digest of what a Flower app was asked to evaluate


def releases_of(
    exposures: Iterable[Exposure],
    client: str,
    number: int,
    attempt: int = 0,
    simulated: bool = False,
    run: str = "",
    model: str = "",
) -> list[Release]:
    """A client's releases in this round if its update has these exposures."""

    def release(part: Exposure) -> Release:
        sigma = part.noise.sigmas[number - 1] if part.noise else 0.0
        return Release(
            round=number,
            client=client,
            what=part.what,
            server=part.server,
            clients=part.clients,
            attempt=attempt,
            clip=part.noise.clip if part.noise and sigma else 0.0,
            sigma=sigma,
            quorum=part.quorum,
            colluders=part.colluders,
            simulated=simulated,
            run=run,
            model=model,
        )

    return [release(part) for part in exposures]


# The parts of an update by the names under which ledgers store them. "inside" are the elected values, which the paper's
# methods put inside the ciphertext; "outside" are the rest. Methods without a vote have one part, the whole "update".
ELECTED, REST, WHOLE = "inside", "outside", "update"
TRAINING = "training"
VOTES = Exposure("votes", server="hidden", clients="clear")
OPEN_VOTES = Exposure("votes", server="clear", clients="clear")  # if the server learns what positions stand for
SAMPLES = Exposure("samples", server="clear", clients="clear")
METRICS = Exposure("metrics", server="clear", clients="nothing")
SECONDS = Exposure("seconds", server="clear", clients="nothing")


class Budget(Protocol):
    """What a client may spend, in numbers or anything else that adds up."""

    @property
    def nothing(self) -> Any:
        """What a client has spent at first."""

    @property
    def reading(self) -> str:
        """The unit of ε, or by which formula it is counted."""

    def cost(self, release: Release) -> Any:
        """What one release uses."""

    def fits(self, spent: Any) -> bool:
        """Whether this much may be spent."""

    def share(self, spent: Any) -> float:
        """The fraction of the budget that this is."""

    def refusal(self, spent: Any, cost: Any, new: Sequence[Release]) -> str:
        """Why a client that has spent this much may not release these of this cost, and what it could do instead."""


class Ledger:
    """The releases of one client or, in an experiment, of all clients; in a file if one is given.

    With `one_owner` all releases belong to one client, which may have had other names before.
    Safe to use from threads, and from processes that share the file: each first reads what the others have added.
    """

    def __init__(self, budget: Budget | None = None, path: Path | None = None, one_owner: bool = False) -> None:
        self.budget, self._path, self._one_owner = budget, path, one_owner
        self._lock = threading.Lock()
        self._size = 0  # bytes of the file read so far
        self._known: set[Release] = set()
        self._spent: dict[str, Any] = {}
        self._answers: dict[tuple[str, str], set[tuple[str, int, int]]] = defaultdict(set)
        self.releases: list[Release] = []
        if path is not None and path.exists():
            self._take(path.read_bytes())

    def _take(self, content: bytes) -> None:
        """Add the releases from a part of the file that has not been read yet."""
        whole = _whole(content)
        self._enter(_parse(whole, self._path))
        self._size += len(whole)

    def _enter(self, releases: Sequence[Release]) -> None:
        self.releases += releases
        self._known.update(releases)
        for release in releases:
            if self.budget:
                self._spent[self._owner(release)] = self._spent_by(release) + self.budget.cost(release)
            if release.model:
                answer = release.run, release.round, release.attempt
                self._answers[self._owner(release), release.model].add(answer)

    def _owner(self, release: Release) -> str:
        return "" if self._one_owner else release.client

    def _spent_by(self, release: Release) -> Any:
        """What the owner of a release has spent."""
        return self._spent.get(self._owner(release), self.budget.nothing if self.budget else None)

    @property
    def share(self) -> float | None:
        """The fraction of the budget used by the client that spent most; None if nothing is counted."""
        spent = [one for one in self._spent.values() if one]
        return max(map(self.budget.share, spent)) if self.budget and spent else None

    def answers(self, client: str, model: str) -> set[tuple[str, int, int]]:
        """Run, round and attempt of each of a client's answers that was trained from this model."""
        with self._lock:
            return set(self._answers["" if self._one_owner else client, model])

    def _new(self, releases: Iterable[Release]) -> list[Release]:
        """The releases that count: noise replayed bit for bit, or a value without noise sent again, does not."""
        return [each for each in releases if not ((each.simulated or not each.sigma) and each in self._known)]

    def refusal(self, releases: Sequence[Release]) -> str:
        """Why one client may not release these, and what it could release instead; empty if it may."""
        with self._lock:
            return self._refusal(self._new(releases))

    def _refusal(self, new: Sequence[Release]) -> str:
        budget = self.budget
        if budget is None or not (cost := sum(map(budget.cost, new), budget.nothing)):
            return ""
        spent = self._spent_by(new[0])
        return "" if budget.fits(spent + cost) else budget.refusal(spent, cost, new)

    def record(self, releases: Sequence[Release]) -> None:
        """Record what is about to be sent; raises instead if it exceeds the budget."""
        with self._lock, self._opened() as file:
            new = self._new(releases)
            if refusal := self._refusal(new):
                raise PrivacyError(refusal)
            if file is not None and new:
                self._append(file, new)
            self._enter(new)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes] | None]:
        """The file, locked for this process, after reading what others have added."""
        if self._path is None:
            yield None
            return
        if self._size and not self._path.exists():
            raise RunError(f"{self._path} is missing, so the privacy spent is unknown; restore the file")
        with self._path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if (size := os.fstat(file.fileno()).st_size) < self._size:
                raise RunError(
                    f"{self._path} shrank from {self._size} to {size} bytes while it was in use, so the privacy spent "
                    "is unknown; restore the file"
                )
            file.seek(self._size)
            self._take(file.read())
            file.truncate(self._size)  # a line cut off by a kill was never sent
            yield file

    def _append(self, file: IO[bytes], releases: Sequence[Release]) -> None:
        content = b"".join(msgspec.json.encode(release) + b"\n" for release in releases)
        file.write(content)
        file.flush()
        if not all(release.simulated for release in releases):
            os.fsync(file.fileno())
        self._size += len(content)


def read_ledger(path: Path) -> list[Release]:
    """The releases in a file; a last line cut off by a kill is skipped."""
    return _parse(_whole(path.read_bytes()), path)


def _whole(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(content: bytes, path: Path | None) -> list[Release]:
    try:
        return [msgspec.json.decode(line, type=Release) for line in content.splitlines()]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RunError(f"{path} is damaged: {error}; the privacy spent is unknown; restore the file") from error
