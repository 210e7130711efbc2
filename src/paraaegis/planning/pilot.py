"""Short runs on the user's own data, to measure how long training takes and what a ratio costs in a metric."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from paraaegis.config import PASSED, Config, Privacy
from paraaegis.errors import RunError, UpdateError
from paraaegis.launch import run
from paraaegis.methods import REFERENCE
from paraaegis.metrics import ACCURACY, choose, lower_is_better, scaled
from paraaegis.planning.cost import priced_as
from paraaegis.privacy.records import Step, epsilon_of_steps, record_privacy
from paraaegis.protocol.records import RoundRecord
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import run_guarantees
from paraaegis.runs.learners import find_maker

RATIOS = (0.01, 0.05, 0.2)


class Pilot(msgspec.Struct, kw_only=True):
    """The results of short runs with plain averaging, and with the planned method at a few ratios.

    Values are of `metric` after `rounds`, accuracies in percent. A run that diverged counts as 0, or as infinity if
    lower is better.
    """

    method: str
    metric: str = ACCURACY
    rounds: int
    plain: float
    start: float = math.nan  # before any training; NaN: unknown
    by_ratio: dict[str, float]
    min_samples: int = 0  # of the client with the least data; 0: unknown
    train: float  # seconds that a client trains per round, measured with plain averaging
    wall: float  # seconds per round of plain averaging, all clients on this machine

    @property
    def smallest(self) -> float:
        """The smallest ratio that was tried."""
        return min(map(float, self.by_ratio))

    @property
    def largest(self) -> float:
        """The largest ratio that was tried."""
        return max(map(float, self.by_ratio))

    def points_lost(self, ratio: float) -> float:
        """What is lost against plain averaging, interpolated between the pilot's ratios on a logarithmic scale.

        Above the largest ratio, the loss is taken to be that at the largest, except at 100%, which loses nothing. Below
        the smallest one nothing was measured, and the loss is taken to be everything learnt.
        """
        known = sorted((float(text), self._lost(value)) for text, value in self.by_ratio.items())
        (least, most), (largest, last) = known[0], known[-1]
        if ratio >= largest:
            return max(0.0, last) if ratio < 1 else 0.0
        if ratio < least:
            return max(most, self._lost(_nothing_learnt(self.metric)))
        return float(np.interp(math.log(ratio), [math.log(r) for r, _ in known], [max(0.0, lost) for _, lost in known]))

    def reached(self, ratio: float) -> float:
        """The metric at a ratio."""
        lost = self.points_lost(ratio)
        return self.plain + lost if lower_is_better(self.metric) else self.plain - lost

    def _lost(self, value: float) -> float:
        return value - self.plain if lower_is_better(self.metric) else self.plain - value


def run_pilot(
    config: Config,
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
    run_one: Callable[[Config, Path], object] = run,
    metric: str | None = None,
) -> Pilot:
    """Run the pilot in a temporary folder, with the noise of the whole run.

    It compares this metric, by default accuracy or the first that is reported. `run_one` runs a configuration in a
    folder; with learners of your own, let it call `federate`.
    """
    short = _with_training_of(_shortened(config, rounds), config)
    bare = msgspec.structs.replace(
        short,
        protect=msgspec.structs.replace(config.protect, carry=False),
        privacy=Privacy(noise=config.privacy.noise, participations=short.privacy.participations),
    )
    timed: list[RoundRecord] = []
    with tempfile.TemporaryDirectory(prefix="paraaegis-pilot-") as place:

        def records_of(name: str, config: Config, method: str, ratio: float) -> list[RoundRecord]:
            progress(name)
            protect = msgspec.structs.replace(config.protect, method=method, ratio=ratio, decay=1.0)
            return _records(run_one, msgspec.structs.replace(config, protect=protect), Path(place) / name)

        def reached(metric: str, ratio: float) -> float:
            with suppress(UpdateError):  # it diverged
                records = records_of(f"{method} {100 * ratio:g}%", noised, method, ratio)
                timed[:] = records if config.privacy.unit == "record" else timed  # DP-SGD takes longer
                return _reached(records, metric)
            return _nothing_learnt(metric)

        plain, method = _plain(records_of, bare, short), priced_as(config.protect.method)
        timed[:] = plain
        shown = choose(metric, plain[-1].metrics)
        reference = _final(plain, shown)
        if math.isnan(reference):
            raise RunError(f"a pilot compares {shown}, but this learner reports none; plan without --pilot")
        fewest = _fewest_samples(Path(place) / REFERENCE, config)
        noised = _with_noise_of(short, informed(config, fewest))
        by_ratio = {str(ratio): reached(shown, ratio) for ratio in RATIOS}
    return Pilot(
        method=method,
        metric=shown,
        rounds=rounds,
        plain=reference,
        start=_untrained(bare, shown) if run_one is run else math.nan,  # others may bring their own learners
        by_ratio=by_ratio,
        min_samples=fewest,
        train=median(record.seconds["train"] for record in timed),
        wall=median(record.seconds["wall"] for record in timed[1:] or timed),
    )


def _plain(
    records_of: Callable[[str, Config, str, float], list[RoundRecord]], bare: Config, short: Config
) -> list[RoundRecord]:
    """Plain averaging; with DP-SGD if it diverges without, since learning rates for DP-SGD can be larger."""
    try:
        return records_of(REFERENCE, bare, REFERENCE, 0.0)
    except UpdateError as error:
        if short.privacy.unit == "record":
            return records_of(f"{REFERENCE} with DP-SGD", short, REFERENCE, 0.0)
        raise RunError(f"plain averaging diverged in the pilot: {error}; plan without --pilot") from error


def _untrained(config: Config, metric: str) -> float:
    """The metric of the first model; NaN if it cannot be measured here."""
    if config.learner == PASSED:
        return math.nan
    from paraaegis.runs.experiment import torch_experiment  # loads torch

    name = config.names[0]
    made = find_maker(config)(config, name) if config.learner else torch_experiment(config, only=name).learners[name]
    return scaled(metric, made.evaluate(made.initial()).get(metric, math.nan))


def try_out(
    config: Config, pilot: Pilot, progress: Callable[[str], None], run_one: Callable[[Config, Path], object] = run
) -> float:
    """The pilot's metric after as many rounds of another configuration, with the noise of its whole run."""
    progress(f"{config.protect.method}, unit {config.privacy.unit}")
    whole = informed(config, pilot.min_samples)
    short = _with_noise_of(_with_training_of(_shortened(whole, pilot.rounds), whole), whole)
    with tempfile.TemporaryDirectory(prefix="paraaegis-pilot-") as place, suppress(UpdateError):
        return _reached(_records(run_one, short, Path(place) / "run"), pilot.metric)
    return _nothing_learnt(pilot.metric)


