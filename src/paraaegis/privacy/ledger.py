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
from typing import IO, Literal

import msgspec

from paraaegis.errors import PrivacyError, RunError
from paraaegis.privacy.calibrate import epsilon_of, remark_epsilon
from paraaegis.privacy.gaussian import Gaussian

Seen = Literal["nothing", "clear", "noised", "summed", "hidden", "masked"]
REMARK = "the paper's Remark"
_ROUNDING = 1 + 1e-9


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
VOTES = Exposure("votes", server="hidden", clients="clear")
OPEN_VOTES = Exposure("votes", server="clear", clients="clear")  # if the server learns what positions stand for
SAMPLES = Exposure("samples", server="clear", clients="clear")
METRICS = Exposure("metrics", server="clear", clients="nothing")
SECONDS = Exposure("seconds", server="clear", clients="nothing")


@dataclass(frozen=True)
class Budget:
    """What a client may spend: Σ (Δ/σ)² up to `limit`, with Δ = `factor`·θ, in the reading that set its noise."""

    factor: float
    limit: float
    epsilon: float
    delta: float
    reading: str  # the unit of exact accounting, or the Remark
    fraction: float = 1.0

    def cost(self, release: Release) -> float:
        """What one release uses of the limit."""
        return (self.factor * release.clip / release.sigma) ** 2 if release.sigma > 0 else 0.0

    def text(self, spent: float) -> str:
        """The ε of this much spending, with its unit; the Remark's ε is never given without the exact one."""
        if self.reading != REMARK:
            return f"ε = {self.epsilon_at(spent):.4g} at δ = {self.delta:g} ({self.reading})"
        exact = epsilon_of(spent**0.5 / self.factor, self.delta)
        return (
            f"ε = {self.epsilon_at(spent):.4g} at δ = {self.delta:g} ({REMARK}, which has no unit of privacy; by exact "
            f"accounting, unit: client, ε = {exact:.4g})"
        )

    def epsilon_at(self, spent: float) -> float:
        """The ε of this much spending, in this budget's reading."""
        if self.reading == REMARK:
            return remark_epsilon(spent, self.delta, self.fraction)
        return epsilon_of(spent**0.5, self.delta)


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
        self._spent: dict[str, float] = defaultdict(float)
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
            self._spent[self._owner(release)] += self._cost(release)
            if release.model:
                answer = release.run, release.round, release.attempt
                self._answers[self._owner(release), release.model].add(answer)

    def _owner(self, release: Release) -> str:
        return "" if self._one_owner else release.client

    def _cost(self, release: Release) -> float:
        return self.budget.cost(release) if self.budget else 0.0

    @property
    def share(self) -> float | None:
        """The fraction of the budget used by the client that spent most; None if nothing is counted."""
        most = max(self._spent.values(), default=0.0)
        return most / self.budget.limit if self.budget and most else None

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
        budget, cost = self.budget, sum(map(self._cost, new))
        if budget is None or not cost or (after := self._spent[self._owner(new[0])] + cost) <= budget.limit * _ROUNDING:
            return ""
        client, spent = new[0].client, self._spent[self._owner(new[0])]
        text = (
            f"the privacy budget of {client} is spent: {budget.text(spent)} of {budget.epsilon:g}, against "
            f"everyone who reads its noised values; round {new[0].round} would make it {budget.text(after)}. "
            f"To continue on top of what is already spent, set a budget of ε ≥ {budget.epsilon_at(after):.4g}"
        )
        left = budget.limit - spent
        if left <= budget.limit * 1e-9:
            return text
        more = (cost / left) ** 0.5
        sigma = more * max(release.sigma for release in new)
        return f"{text}, or noise {more:.3g} times as large (σ = {sigma:.4g}) for one more round"

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
