"""The facts that a statement is made from: a ledger or a plan, what follows from it, and a run's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from paraaegis.config import Config
from paraaegis.methods import Method, method_of
from paraaegis.privacy.guarantee import VALUES, Guarantee, sight_of
from paraaegis.privacy.ledger import TRAINING, Release, Seen
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import Account, RunGuarantees, is_silo, planned, recorded
from paraaegis.runs.result import Result, read_done
from paraaegis.statement.reading import Reading, readings
from paraaegis.statement.words import Standing, standing


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
    def past(self) -> bool:
        """Whether it has happened."""
        return self.place != "plan"

    @cached_property
    def method(self) -> Method:
        """Its method."""
        return method_of(self.config)

    @cached_property
    def guarantees(self) -> RunGuarantees:
        """What follows from the releases."""
        return self.account.guarantees

    @cached_property
    def readings(self) -> Mapping[tuple[str, str], Reading]:
        """What each ε means."""
        return readings(self.account)

    @property
    def simulation(self) -> bool:
        """Whether noise and keys can be computed by anyone who has the seed."""
        return self.config.privacy.noise == "seeded" or any(one.simulated for one in self.account.releases)

    @cached_property
    def rounds(self) -> int:
        """Rounds planned or, afterwards, rounds in the ledger."""
        return self.guarantees.spent.rounds if self.guarantees.spent else self.config.federation.rounds

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often the site that released most released each kind of thing; without trainings, which do not leave."""
        sites: dict[str, Counter[str]] = {}
        for release in self.account.releases:
            if release.what != TRAINING:
                sites.setdefault(release.client, Counter())[release.what] += 1
        return {what: max(site[what] for site in sites.values()) for site in sites.values() for what in site}

    @cached_property
    def kinds(self) -> dict[str, list[Release]]:
        """One example of each way in which each kind of thing was released."""
        ways: dict[str, dict[tuple[Seen, Seen, bool, int], Release]] = {}
        for one in self.account.releases:
            if one.what != TRAINING:
                way = one.server, one.clients, one.sigma > 0, one.quorum
                ways.setdefault(one.what, {}).setdefault(way, one)
        return {what: list(examples.values()) for what, examples in ways.items()}

    def sights(self, adversary: str, *what: str) -> set[Seen]:
        """How an adversary sees these kinds of things; without any, the values of updates."""
        ones = (one for kind in what or VALUES for one in self.kinds.get(kind, ()))
        return {sight_of(one, adversary) for one in ones} - {"nothing"}

    def keyed(self, sight: Seen) -> bool:
        """Whether some values reach the server in this way."""
        return any(one.server == sight for kind in VALUES for one in self.kinds.get(kind, ()))

    def standing(self, row: Guarantee) -> Standing:
        """What a guarantee amounts to."""
        return standing(row, self.readings.get((row.adversary, row.unit)))

    @cached_property
    def private_records(self) -> bool:
        """Whether all training was DP-SGD: what anyone reads is then limited by the ε of a record."""
        records = [one for one in self.guarantees.guarantees if not one.unit.startswith("client")]
        return self.guarantees.training is not None and all(one.epsilon is not None for one in records)

    @cached_property
    def traffic(self) -> tuple[float, float] | None:
        """Bytes that one site sent and received over the whole run, if they were recorded."""
        records = RunFolder(self.path).read_records() if self.path and self.place == "run" else []
        sites = {name for record in records for name in record.clients}
        totals = [sum(sum(getattr(one, way).values()) for one in records) for way in ("bytes_up", "bytes_down")]
        return (totals[0] / len(sites), totals[1] / len(sites)) if sites else None

    @cached_property
    def result(self) -> Result | None:
        """The result of a run that is over."""
        return read_done(RunFolder(self.path)) if self.path else None

    @property
    def changed(self) -> str:
        """The day on which the ledger's file last changed."""
        ledger = RunFolder(self.path).ledger if self.path else None
        return datetime.fromtimestamp(ledger.stat().st_mtime, UTC).date().isoformat() if ledger else ""


def facts_of_folder(path: Path) -> Facts:
    """The facts of a run's or a silo's folder."""
    return Facts(recorded(path), "site" if is_silo(path) else "run", path)


def facts_of_config(config: Config) -> Facts:
    """The facts of a configuration, as of `run_guarantees`."""
    return Facts(planned(config))