def _records(run_one: Callable[[Config, Path], object], config: Config, folder: Path) -> list[RoundRecord]:
    run_one(config, folder)
    return RunFolder(folder).read_records()


def _reached(records: list[RoundRecord], metric: str) -> float:
    """The metric in the end; one that is undefined counts as nothing learnt."""
    value = _final(records, metric)
    return _nothing_learnt(metric) if math.isnan(value) else value


def informed(config: Config, fewest: int) -> Config:
    """The configuration with the smallest number of samples of any client, which the paper's noise depends on."""
    return msgspec.structs.replace(config, federation=msgspec.structs.replace(config.federation, min_samples=fewest))


def _shortened(config: Config, rounds: int) -> Config:
    return msgspec.structs.replace(
        config,
        federation=msgspec.structs.replace(config.federation, rounds=rounds),
        privacy=msgspec.structs.replace(config.privacy, participations=min(config.privacy.participations, rounds)),
        train=msgspec.structs.replace(config.train, stop_after=0),  # all are compared after the same rounds
        engine=msgspec.structs.replace(config.engine, name="local"),
    )


def _with_noise_of(short: Config, whole: Config) -> Config:
    """A short run with the noise of the whole one."""
    noise = run_guarantees(whole)
    sigma = noise.sigma * whole.privacy.clip / noise.clip if noise.clip else 0.0  # privacy.sigma is for privacy.clip
    return msgspec.structs.replace(short, privacy=msgspec.structs.replace(short.privacy, sigma=sigma))


def _with_training_of(short: Config, whole: Config) -> Config:
    """A short run whose DP-SGD, if there is any, has the noise of the whole one's: for the ε of its fewer steps."""
    training, privacy = record_privacy(whole), short.privacy
    if training is None or not training.multiplier:
        return short
    steps = training.steps * short.participations
    step = Step(training.sample_rate, training.multiplier)
    epsilon = epsilon_of_steps([(step, steps)], privacy.delta, privacy.group)
    return msgspec.structs.replace(short, privacy=msgspec.structs.replace(privacy, epsilon=epsilon))


def _fewest_samples(run: Path, config: Config) -> int:
    """What a finished run filled in as federation.min_samples."""
    ran = RunFolder(run).read_config() or config
    return ran.federation.min_samples


def _final(records: list[RoundRecord], metric: str) -> float:
    return scaled(metric, records[-1].metrics.get(metric, math.nan))


def _nothing_learnt(metric: str) -> float:
    return math.inf if lower_is_better(metric) else 0.0
