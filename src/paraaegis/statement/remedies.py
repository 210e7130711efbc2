"""What to change so that more is covered: settings that were applied and accounted, not just recommended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from paraaegis.config import Config, Privacy, make_config
from paraaegis.errors import ConfigError, PrivacyError
from paraaegis.methods import METHODS
from paraaegis.privacy.guarantee import CLIENTS, HOLDERS, SERVER, Guarantee
from paraaegis.privacy.records import LARGEST_EPSILON
from paraaegis.runs.guarantees import RunGuarantees, planned
from paraaegis.statement.facts import Facts
from paraaegis.statement.words import listed, subject, who

Rows = list[tuple[Guarantee, Guarantee]]


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, and what they change: `rows` are the adversaries and units whose guarantee differs with them."""

    gap: str
    settings: list[str]
    effect: str
    rows: list[tuple[str, str]]


@dataclass(frozen=True)
class Idea:
    """A remedy to try. `ways`: settings, the first that are accepted count; `helps`: whether a row got better."""

    gap: str
    ways: Callable[[Facts], list[list[str]]]
    effect: str
    helps: Callable[[Guarantee, Guarantee], bool]


def remedies(facts: Facts) -> Iterator[Remedy]:
    """The remedies that apply and, according to the same accounting, help."""
    if facts.simulation:
        secret = ["privacy.noise=secret"]
        effect = "Noise and keys are then drawn so that nobody can repeat them. Sites across a network require this."
        yield Remedy(gap="It is a simulation.", settings=secret, effect=effect, rows=[])
    try:
        before = planned(facts.config).guarantees
    except ConfigError:  # a site's file may lack what the paper's noise depends on
        return
    for idea in IDEAS:
        settings, after = _tried(facts.config, idea.ways(facts))
        rows = _helped(idea, before, after) if after else []
        if rows:
            keys = [(row.adversary, row.unit) for _, row in rows]
            effect = idea.effect.format(figures=_figures(rows, facts.config.privacy.colluders))
            yield Remedy(gap=idea.gap, settings=settings, effect=effect, rows=keys)


def _tried(config: Config, ways: list[list[str]]) -> tuple[list[str], RunGuarantees | None]:
    """The first settings that are accepted, if necessary with the default quorum of the method, and what they give."""
    for settings in (way + more for more in ([], ["federation.quorum=0"]) for way in ways):
        with suppress(ConfigError, PrivacyError):
            return settings, planned(make_config(config.tables(), settings)).guarantees
    return [], None


def _helped(idea: Idea, before: RunGuarantees, after: RunGuarantees) -> Rows:
    earlier = {(row.adversary, row.unit): row for row in before.guarantees}
    pairs = [(earlier.get((row.adversary, row.unit)), row) for row in after.guarantees]
    return [(old, new) for old, new in pairs if old is not None and idea.helps(old, new)]


def _figures(rows: Rows, colluders: int) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for _, new in rows:
        groups.setdefault((subject(new.unit), new.figure), []).append(who(new.adversary, colluders))
    return "; ".join(f"{what} against {listed(names)}: {figure}" for (what, figure), names in groups.items())


def _lower(old: Guarantee, new: Guarantee) -> bool:
    return new.epsilon is not None and (old.epsilon is None or new.epsilon < 0.99 * old.epsilon)


def _budget(privacy: Privacy, most: float = LARGEST_EPSILON) -> list[str]:
    """Settings for exact accounting with an ε that means something."""
    settings = ["privacy.calibration=tight"] if privacy.calibration == "paper" else []
    settings += [f"privacy.epsilon={Privacy().epsilon:g}"] if privacy.epsilon > most else []
    settings += ["privacy.sigma=0"] if privacy.sigma else []
    return settings + ([f"privacy.clip={Privacy().clip:g}"] if math.isinf(privacy.clip) else [])


def _encrypt(facts: Facts) -> list[list[str]]:
    if "clear" not in facts.sights(SERVER):
        return []
    name = next(name for name, one in METHODS.items() if one.sums_clean_values and not one.votes)
    return [[f"protect.method={name}", "protect.cipher=rlwe"]]


def _record(facts: Facts) -> list[list[str]]:
    config, privacy = facts.config, facts.config.privacy
    if privacy.unit == "record":
        return []
    settings = ["privacy.unit=record", *_budget(privacy)]
    settings += ["privacy.inside_clip=0"] if privacy.inside_clip else []
    settings += ["protect.carry=false"] if config.protect.carry else []
    hides = bool(facts.method.ciphers(config))  # for methods that are nothing but noise: one that hides as much
    other = next(n for n, one in METHODS.items() if not (one.noised or one.votes) and one.sums_clean_values == hides)
    masks = ["protect.cipher=rlwe"] if hides else []
    return [settings, [*settings, f"protect.method={other}", *masks]]


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


def _unless(wanted: str, condition: Callable[[Facts], bool]) -> Callable[[Facts], list[list[str]]]:
    return lambda facts: [[wanted]] if condition(facts) else []


def _no_longer_none(old: Guarantee, new: Guarantee) -> bool:
    return old.kind == "none" != new.kind


def _says_less(old: Guarantee, new: Guarantee) -> bool:
    return old.adversary == SERVER and old.why != new.why


IDEAS = (
    Idea(
        "The server reads every site's update.",
        _encrypt,
        "Updates are then encrypted so that no key opens a single one.",
        lambda old, new: old.adversary == SERVER and _no_longer_none(old, new),
    ),
    Idea(
        "All sites share the keys that open every upload.",
        _unless("protect.cipher=rlwe", lambda facts: facts.keyed("hidden")),
        "Each upload then has a secret of its own, used once: no key opens it, and a site that helps the server does "
        "not give others away. Needs at least three sites.",
        lambda old, new: old.adversary not in (SERVER, HOLDERS) and old.why != new.why,
    ),
    Idea(
        "The server reads the sums.",
        _unless("protect.reveal=clients", lambda facts: facts.config.protect.reveal == "server"),
        "Only the sites then open sums.",
        lambda old, new: old.adversary == SERVER and old.kind != new.kind,
    ),
    Idea(
        "No noise limits what is learnt about one record, or far too little.",
        _record,
        "Every site then trains with noise (DP-SGD), which covers everything computed from the model: {figures}. This "
        "replaces noise on updates, costs accuracy, and needs a model without BatchNorm, such as cnn-gn.",
        lambda old, new: _lower(old, new) and not new.unit.startswith("client"),
    ),
    Idea(
        "No noise limits what sums show about a site's contribution.",
        _inside,
        "Sites then share noise for their sum: {figures}. An alternative to the noise for single records.",
        lambda old, new: _lower(old, new) and new.unit.startswith("client") and old.adversary in (CLIENTS, HOLDERS),
    ),
    Idea(
        "The noise is far too weak to mean anything.",
        _more_noise,
        "The noise is then as large as exact accounting demands: {figures}. Expect lower accuracy.",
        _lower,
    ),
    Idea(
        "The numbers of records are in the clear.",
        _unless("federation.weights=uniform", lambda facts: "samples" in facts.kinds),
        "Every site then counts the same, and its number of records stays with it.",
        _says_less,
    ),
    Idea(
        "The server gets metrics of each site's own test records.",
        _unless("engine.share_metrics=false", lambda facts: facts.config.engine.share_metrics),
        "They then stay in the site's folder.",
        _says_less,
    ),
    Idea(
        "The server gets each site's training times.",
        _unless("engine.share_seconds=false", lambda facts: facts.config.engine.share_seconds),
        "They are then not sent, but the time of an answer still tells something.",
        _says_less,
    ),
)
