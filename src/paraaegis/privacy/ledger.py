"""The ledger: every release is written down before it leaves, and what the budget cannot pay does not leave.

A release that was written and then lost on its way still counts. Seeded noise that is replayed bit for bit is one
release, fresh noise for the same round a second. guarantee.py reads what stands here.
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

Seen = Literal["nothing", "clear", "noised", "summed", "hidden"]
REMARK = "the paper's Remark"
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Exposure:
    """How a part of every update is seen: by the server as it passes, by the clients once it is summed and revealed.

    `noise` is what an observer meets: its own deviation, or for noise that clients share what remains of the sum's.
    """

    what: str
    server: Seen
    clients: Seen
    noise: Gaussian | None = None
    quorum: int = 0  # noise that clients share: how many, at least, and how many of them may tell theirs
    colluders: int = 0


class Release(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that one client let go in one round. `sigma` is noise of a value clipped to `clip`.

    Hidden means by a key: values under CKKS, positions of votes under the secret order. Summed means that only a noised
    sum can be seen, if nobody cheats and learning with errors is hard.
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
    run: str = ""  # a silo's ledger is that of all its runs
    model: str = ""  # digest of the model that was trained on


def releases_of(
    exposures: Iterable[Exposure],
    client: str,
    number: int,
    attempt: int = 0,
    simulated: bool = False,
    run: str = "",
    model: str = "",
) -> list[Release]:
    """What a client lets go in this round if it sends its update so."""

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


VOTES = Exposure("votes", server="hidden", clients="clear")
SAMPLES = Exposure("samples", server="clear", clients="clear")
METRICS = Exposure("metrics", server="clear", clients="nothing")
SECONDS = Exposure("seconds", server="clear", clients="nothing")


@dataclass(frozen=True)
class Budget:
    """What a client may spend: Σ (Δ/σ)² up to `limit`, with Δ = `factor`·θ, in the reading its noise was made by."""

    factor: float
    limit: float
    epsilon: float
    delta: float
    reading: str  # the unit of exact accounting, or the Remark
    fraction: float = 1.0

    def cost(self, release: Release) -> float:
        """What one release takes of the limit."""
        return (self.factor * release.clip / release.sigma) ** 2 if release.sigma > 0 else 0.0

    def text(self, spent: float) -> str:
        """What this much spending amounts to, with its unit; the Remark's figure never without the honest one."""
        if self.reading != REMARK:
            return f"ε = {self.epsilon_at(spent):.4g} at δ = {self.delta:g} ({self.reading})"
        honest = epsilon_of(spent**0.5 / self.factor, self.delta)
        return (
            f"ε = {self.epsilon_at(spent):.4g} at δ = {self.delta:g} ({REMARK}, whose unit is none; by exact "
            f"accounting, unit: client, ε = {honest:.4g})"
        )

    def epsilon_at(self, spent: float) -> float:
        """The ε that this much spending amounts to, in this budget's reading."""
        if self.reading == REMARK:
            return remark_epsilon(spent, self.delta, self.fraction)
        return epsilon_of(spent**0.5, self.delta)


class Ledger:
    """The releases of one client or, in an experiment, of all; in a file if one is given.

    With `one_owner` all releases are one silo's, which may have had other names before.
    Safe to use from threads, and from processes that share the file: each looks at what the others added first.
    """

    def __init__(self, budget: Budget | None = None, path: Path | None = None, one_owner: bool = False) -> None:
        self.budget, self._path, self._one_owner = budget, path, one_owner
        self._lock = threading.Lock()
        self._size = 0  # bytes of the file that are known here
        self._known: set[Release] = set()
        self._spent: dict[str, float] = defaultdict(float)
        self._answers: dict[tuple[str, str], set[tuple[str, int, int]]] = defaultdict(set)
        self.releases: list[Release] = []
        if path is not None and path.exists():
            self._look(path.read_bytes())

    def _look(self, news: bytes) -> None:
        """Take in what stands in the file beyond what is known."""
        whole = _whole(news)
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
        """How much of the budget the client that spent most has used; None where nothing is counted."""
        most = max(self._spent.values(), default=0.0)
        return most / self.budget.limit if self.budget and most else None

    def answers(self, client: str, model: str) -> set[tuple[str, int, int]]:
        """Run, round and attempt of each answer of a client that was trained on this model."""
        with self._lock:
            return set(self._answers["" if self._one_owner else client, model])

    def _new(self, releases: Iterable[Release]) -> list[Release]:
        """Without what is no second release: noise replayed bit for bit, or what carries no noise, told again."""
        return [one for one in releases if not ((one.simulated or not one.sigma) and one in self._known)]

    def refusal(self, releases: Sequence[Release]) -> str:
        """Why one client may not release these, and what it could; empty if it may."""
        with self._lock:
            return self._refusal(self._new(releases))

    def _refusal(self, new: Sequence[Release]) -> str:
        budget, cost = self.budget, sum(map(self._cost, new))
        if budget is None or not cost or (after := self._spent[self._owner(new[0])] + cost) <= budget.limit * _ROUNDING:
            return ""
        client, spent = new[0].client, self._spent[self._owner(new[0])]
        text = (
            f"the privacy budget of {client} is spent: {budget.text(spent)} of {budget.epsilon:g}, against "
            f"all who read its noised values; round {new[0].round} would make it {budget.text(after)}. "
            f"What fits, in a run whose spending adds to this one's: a budget of ε ≥ {budget.epsilon_at(after):.4g}"
        )
        left = budget.limit - spent
        if left <= budget.limit * 1e-9:
            return text
        more = (cost / left) ** 0.5
        sigma = more * max(release.sigma for release in new)
        return f"{text}, or noise {more:.3g} times as large (σ = {sigma:.4g}) in one more round"

    def record(self, releases: Sequence[Release]) -> None:
        """Write down what is about to leave; raises instead where the budget cannot pay for it."""
        with self._lock, self._opened() as file:
            new = self._new(releases)
            if refusal := self._refusal(new):
                raise PrivacyError(refusal)
            if file is not None and new:
                self._append(file, new)
            self._enter(new)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes] | None]:
        """The file, for this process alone, with what others wrote taken in."""
        if self._path is None:
            yield None
            return
        if self._size and not self._path.exists():
            raise RunError(f"{self._path} is gone; what was spent cannot be known; bring the file back")
        with self._path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if (size := os.fstat(file.fileno()).st_size) < self._size:
                raise RunError(
                    f"{self._path} was cut from {self._size} to {size} bytes while it was in use; what was spent "
                    "cannot be known; bring the file back"
                )
            file.seek(self._size)
            self._look(file.read())
            file.truncate(self._size)  # a line that a kill cut off never left
            yield file

    def _append(self, file: IO[bytes], releases: Sequence[Release]) -> None:
        content = b"".join(msgspec.json.encode(release) + b"\n" for release in releases)
        file.write(content)
        file.flush()
        if not all(release.simulated for release in releases):
            os.fsync(file.fileno())
        self._size += len(content)


def read_ledger(path: Path) -> list[Release]:
    """The releases in a file; a last line that a kill cut off is passed over."""
    return _parse(_whole(path.read_bytes()), path)


def _whole(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(content: bytes, path: Path | None) -> list[Release]:
    try:
        return [msgspec.json.decode(line, type=Release) for line in content.splitlines()]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RunError(f"{path} is damaged: {error}; what was spent cannot be known; bring the file back") from error
