"""The guarantees of a configuration before it is run, under both readings of the noise, and what a run has spent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from paraaegis.config import Config, load_config
from paraaegis.errors import ConfigError, RunError
from paraaegis.methods import method_of
from paraaegis.privacy.budget import budget
from paraaegis.privacy.calibrate import (
    composed_mu,
    epsilon_of,
    rdp_multiplier,
    remark_multiplier,
    remark_sensitivity,
    tight_multiplier,
)
from paraaegis.privacy.guarantee import Guarantee, sensitivity
from paraaegis.privacy.ledger import ELECTED, METRICS, SAMPLES, SECONDS, TRAINING, Ledger, Release, releases_of
from paraaegis.privacy.record_budget import training_release
from paraaegis.privacy.record_guarantee import guarantees
from paraaegis.privacy.records import LARGEST_EPSILON, record_privacy
from paraaegis.runs.check import resolve
from paraaegis.runs.folder import RunFolder


class Calibration(msgspec.Struct, kw_only=True):
    """One way to choose the noise: σ = multiplier · sensitivity in every round."""

    name: str
    sensitivity: float
    noise_multiplier: float
    sigma: float
    epsilon_client: float  # by exact accounting, unit client, against all who read the noised values


class Spent(msgspec.Struct, kw_only=True):
    """What a run's ledger holds, and the share of the budget used by the client that spent most (None: no budget)."""

    releases: dict[str, int]
    rounds: int
    share_of_budget: float | None = None
    reading: str = ""  # the reading of the noise by which the budget is counted


class Training(msgspec.Struct, kw_only=True):
    """DP-SGD in every client, for privacy.unit = "record". `noise_multiplier` is σ over the clip, per step."""

    sample_rate: float
    steps_per_round: int
    steps: int
    clip: float
    noise_multiplier: float


class RunGuarantees(msgspec.Struct, kw_only=True):
    """What a configuration asks for and gets.

    `sigma` and `noise_multiplier` are the first round's, for values clipped to `clip`: those in the clear if they are
    noised, otherwise the encrypted ones.

    With `simulation`, noise or the secret order of votes is seeded: no guarantee holds, and those listed are for the
    same run with secret ones.
    """

    method: str
    calibration: str
    unit: str
    noise_multiplier: float
    sigma: float
    clip: float
    simulation: bool
    guarantees: list[Guarantee]
    calibrations: list[Calibration]
    spent: Spent | None = None
    training: Training | None = None
    lwe_bits: int | None = None  # hardness of the masks in bits, with the fewest honest clients in a sum


@dataclass(frozen=True)
class Account:
    """A resolved configuration and its releases: those in a ledger or, without one, those that one client plans."""

    config: Config
    releases: list[Release]
    ledger: Ledger | None = None

    @property
    def guarantees(self) -> RunGuarantees:
        """What follows from these releases."""
        result = _guarantees_of(self.config, self.releases)
        if (ledger := self.ledger) is not None:
            result.spent = Spent(
                releases=dict(Counter(release.what for release in ledger.releases)),
                rounds=len({(release.run, release.round) for release in ledger.releases if release.round}),
                share_of_budget=ledger.share,
                reading=ledger.budget.reading if ledger.budget else "",
            )
        return result


def run_guarantees(config: Config) -> RunGuarantees:
    """The guarantees of a configuration, as of `planned`."""
    return planned(config).guarantees


def planned(config: Config) -> Account:
    """What one client will release, if it takes part in every round in which it may.

    If calibration `paper` needs `min_samples`, it is taken from the split of a built-in data set; a configuration with
    a learner must say it.

    Sampling is assumed to be worst-case: a client drawn in every round, or as often as privacy.participations allows.
    """
    config = _with_samples(config)
    method = method_of(config)
    method.check(config)
    half = method.client(config)
    shared = {half.ballot: half.votes, SAMPLES: _counted(config)}
    shared |= {METRICS: config.engine.share_metrics, SECONDS: config.engine.share_seconds}
    parts = [*half.exposures, *(part for part, released in shared.items() if released)]
    rounds = range(1, config.participations + 1)
    seeded = config.privacy.noise == "seeded"
    releases = [release for number in rounds for release in releases_of(parts, "any", number, simulated=seeded)]
    if (training := record_privacy(config)) is not None:
        releases += [training_release(training, "any", number, 0, seeded) for number in rounds]
    return Account(config, releases)


def lacks_samples(config: Config) -> bool:
    """Whether the noise depends on the smallest number of samples, which the configuration does not say."""
    paper = config.privacy.calibration == "paper" and not math.isinf(config.privacy.epsilon)
    return paper and not config.federation.min_samples and method_of(config).noised_parts(config) > 0


def _with_samples(config: Config) -> Config:
    """The configuration as a run would resolve it; the data is split only if the paper's noise needs `min_samples`."""
    if not lacks_samples(config):
        return resolve(config, [config.federation.min_samples])
    if config.learner:
        raise ConfigError(
            "the paper's noise depends on the smallest number of samples of any client, which is unknown until the "
            'learners are made; set federation.min_samples, or privacy.calibration = "tight", which does not need it'
        )
    from paraaegis.runs.experiment import torch_experiment

    return torch_experiment(config, only="").config


def spending(path: Path) -> RunGuarantees:
    """What the run in this folder has spent according to its ledger."""
    return recorded(path).guarantees


def is_silo(path: Path) -> bool:
    """Whether a folder is a silo's: all releases in its ledger are this silo's, whatever it was called."""
    return (path / "identity").exists()


