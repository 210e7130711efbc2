"""Choose a ratio within the user's limits: estimate every choice and take the cheapest that is nearly as good as any.

Better means that more of the update is encrypted and less is clipped, noised or withheld: the higher the mean ratio,
the higher the accuracy, in the paper and here. How much higher it is on given data, only a pilot can measure; without
one, the usual ratio is taken, or the highest below it that fits. A choice that would not learn does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from paraaegis.config import Config
from paraaegis.errors import ConfigError
from paraaegis.methods import ENCRYPTED, METHODS, REFERENCE, find_method, method_of
from paraaegis.metrics import ACCURACY, is_percent, lower_is_better
from paraaegis.planning.cost import Estimate, Machine, Setting, at_once, estimate
from paraaegis.planning.learning import Instead, Prediction, drowned, instead_of, learns_too_little, predict
from paraaegis.planning.pilot import Pilot, informed
from paraaegis.plural import plural
from paraaegis.privacy.guarantee import Guarantee
from paraaegis.protocol.schedule import Schedule
from paraaegis.runs.check import check_method
from paraaegis.runs.guarantees import run_guarantees

RATIOS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
DECAYS = (0.99, 0.95, 0.9)
USUAL, USUAL_WITHHELD = 0.1, 0.05  # ratios without a pilot, if the rest is sent with noise or withheld
SMALLEST_KNOWN = 0.005  # below it, no accuracy was ever measured
REFERENCES = (REFERENCE, ENCRYPTED)  # shown next to every plan
TOLERANCE = 1.0
RESERVE = 1.2  # estimated seconds are accurate to a fifth, which is kept in reserve


class Request(msgspec.Struct, kw_only=True):
    """The conditions of a plan and its limits, for the whole run."""

    length: int
    train: float | None = None  # seconds that one client trains per round; None: unknown and not included
    bandwidth: float | None = None  # Mbit/s of each client's link; None: all clients share this machine
    seconds: float | None = None
    megabytes: float | None = None  # per client, both directions
    megabytes_total: float | None = None  # of all clients together
    tolerance: float | None = (
        None  # by how much a cheaper choice may be worse than the best; None: a point or a hundredth
    )
    points: float | None = None  # of the metric below plain averaging, or above it if lower is better, by the pilot
    metric: str = ACCURACY  # the pilot's


class Choice(msgspec.Struct, kw_only=True):
    """A method with its ratio and its cost."""

    method: str
    ratio: float
    decay: float
    mean_ratio: float  # over all rounds
    estimate: Estimate
    clients: int = 1
    share: float = 1.0  # of the rounds, for which a client is drawn
    points_lost: float | None = None  # against plain averaging, according to the pilot
    predicted: Prediction | None = None  # of the final model; None: unknown
    measured: bool = True  # whether accuracies at ratios as small as this were ever measured
    hopeless: str = ""  # why it would not learn
    misses: list[str] = []  # the limits that it exceeds, and why it would not learn

    @property
    def megabytes(self) -> float:
        """MB per client, both directions, in the whole run. It uploads when drawn, and downloads every aggregate."""
        return (self.share * self.estimate.bytes_up + self.estimate.bytes_down) / 1e6

    @property
    def megabytes_total(self) -> float:
        """MB of all clients together."""
        return self.clients * self.megabytes


class Recommendation(msgspec.Struct, kw_only=True, rename={"request": "wish"}):
    """The choice, its neighbours, and what it guarantees."""

    request: Request
    clients: int
    rounds: int
    choice: Choice
    fits: bool  # whether the choice is within every limit; otherwise it is the nearest one
    cheaper: Choice | None
    better: Choice | None
    references: list[Choice]  # plain averaging, and everything encrypted
    instead: list[Instead]  # what would learn, if the choice would not
    profile: str
    sigma: float
    simulation: bool  # noise or secret orders are seeded: no guarantee holds
    guarantees: list[Guarantee]
    machine: Machine
    pilot: Pilot | None = None


def recommend(config: Config, request: Request, machine: Machine, pilot: Pilot | None = None) -> Recommendation:
    """Choose a ratio, or a ratio and its decay, for the configuration's method."""
    check(config)
    if pilot and pilot.min_samples:
        config = informed(config, pilot.min_samples)
    pairs = _pairs(config, request.length)
    references = [_reference(config, request, machine, pilot, name) for name in REFERENCES]
    choices = _worthwhile([_choice(config, request, machine, pilot, *pair) for pair in pairs])
    fitting = [choice for choice in choices if not choice.misses]
    best = (
        _best(config.protect.method, request, fitting, pilot)
        if fitting
        else min(choices, key=lambda one: _excess(request, one))
    )
    place = choices.index(best)
    privacy = run_guarantees(configured(config, best))
    return Recommendation(
        request=request,
        clients=config.federation.clients,
        rounds=config.federation.rounds,
        choice=best,
        fits=bool(fitting),
        cheaper=choices[place - 1] if place else None,
        better=choices[place + 1] if place + 1 < len(choices) else None,
        references=references,
        instead=instead_of(config) if not fitting and _hopeless(choices) else [],
        profile=config.protect.profile,
        sigma=privacy.sigma,
        simulation=privacy.simulation,
        guarantees=privacy.guarantees,
        machine=machine,
        pilot=pilot,
    )


