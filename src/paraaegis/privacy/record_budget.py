"""What DP-SGD in a client's training may spend, and how it is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paraaegis.config import Config
from paraaegis.errors import PrivacyError
from paraaegis.plural import plural
from paraaegis.privacy.ledger import TRAINING, Release
from paraaegis.privacy.records import Spent, Step, epsilon_of_steps, record_unit
from paraaegis.types import RecordPrivacy


@dataclass(frozen=True)
class RecordBudget:
    """What the trainings of a client may spend; noised updates count as an upper bound.

    `planned` is a whole run's, which fits the budget by construction.
    """

    epsilon: float
    delta: float
    group: int
    planned: tuple[Step, int]

    @property
    def nothing(self) -> Spent:
        """See Budget."""
        return Counter()

    def cost(self, release: Release) -> Spent:
        """See Budget."""
        return cost_of(release, self.group)

    @property
    def reading(self) -> str:
        """See Budget."""
        return f"unit: {record_unit(self.group)}"

    def fits(self, spent: Spent) -> bool:
        """See Budget."""
        step, most = self.planned
        if set(spent) <= {step} and spent[step] <= most:
            return True
        return self.epsilon_at(spent) <= self.epsilon

    def share(self, spent: Spent) -> float:
        """See Budget: the fraction of ε."""
        return self.epsilon_at(spent) / self.epsilon

    def refusal(self, spent: Spent, cost: Spent, new: Sequence[Release]) -> str:
        """See Budget."""
        before, after = self.epsilon_at(spent), self.epsilon_at(spent + cost)
        return (
            f"the privacy budget of {new[0].client} is spent: its trainings and noised updates make ε = {before:.4g} "
            f"of {self.epsilon:g} at δ = {self.delta:g} ({self.reading}), against everyone; training in round "
            f"{new[0].round} would make it {after:.4g}. A later run that adds to this ledger needs ε ≥ {after:.4g}"
        )

    def epsilon_at(self, spent: Spent) -> float:
        """The ε of this much spending."""
        return epsilon_of_steps(spent.items(), self.delta, self.group)


def record_budget(config: Config, training: RecordPrivacy) -> RecordBudget | None:
    """What a client may spend on training; None without noise."""
    privacy = config.privacy
    if not training.multiplier:
        return None
    total = training.steps * config.participations
    planned = Step(training.sample_rate, training.multiplier), total
    return RecordBudget(privacy.epsilon, privacy.delta, privacy.group, planned)


def training_release(
    training: RecordPrivacy, client: str, number: int, attempt: int, simulated: bool, run: str = "", model: str = ""
) -> Release:
    """A training as a ledger records it before it starts."""
    noised = training.multiplier > 0
    return Release(
        round=number,
        client=client,
        what=TRAINING,
        server="nothing",
        clients="nothing",
        attempt=attempt,
        clip=training.clip if noised else 0.0,
        sigma=training.multiplier * training.clip if noised else 0.0,
        sample_rate=training.sample_rate,
        steps=training.steps,
        simulated=simulated,
        run=run,
        model=model,
    )


def cost_of(release: Release, group: int) -> Spent:
    """What one release uses of a record's budget: the steps of a training, or one Gaussian for a noised update.

    Whatever a person's records change, an update stays within a ball of radius θ, so it moves by at most 2θ.
    """
    if release.sigma <= 0:
        return Counter()
    if release.what == TRAINING:
        multiplier = float(f"{release.sigma / release.clip:.10g}")  # as it was before it was multiplied by the clip
        return Counter({Step(release.sample_rate, multiplier): release.steps})
    return Counter({Step(1.0, group * release.sigma / (2 * release.clip)): 1})


def check_delta(config: Config, client: str, samples: int) -> None:
    """Refuse a δ with which publishing a few whole records would count as private."""
    limit = 1 / (10 * samples)  # shown rounded down
    if config.privacy.unit == "record" and config.privacy.delta > limit:
        raise PrivacyError(
            f"privacy.delta must be at most 1/(10 · {samples}) = {0.995 * limit:.3g} for {client}, which has "
            f'{plural(samples, "sample")}, with privacy.unit = "record"; got {config.privacy.delta:g}'
        )