def recorded(path: Path) -> Account:
    """What was released according to the ledger in this folder, a run's or a silo's."""
    folder = RunFolder(path)
    if folder.config.exists() and folder.records.exists() and not folder.ledger.exists():
        raise RunError(
            f"{path} holds a run but no ledger.jsonl. In a federation on Flower each silo keeps the ledger of what it "
            "released, and the server has none: run `paraaegis privacy` on a silo's folder. If all clients ran in one "
            "process, restore the file"
        )
    if not folder.config.exists() or not folder.ledger.exists():
        raise RunError(f"{path} is not a run's folder with a config.toml and a ledger.jsonl")
    config = load_config(folder.config)
    quorum = resolve(config, [1]).federation.quorum  # which a silo's file may leave open
    config = msgspec.structs.replace(config, federation=msgspec.structs.replace(config.federation, quorum=quorum))
    silo = is_silo(path)
    ledger = Ledger(budget(config), folder.ledger, one_owner=silo)
    folder.check_ledger(ledger.releases)
    releases = [msgspec.structs.replace(one, client="this silo") if silo else one for one in ledger.releases]
    return Account(config, releases, ledger)


def privacy_line(path: Path) -> str:
    """Who is protected in the run in this folder, by what, and how much of the budget is spent."""
    shown, config = spending(path), load_config(RunFolder(path).config)
    protections: dict[str, list[str]] = {}
    for one in shown.guarantees:
        if bool(shown.training) != one.unit.startswith("client"):
            protections.setdefault(_protection(one), []).append(one.adversary)
    noised = any(one.epsilon is not None for one in shown.guarantees)
    whose = "a client's contribution" + ("" if noised else " and every record in it")
    whose = "one record" if shown.training else whose
    text = "; ".join(f"{what} against {', '.join(whom)}" for what, whom in protections.items())
    share = shown.spent.share_of_budget if shown.spent else None
    used = "" if share is None else f"; {100 * share:.0f}% of the budget is spent"
    simulated = "a simulation, which protects nobody; with secret keys and noise, " * (config.privacy.noise == "seeded")
    return f"{simulated}{whose}: {text}{used}"


def _protection(one: Guarantee) -> str:
    if one.epsilon is not None:
        weak = ", far too little noise to protect" if one.epsilon > LARGEST_EPSILON else ""
        return one.figure + (" (given the partition)" if "given the partition" in one.kind else "") + weak
    return {"none": "no protection", "nothing sent": "nothing was sent"}.get(one.kind, "encryption")


def _counted(config: Config) -> bool:
    return config.federation.weights == "samples"


def _guarantees_of(config: Config, releases: Sequence[Release]) -> RunGuarantees:
    privacy = config.privacy
    seeded = any(release.simulated for release in releases if release.sigma or release.what == "votes")
    noised = [release for release in releases if release.sigma and release.what != TRAINING]
    noised.sort(key=lambda one: one.what == ELECTED)
    used = sigma = clip = 0.0
    if noised:
        paper, sigma, clip = privacy.calibration == "paper", noised[0].sigma, noised[0].clip
        least = config.federation.min_samples
        used = remark_sensitivity(clip, least) if paper else sensitivity(clip, privacy.unit)
    return RunGuarantees(
        method=config.protect.method,
        calibration=privacy.calibration,
        unit=privacy.unit,
        noise_multiplier=sigma / used if used else 0.0,
        sigma=sigma,
        clip=clip,
        simulation=seeded,
        guarantees=guarantees(releases, privacy),
        calibrations=calibrations(config),
        training=_training_of(config),
        lwe_bits=method_of(config).mask_bits(config),
    )


def _training_of(config: Config) -> Training | None:
    privacy = record_privacy(config)
    if privacy is None:
        return None
    rounds = config.participations
    return Training(
        sample_rate=privacy.sample_rate,
        steps_per_round=privacy.steps,
        steps=privacy.steps * rounds,
        clip=privacy.clip,
        noise_multiplier=privacy.multiplier,
    )


def calibrations(config: Config) -> list[Calibration]:
    """The noise by the paper, exact accounting for either unit, and Rényi accounting, for the same (ε, δ) and rounds.

    For the values in the clear if they are noised, otherwise for the encrypted ones; empty if nothing is noised.
    """
    privacy, federation = config.privacy, config.federation
    method = method_of(config)
    clip = privacy.clip if method.noised else privacy.inside_clip
    if math.isinf(privacy.epsilon) or not clip or privacy.unit == "record":
        return []
    parts = method.noised_parts(config)
    releases = parts * config.participations
    tight, rdp = (find(privacy.epsilon, privacy.delta, releases) for find in (tight_multiplier, rdp_multiplier))
    remark = remark_multiplier(privacy.epsilon, privacy.delta, parts * federation.rounds, federation.fraction)
    ways = [
        ("tight, client", sensitivity(clip, "client"), tight),
        ("tight, client-replace", sensitivity(clip, "client-replace"), tight),
        ("Rényi, client", sensitivity(clip, "client"), rdp),
    ]
    if federation.min_samples:
        ways.insert(0, ("paper", remark_sensitivity(clip, federation.min_samples), remark))
    return [
        Calibration(
            name=name,
            sensitivity=change,
            noise_multiplier=multiplier,
            sigma=change * multiplier,
            epsilon_client=epsilon_of(composed_mu(clip, [change * multiplier] * releases), privacy.delta),
        )
        for name, change, multiplier in ways
    ]
