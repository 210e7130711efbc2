"""Add rounds to a finished run, so that it ends as if they had been planned from the start."""

from __future__ import annotations

from msgspec.structs import replace

from paraaegis.config import Config
from paraaegis.errors import ConfigError, RunError
from paraaegis.learn.rate import rate
from paraaegis.methods import method_of
from paraaegis.plural import plural
from paraaegis.privacy.records import record_privacy
from paraaegis.runs.folder import RunFolder, write_config
from paraaegis.runs.improvement import Improvement
from paraaegis.runs.result import read_whole

_NEW_RUN = "start a run with the larger number in another --out"


def extendable(config: Config, done: int) -> bool:
    """Whether more rounds could be added to a run that ended after `done` of them, so that its checkpoint is kept."""
    rounds = max(config.federation.rounds, done + 1)
    try:
        longer = replace(config, federation=replace(config.federation, rounds=rounds))
    except ConfigError:  # such as too few privacy.participations for them
        return False
    return config.privacy.noise == "seeded" and not _what_would_differ(config, longer, done)


def extend(folder: RunFolder, config: Config) -> None:
    """Turn the finished run in a claimed folder into one that continues with this configuration.

    A run that is unfinished, or has the same configuration already, is left as it is.
    """
    stored = folder.stored(config)
    if _goal(stored) == _goal(config):
        return
    _check(folder, stored, config)
    if folder.last.exists():
        folder.last.replace(folder.checkpoint)
    # Killed before the last of these lines, it is extended by the same command, or finished again by the earlier one.
    folder.result.unlink(missing_ok=True)
    write_config(folder.config, config)


def _goal(config: Config) -> tuple[int, int]:
    return config.federation.rounds, config.train.stop_after


def _check(folder: RunFolder, stored: Config, config: Config) -> None:
    """Refuse what could not be a run of this configuration from the start."""
    done, rounds = _rounds_done(folder), config.federation.rounds
    if not done:
        raise RunError(
            f"{folder.path} holds an unfinished run; let it end first, with federation.rounds = "
            f"{stored.federation.rounds} and train.stop_after = {stored.train.stop_after}"
        )
    if rounds <= done:
        raise RunError(
            f"{folder.path} has {plural(done, 'round')}; to extend it, federation.rounds must be larger, got {rounds}"
        )
    if config.privacy.noise == "secret":
        raise RunError(f"the keys of {folder.path} were erased when it ended, since its noise is secret; {_NEW_RUN}")
    if differs := _what_would_differ(stored, config, done):
        raise RunError(f"{folder.path} cannot be extended: {differs}; {_NEW_RUN}")
    if not (folder.last.exists() or folder.checkpoint.exists()):
        raise RunError(f"{folder.last} is gone, without which a finished run cannot be extended; {_NEW_RUN}")
    improvement = Improvement(config)
    for record in folder.read_records():
        improvement.take(record)
    if improvement.stopped:
        raise RunError(
            f"{folder.path} would end at once: {improvement.stopped}. Set train.stop_after to a larger number, or to 0"
        )


def _rounds_done(folder: RunFolder) -> int:
    """The rounds of a run that is over; 0 if it is not. One that was killed may lack its result."""
    done = read_whole(folder)
    return folder.rounds_at_end() if done is None else done.rounds


def _what_would_differ(stored: Config, config: Config, done: int) -> str:
    """What the rounds done would have been like in a run of this configuration; empty if they would be the same."""
    for before, after in zip(_noise(stored), _noise(config), strict=True):
        if before[:done] != after[:done]:
            return (
                f"the noise of {stored.protect.method} is calibrated to {plural(stored.federation.rounds, 'round')} "
                f"(σ = {before[0]:.4g}), and {plural(config.federation.rounds, 'round')} would need σ = {after[0]:.4g} "
                "from the first round on. A run with a fixed privacy.sigma could be extended within its budget"
            )
    if record_privacy(stored) != record_privacy(config):
        return (
            f"the noise of its training is calibrated to {plural(stored.federation.rounds, 'round')}, and "
            f"{plural(config.federation.rounds, 'round')} would need more from the first round on"
        )
    if _rates(stored, done) != _rates(config, done):
        return (
            f"train.schedule = {stored.train.schedule!r} spreads over federation.rounds, so the rounds done would have "
            "had other learning rates"
        )
    return ""


def _noise(config: Config) -> list[tuple[float, ...]]:
    """The σ of each round, for each part of an update that carries noise."""
    method = method_of(config)
    noises = [part.noise(config, method.noised_parts(config)) for part in method.parts.values()]
    return [noise.sigmas for noise in noises if noise is not None]


def _rates(config: Config, done: int) -> list[float]:
    return [rate(config.train, config.federation.rounds, number) for number in range(1, done + 1)]
