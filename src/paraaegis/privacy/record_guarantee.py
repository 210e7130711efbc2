"""The guarantees of one record: from DP-SGD in its client's training, or from what protects the update as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from paraaegis.config import Privacy
from paraaegis.plural import plural
from paraaegis.privacy.guarantee import (
    CLIENTS,
    HOLDERS,
    NOISED,
    VALUES,
    Guarantee,
    client_guarantees,
    reported,
    sight_of,
    sigma_against,
)
from paraaegis.privacy.ledger import TRAINING, Release
from paraaegis.privacy.record_budget import cost_of
from paraaegis.privacy.records import Spent, epsilon_of_steps, record_unit


def guarantees(releases: Sequence[Release], privacy: Privacy) -> list[Guarantee]:
    """The guarantee against each adversary: first of a client's contribution as a whole, then of one record."""
    trainings = [release for release in releases if release.what == TRAINING]
    private = {_training_of(training) for training in trainings if training.sigma}
    trained = (*VALUES, "votes")
    others = [release for release in releases if release.what not in trained or _training_of(release) not in private]
    clients = client_guarantees(releases, privacy)
    rests = client_guarantees(others, privacy) if private else clients
    return [
        *clients,
        *(
            _of_a_record(whole, rest, trainings, others, privacy, reported(releases))
            for whole, rest in zip(clients, rests, strict=True)
        ),
    ]


def _training_of(release: Release) -> tuple[str, str, int, int]:
    return release.run, release.client, release.round, release.attempt


def _of_a_record(
    whole: Guarantee,
    rest: Guarantee,
    trainings: Sequence[Release],
    others: Sequence[Release],
    privacy: Privacy,
    reports: str,
) -> Guarantee:
    """One record's guarantee, from its client's: of all updates, and of those that were not trained with DP-SGD."""
    unit, adversary = record_unit(privacy.group), whole.adversary
    trained = any(training.sigma for training in trainings)
    if whole.kind == "nothing sent" or not (trained or whole.epsilon is not None):
        return msgspec.structs.replace(whole, unit=unit)
    if trained and rest.epsilon is None and rest.kind != "nothing sent":
        why = f"{_updates(others)} came from training without DP-SGD: {rest.why}"
        return msgspec.structs.replace(rest, unit=unit, why=why)
    noised = [one for one in others if one.what in VALUES and sight_of(one, adversary) in NOISED]
    epsilon = max(
        epsilon_of_steps(spent.items(), privacy.delta, privacy.group)
        for spent in _spent(trainings, noised, adversary, privacy)
    )
    if not trained:
        why = f"one record moves a clipped update by at most twice the clip; {whole.why}"
        return msgspec.structs.replace(whole, unit=unit, why=why, epsilon=epsilon)
    simulated = "simulated " if any(one.simulated for one in (*trainings, *noised)) else ""
    kind, why = "dp", "everything seen is computed from models trained with DP-SGD"
    if rest.epsilon is not None:
        kind = rest.kind.removeprefix("simulated ")
        why += f", except {_updates(others)} with noise on the update: {rest.why}"
    why += "; provided that nobody learns which records, or how many, a step drew"
    if adversary not in (CLIENTS, HOLDERS):
        missing = ", ".join(filter(None, [reports, "whether a client declines to take part"]))
        why += f"; not covered: {missing}"
    return Guarantee(adversary, simulated + kind, why, unit, epsilon, privacy.delta)


def _updates(releases: Sequence[Release]) -> str:
    return plural(len({_training_of(one) for one in releases if one.what in VALUES}), "update")


def _spent(trainings: Sequence[Release], noised: Sequence[Release], adversary: str, privacy: Privacy) -> list[Spent]:
    """The steps of each client, as this adversary sees them."""
    seen = [msgspec.structs.replace(one, sigma=sigma_against(adversary, one)) for one in noised]
    spent: dict[str, Spent] = {}
    for release in (*trainings, *seen):
        spent[release.client] = spent.get(release.client, Counter()) + cost_of(release, privacy.group)
    return list(spent.values())
