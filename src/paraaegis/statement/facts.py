"""The facts that a statement is made from: a ledger or a plan, what follows from it, and a run's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from paraaegis.config import Config
from paraaegis.methods import Method, method_of
from paraaegis.privacy.guarantee import VALUES, Guarantee, sight_of
from paraaegis.privacy.ledger import TRAINING, Release, Seen
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import Account, RunGuarantees, is_silo, planned, recorded
from paraaegis.statement.reading import Reading, readings
from paraaegis.statement.words import Standing


@dataclass(frozen=True)
class Facts:
    """All that is known of a run, of a site's runs, or of a configuration that was not run."""

    account: Account
    place: Literal["plan", "run", "site"] = "plan"
    path: Path | None = None

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.account.config

    @property
    def method(self) -> Method:
        """Its method."""
        return method_of(self.config)

    @cached_property
    def guarantees(self) -> RunGuarantees:
        """What follows from the releases."""
        return self.account.guarantees

    @cached_property
    def readings(self) -> Mapping[tuple[str, str], Reading]:
        """What each ε means, by adversary and unit."""
        return readings(self.account)

    def standing(self, row: Guarantee) -> Standing:
        """What a guarantee amounts to."""
        if reading := self.readings.get((row.adversary, row.unit)):
            return "weak" if reading.useless else "noise"
        if "computational" in row.kind:
            return "sums" if "sums only" in row.kind else "hidden"
        return "nothing" if row.kind == "nothing sent" else "none"

    @property
    def simulation(self) -> bool:
        """Whether noise and keys can be computed by anyone who has the seed."""
        return self.config.privacy.noise == "seeded" or any(one.simulated for one in self.account.releases)

    @property
    def rounds(self) -> int:
        """Rounds planned or, afterwards, rounds in the ledger."""
        return self.guarantees.spent.rounds if self.guarantees.spent else self.config.federation.rounds

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each kind of thing left the site from which it left most often."""
        sites = Counter((one.what, one.client) for one in self.account.releases)
        most: Counter[str] = Counter()
        for (what, _), count in sites.items():
            most[what] = max(most[what], count)
        return most

    @cached_property
    def kinds(self) -> dict[str, list[Release]]:
        """One example of each way in which each kind of thing left a site; trainings do not leave it."""
        ways = {(one.what, one.server, one.clients, one.sigma > 0): one for one in reversed(self.account.releases)}
        kinds: dict[str, list[Release]] = {}
        for one in ways.values():
            if one.what != TRAINING:
                kinds.setdefault(one.what, []).append(one)
        return kinds

    @property
    def values(self) -> list[Release]:
        """Examples of the values of updates."""
        return [one for kind in VALUES for one in self.kinds.get(kind, ())]

    def sights(self, adversary: str) -> set[Seen]:
        """How an adversary sees the values of updates."""
        return {sight_of(one, adversary) for one in self.values} - {"nothing"}

    def sent(self, *ways: Seen) -> bool:
        """Whether some values reach the server in one of these ways."""
        return any(one.server in ways for one in self.values)

    @property
    def records_limited(self) -> bool:
        """Whether noise in the training limits what anybody can learn about one record, from whatever they see."""
        rows = [row for row in self.guarantees.guarantees if not row.unit.startswith("client")]
        return self.guarantees.training is not None and all(self.standing(row) == "noise" for row in rows)

    @cached_property
    def traffic(self) -> tuple[float, float] | None:
        """Bytes that one site sent and received over the whole run, if they were recorded."""
        records = RunFolder(self.path).read_records() if self.path and self.place == "run" else []
        sites = {name for record in records for name in record.clients}
        up, down = (sum(sum(getattr(one, way).values()) for one in records) for way in ("bytes_up", "bytes_down"))
        return (up / len(sites), down / len(sites)) if sites else None


def facts_of_folder(path: Path) -> Facts:
    """The facts of a run's or a silo's folder."""
    return Facts(recorded(path), "site" if is_silo(path) else "run", path)


def facts_of_config(config: Config) -> Facts:
    """The facts of a configuration, as of `run_guarantees`."""
    return Facts(planned(config))