def _hopeless(choices: Sequence[Choice]) -> bool:
    """Whether no ratio would learn, of those for which this is known."""
    known = [one for one in choices if one.measured]
    return bool(known) and all(one.hopeless for one in known)


def configured(config: Config, choice: Choice) -> Config:
    """The configuration with a choice's ratio and decay."""
    protect = msgspec.structs.replace(config.protect, ratio=choice.ratio, decay=choice.decay)
    return msgspec.structs.replace(config, protect=protect)


def train_seconds_of(pilot: Pilot, config: Config, machine: Machine, length: int, here: bool) -> float:
    """Seconds that a client trains per round: on its own machine, or its share of this one if all are `here`."""
    if not here:
        return pilot.train
    plain = Setting(method=REFERENCE, length=length, clients=config.sampled, rounds=1)
    shared = max(0.0, pilot.wall - estimate(machine, plain).seconds) / config.sampled
    return shared * at_once(machine, config.sampled)


def check(config: Config) -> None:
    """Refuse what cannot be planned, before anything is measured."""
    if not method_of(config).votes:
        able = ", ".join(name for name, method in METHODS.items() if method.votes)
        raise ConfigError(f"a ratio can be planned for {able}, got {config.protect.method!r}")
    check_method(config)


def _pairs(config: Config, length: int) -> list[tuple[float, float]]:
    """Ratios and decays that elect something in every round and, if the rest is noised, leave something to noise."""
    method = method_of(config)
    decays = DECAYS if method.ratio == "decaying" else (1.0,)
    pairs = [(ratio, decay) for ratio in RATIOS for decay in decays if not (method.noised and ratio == 1)]
    last = config.federation.rounds
    electing = [pair for pair in pairs if Schedule(*pair).elected_at(last, length) > 0]
    if not electing:
        raise ConfigError(
            f"{plural(length, 'value')} cannot be divided by a ratio: none of {RATIOS} elects at least one value in "
            "every round; plan for a larger model or fewer rounds"
        )
    return electing


def _worthwhile(choices: Sequence[Choice]) -> list[Choice]:
    """Choices in order of mean ratio, without those for which a higher one takes no more bytes and seconds."""

    def costs(choice: Choice) -> tuple[float, float]:
        return choice.megabytes, choice.estimate.seconds

    ordered = sorted(choices, key=lambda choice: (choice.mean_ratio, -choice.decay))
    return [
        choice
        for place, choice in enumerate(ordered)
        if not any(
            all(a <= b for a, b in zip(costs(higher), costs(choice), strict=True)) for higher in ordered[place + 1 :]
        )
    ]


def _choice(
    config: Config, request: Request, machine: Machine, pilot: Pilot | None, ratio: float, decay: float
) -> Choice:
    mean = mean_ratio(ratio, decay, config.federation.rounds)
    choice = _priced(config, request, machine, config.protect.method, ratio, decay)
    smallest = pilot.smallest if pilot else SMALLEST_KNOWN
    choice.measured = mean >= smallest
    if pilot is None:
        choice.hopeless = drowned(config, request.length, ratio)
    elif not choice.measured:
        choice.points_lost = pilot.points_lost(mean)
        choice.misses = [f"the pilot tried nothing below {100 * smallest:g}%, so it may not learn"]
    else:
        tried = min(mean, pilot.largest) if _noise_at_any_ratio(config) else mean
        choice.points_lost, choice.predicted = pilot.points_lost(tried), predict(config, pilot, pilot.reached(tried))
        choice.hopeless = learns_too_little(pilot, tried)
    choice.misses = [*_misses(request, choice), *choice.misses, *filter(None, [choice.hopeless])]
    return choice


