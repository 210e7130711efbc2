"""The ledger: every release is written down before it leaves, and what the budget cannot pay does not leave.

A release that was written and then lost on its way still counts. Seeded noise that is replayed bit for bit is one
release, fresh noise for the same round a second. guarantee.py reads what stands here.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import msgspec

from paraaegis.errors import PrivacyError, RunError
from paraaegis.privacy.calibrate import epsilon_of, remark_epsilon
from paraaegis.privacy.gaussian import Gaussian

Seen = Literal["nothing", "clear", "noised", "summed", "hidden"]
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
    simulated: bool = False


def releases_of(
    exposures: Iterable[Exposure], client: str, number: int, attempt: int = 0, simulated: bool = False
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
            simulated=simulated,
        )

    return [release(part) for part in exposures]


VOTES = Exposure("votes", server="hidden", clients="clear")
SAMPLES = Exposure("samples", server="clear", clients="clear")
METRICS = Exposure("metrics", server="clear", clients="nothing")


@dataclass(frozen=True)
class Budget:
    """What a client may spend: Σ (Δ/σ)² up to `limit`, with Δ = `factor`·θ, in the reading its noise was made by."""

    factor: float
    limit: float
    epsilon: float
    delta: float
    reading: str  # the unit of exact accounting, or "the paper's Remark"
    fraction: float = 1.0

    def cost(self, release: Release) -> float:
        """What one release takes of the limit."""
        return (self.factor * release.clip / release.sigma) ** 2 if release.sigma > 0 else 0.0

    def epsilon_at(self, spent: float) -> float:
        """The ε that this much spending amounts to, in this budget's reading."""
        if self.reading == "the paper's Remark":
            return remark_epsilon(spent, self.delta, self.fraction)
        return epsilon_of(spent**0.5, self.delta)


class Ledger:
    """The releases of one client or, in an experiment, of all; in a file if one is given. Safe to use from threads."""

    def __init__(self, budget: Budget | None = None, path: Path | None = None) -> None:
        self.budget, self._path = budget, path
        self._lock = threading.Lock()
        self.releases: list[Release] = read_ledger(path) if path is not None and path.exists() else []
        self._known = set(self.releases)
        self._spent: dict[str, float] = defaultdict(float)
        for release in self.releases:
            self._spent[release.client] += self._cost(release)

    def _cost(self, release: Release) -> float:
        return self.budget.cost(release) if self.budget else 0.0

    @property
    def share(self) -> float | None:
        """How much of the budget the client that spent most has used; None where nothing is counted."""
        most = max(self._spent.values(), default=0.0)
        return most / self.budget.limit if self.budget and most else None

    def _new(self, releases: Iterable[Release]) -> list[Release]:
        return [release for release in releases if not (release.simulated and release in self._known)]

    def refusal(self, releases: Sequence[Release]) -> str:
        """Why one client may not release these, and what it could; empty if it may."""
        with self._lock:
            return self._refusal(self._new(releases))

    def _refusal(self, new: Sequence[Release]) -> str:
        budget, cost = self.budget, sum(map(self._cost, new))
        if budget is None or not cost or (after := self._spent[new[0].client] + cost) <= budget.limit * _ROUNDING:
            return ""
        client, spent = new[0].client, self._spent[new[0].client]
        text = (
            f"the privacy budget of {client} is spent: ε = {budget.epsilon_at(spent):.4g} of {budget.epsilon:g} at "
            f"δ = {budget.delta:g} ({budget.reading}, against those who read what it noised); round {new[0].round} "
            f"would make it {budget.epsilon_at(after):.4g}. "
        )
        left = budget.limit - spent
        if left <= budget.limit * 1e-9:
            return text + f"What would fit: a budget of ε ≥ {budget.epsilon_at(after):.4g}"
        more = (cost / left) ** 0.5
        return text + (
            f"What would fit: noise {more:.3g} times as large (σ = {more * max(r.sigma for r in new):.4g}) for one "
            f"more round, or a budget of ε ≥ {budget.epsilon_at(after):.4g}"
        )

    def record(self, releases: Sequence[Release]) -> None:
        """Write down what is about to leave; raises instead where the budget cannot pay for it."""
        with self._lock:
            new = self._new(releases)
            if refusal := self._refusal(new):
                raise PrivacyError(refusal)
            self._write(new)
            self.releases += new
            self._known.update(new)
            for release in new:
                self._spent[release.client] += self._cost(release)

    def _write(self, releases: Sequence[Release]) -> None:
        if self._path is None or not releases:
            return
        with self._path.open("ab+") as file:
            _cut_scraps(file)
            file.write(b"".join(msgspec.json.encode(release) + b"\n" for release in releases))
            file.flush()
            if not all(release.simulated for release in releases):
                os.fsync(file.fileno())


def read_ledger(path: Path) -> list[Release]:
    """The releases in a file. A last line that a kill cut off never left, and is passed over."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        return [msgspec.json.decode(line, type=Release) for line in whole.splitlines()]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RunError(
            f"{path} is damaged: {error}; what was spent cannot be known, so nothing more is sent"
        ) from error


def _cut_scraps(file: IO[bytes]) -> None:
    """Remove a line that a kill cut off; only who writes may do that, since another may be writing it."""
    end = file.seek(0, os.SEEK_END)
    if end and file.seek(end - 1) is not None and file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
