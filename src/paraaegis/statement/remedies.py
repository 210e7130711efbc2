"""What to change so that more is covered: settings that were applied and accounted again before they are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from paraaegis.config import Config, Privacy, make_config
from paraaegis.errors import ConfigError, PrivacyError
from paraaegis.methods import METHODS
from paraaegis.privacy.guarantee import SERVER, Guarantee
from paraaegis.privacy.records import LARGEST_EPSILON
from paraaegis.runs.guarantees import Account, planned
from paraaegis.statement.facts import Facts
from paraaegis.statement.words import SIMULATION, attackers, subject

FIGURES = "{figures}"  # in an effect: the ε that are new or lower


class Remedy(NamedTuple):
    """What is not covered, the settings that cover it, and what they give."""

    gap: str
    settings: list[str]
    effect: str


def remedies(facts: Facts) -> Iterator[Remedy]:
    """The remedies that apply and that change a guarantee according to the same accounting."""
    if facts.simulation:
        drawn = "Noise and keys are then drawn so that nobody can repeat them. Runs across a network require it."
        yield Remedy(SIMULATION.partition(":")[0] + ".", ["privacy.noise=secret"], drawn)
    with suppress(ConfigError):  # a site's file may lack what the paper's noise depends on
        before = planned(facts.config)
        for gap, ways, effect in IDEAS:
            settings, after = _tried(facts.config, ways(facts))
            if after is None:
                continue
            rows = _stronger(before, after) if FIGURES in effect else _different(before, after)
            if rows or (FIGURES not in effect and _kinds(after) < _kinds(before)):
                figures = _figures(rows, facts.config.privacy.colluders)
                yield Remedy(gap, settings, effect.replace(FIGURES, figures))


def _kinds(account: Account) -> set[str]:
    return {release.what for release in account.releases}


def _tried(config: Config, ways: list[list[str]]) -> tuple[list[str], Account | None]:
    """The first settings that are accepted, if necessary with the default quorum of the method, and what they give."""
    tables = config.tables()
    del tables["protect"]["profile"]  # it belongs to the cipher
    for settings in (way + more for more in ([], ["federation.quorum=0"]) for way in ways):
        with suppress(ConfigError, PrivacyError):
            return settings, planned(make_config(tables, settings))
    return [], None


def _different(before: Account, after: Account) -> list[Guarantee]:
    reasons = {(row.adversary, row.unit): row.why for row in before.guarantees.guarantees}
    return [row for row in after.guarantees.guarantees if reasons.get((row.adversary, row.unit)) != row.why]


def _stronger(before: Account, after: Account) -> list[Guarantee]:
    """The guarantees with an ε that is new, or clearly lower."""
    figures = {(row.adversary, row.unit): row.epsilon or math.inf for row in before.guarantees.guarantees}
    rows = [row for row in after.guarantees.guarantees if row.epsilon is not None]
    return [row for row in rows if (row.epsilon or 0.0) < 0.99 * figures.get((row.adversary, row.unit), 0.0)]


def _figures(rows: list[Guarantee], colluders: int) -> str:
    """For each unit the largest ε, and against whom it holds."""
    units: dict[str, list[Guarantee]] = {}
    for row in rows:
        if row.epsilon is not None:
            units.setdefault(row.unit, []).append(row)
    worst = {unit: max(of, key=lambda row: row.epsilon or 0.0) for unit, of in units.items()}
    texts = (f"{subject(unit)}, against {attackers(of, colluders)}: {worst[unit].figure}" for unit, of in units.items())
    return "; ".join(texts)


def _budget(privacy: Privacy, most: float = LARGEST_EPSILON) -> list[str]:
    """Settings for exact accounting with a budget of at most this ε."""
    settings = ["privacy.calibration=tight"] if privacy.calibration == "paper" else []
    settings += [f"privacy.epsilon={Privacy().epsilon:g}"] if privacy.epsilon > most else []
    settings += ["privacy.sigma=0"] if privacy.sigma else []
    return settings + ([f"privacy.clip={Privacy().clip:g}"] if math.isinf(privacy.clip) else [])


def _encrypt(facts: Facts) -> list[list[str]]:
    name = next(name for name, one in METHODS.items() if one.sums_clean_values and not one.votes)
    return [[f"protect.method={name}", "protect.cipher=rlwe"]] if "clear" in facts.sights(SERVER) else []


def _record(facts: Facts) -> list[list[str]]:
    privacy, hides = facts.config.privacy, bool(facts.method.ciphers(facts.config))
    if privacy.unit == "record":
        return []
    settings = ["privacy.unit=record", *_budget(privacy)]
    settings += ["privacy.inside_clip=0"] if privacy.inside_clip else []
    settings += ["protect.carry=false"] if facts.config.protect.carry else []
    # For a method that is nothing but noise on updates, the first other one that hides as much.
    other = next(n for n, one in METHODS.items() if not (one.noised or one.votes) and one.sums_clean_values == hides)
    return [settings, [*settings, f"protect.method={other}", *(["protect.cipher=rlwe"] if hides else [])]]


def _inside(facts: Facts) -> list[list[str]]:
    privacy = facts.config.privacy
    if privacy.unit == "record" or privacy.inside_clip or not facts.method.sums_clean_values:
        return []
    clip = Privacy().clip if math.isinf(privacy.clip) else privacy.clip
    return [[f"privacy.inside_clip={clip:g}", *_budget(privacy)]]


def _more_noise(facts: Facts) -> list[list[str]]:
    weak = any(facts.standing(row) == "weak" for row in facts.guarantees.guarantees)
    settings = _budget(facts.config.privacy, Privacy().epsilon)
    return [settings] if weak and settings else []


def _unshare(facts: Facts) -> list[list[str]]:
    shared = {"metrics": facts.config.engine.share_metrics, "seconds": facts.config.engine.share_seconds}
    return [[f"engine.share_{name}=false" for name, sent in shared.items() if sent]]


IDEAS: tuple[tuple[str, Callable[[Facts], list[list[str]]], str], ...] = (
    (
        "The server reads every site's update.",
        _encrypt,
        "Updates are then encrypted so that no key opens a single one.",
    ),
    (
        "All sites share the keys that open every upload.",
        lambda facts: [["protect.cipher=rlwe"]] if facts.sent("hidden") else [],
        "Each upload then has a secret of its own, used once: no key opens it, not even if a site helps the server. "
        "This needs three sites or more.",
    ),
    (
        "The server reads the sums.",
        lambda facts: [["protect.reveal=clients"]] if facts.config.protect.reveal == "server" else [],
        "Only the sites then open sums.",
    ),
    (
        "No noise, or far too little, limits what is learnt about one record.",
        _record,
        f"Every site then trains with noise (DP-SGD), which covers everything that is made with the model: {FIGURES}. "
        "It replaces noise on updates, costs accuracy, and needs a model without BatchNorm, such as cnn-gn, and a "
        "δ of at most 1/(10 times a site's records).",
    ),
    (
        "No noise limits what a sum shows about a site's contribution.",
        _inside,
        f"The sites then share noise for their sum: {FIGURES}. This cannot be combined with noise for single records.",
    ),
    (
        "The noise is far too weak to mean anything.",
        _more_noise,
        f"The noise is then as large as exact accounting demands: {FIGURES}. Expect lower accuracy.",
    ),
    (
        "The numbers of records are in the clear.",
        lambda facts: [["federation.weights=uniform"]] if "samples" in facts.kinds else [],
        "Every site then counts the same, and its number of records stays with it.",
    ),
    (
        "The server gets metrics or training times.",
        _unshare,
        "They then stay in the site's folder; the time of an answer still tells something.",
    ),
)