def _noise_at_any_ratio(config: Config) -> bool:
    """Whether even encrypting everything leaves noise in the model."""
    return config.privacy.inside_clip > 0 or config.privacy.unit == "record"


def _reference(config: Config, request: Request, machine: Machine, pilot: Pilot | None, method: str) -> Choice:
    """A method that loses nothing, to compare with."""
    choice = _priced(config, request, machine, method, float(method == ENCRYPTED), 1.0)
    if pilot is not None and not (method == ENCRYPTED and _noise_at_any_ratio(config)):
        choice.points_lost, choice.predicted = 0.0, predict(config, pilot, pilot.plain)
    return choice


def _priced(config: Config, request: Request, machine: Machine, method: str, ratio: float, decay: float) -> Choice:
    """A choice with its cost."""
    setting = Setting(
        method=method,
        length=request.length,
        clients=config.sampled,
        rounds=config.federation.rounds,
        ratio=ratio,
        decay=decay,
        train=request.train or 0.0,
        bandwidth=request.bandwidth,
    )
    return Choice(
        method=method,
        ratio=ratio,
        decay=decay,
        mean_ratio=mean_ratio(ratio, decay, config.federation.rounds),
        estimate=estimate(machine, setting),
        share=config.sampled / config.federation.clients,
        clients=config.federation.clients,
    )


def mean_ratio(ratio: float, decay: float, rounds: int) -> float:
    """The mean ratio over all rounds."""
    return ratio if decay == 1 else ratio * (1 - decay**rounds) / (1 - decay) / rounds


def _limits(request: Request, choice: Choice) -> list[tuple[str, float, float]]:
    """What is limited, what the choice would take, and the limit."""
    limits = [
        ("seconds including a reserve of a fifth", RESERVE * choice.estimate.seconds, request.seconds),
        ("MB per client", choice.megabytes, request.megabytes),
        ("MB in total", choice.megabytes_total, request.megabytes_total),
        (_lost(request.metric), choice.points_lost, request.points),
    ]
    return [(name, took, limit) for name, took, limit in limits if took is not None and limit is not None]


def _lost(metric: str) -> str:
    if is_percent(metric):
        return f"points of {metric}"
    return f"{metric} {'above' if lower_is_better(metric) else 'below'} FedAvg"


def _misses(request: Request, choice: Choice) -> list[str]:
    return [f"{took:.3g} {name}, limit {limit:g}" for name, took, limit in _limits(request, choice) if took > limit]


def _excess(request: Request, choice: Choice) -> tuple[float, float]:
    """By how much a choice exceeds the limit that it exceeds most; if none, what it loses, or how unusual it is."""
    over = [math.log(max(took, 1e-9) / max(limit, 1e-9)) for _, took, limit in _limits(request, choice)]
    if (most := max([0.0, *over])) > 0:
        return most, choice.mean_ratio
    return most, abs(choice.ratio - usual_ratio(choice.method)) if choice.points_lost is None else choice.points_lost


def usual_ratio(method: str) -> float:
    """The ratio to begin with."""
    return USUAL_WITHHELD if find_method(method).withholds else USUAL


def _tolerance(request: Request, pilot: Pilot | None) -> float:
    """The tolerance asked for; otherwise a point, or a hundredth of what plain averaging reached."""
    if request.tolerance is not None:
        return request.tolerance
    return TOLERANCE if pilot is None or is_percent(pilot.metric) else abs(pilot.plain) / 100


def _best(method: str, request: Request, fitting: Sequence[Choice], pilot: Pilot | None) -> Choice:
    """The cheapest choice within the tolerance of the best, or within the limit of what may be lost.

    Without a pilot, the usual ratio, or the highest below it.
    """
    lost = [choice.points_lost for choice in fitting if choice.points_lost is not None]
    if lost:
        most = min(lost) + _tolerance(request, pilot) if request.points is None else request.points
        near = [choice for choice in fitting if choice.points_lost is not None and choice.points_lost <= most]
        return min(near, key=lambda choice: (choice.megabytes, choice.estimate.seconds))
    usual = usual_ratio(method)  # or the next higher one if it costs no more
    return min(fitting, key=lambda choice: (choice.ratio < usual, abs(choice.ratio - usual), -choice.decay))
