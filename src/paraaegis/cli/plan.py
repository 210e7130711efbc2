"""`paraaegis plan`: from limits to a configuration and its cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paraaegis.cli.options import Json, Metric, Settings, check_target, print_json, say_measured
from paraaegis.config import Config, load_config, make_config, meant
from paraaegis.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    from paraaegis.planning.learning import Instead
    from paraaegis.planning.pilot import Pilot

PILOT = 4  # rounds


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file to start from. Without it, the defaults with secret noise."),
    ] = None,
    settings: Settings = None,
    model: Annotated[
        str, typer.Option(help="A model's name or its number of values. Default: the configuration's model.")
    ] = "",
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="The method. Default: the file's; without a file, feedback, or static with --epsilon."),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="Mbit/s of each client's link, each on a machine like this one. Without it, all run here."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Limit: seconds for the whole run, with training.")] = None,
    megabytes: Annotated[float | None, typer.Option(help="Limit: MB per client, both directions, whole run.")] = None,
    megabytes_total: Annotated[float | None, typer.Option(help="The same for all clients together.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget: ε of the noised part or, with privacy.unit=record, of one record.")
    ] = None,
    points: Annotated[
        float | None, typer.Option(help="Limit: points of accuracy lost, or of --metric; needs --pilot.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="How much a cheaper choice may lose against the best. Default: a point of accuracy, or a hundredth of "
            "another --metric.",
        ),
    ] = None,
    train_seconds: Annotated[
        float | None, typer.Option(help="Seconds that one client trains per round; --pilot measures it.")
    ] = None,
    pilot: Annotated[bool, typer.Option(help="Run a few short rounds on the configuration's data first.")] = False,
    pilot_rounds: Annotated[int | None, typer.Option(min=2, help=f"Rounds per pilot run. Default: {PILOT}.")] = None,
    metric: Metric = None,
    write: Annotated[Path | None, typer.Option(help="A new file to write the configuration to.")] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine, then choose the cheapest ratio that fits your limits and loses little.

    If nothing fits, or nothing that fits would learn, shows the closest choice, writes nothing and exits with status 1.
    """
    from paraaegis.cli.tables import show_plan
    from paraaegis.metrics import ACCURACY
    from paraaegis.planning.measure import measure
    from paraaegis.planning.pilot import informed, run_pilot
    from paraaegis.planning.planner import REFERENCES, Request, check, configured, recommend, train_seconds_of
    from paraaegis.runs.folder import write_config
    from paraaegis.runs.guarantees import lacks_samples, run_guarantees

    limits = {
        "seconds": seconds,
        "megabytes": megabytes,
        "megabytes_total": megabytes_total,
        "bandwidth": bandwidth,
        "points": points,
    }
    of_pilot = {"pilot-rounds": pilot_rounds, "metric": metric}
    _check(limits | {"train_seconds": train_seconds}, model, pilot, of_pilot, write)
    base = _base(config, settings or [], clients, rounds, method, epsilon, model, bandwidth)
    if _number(model) is not None and write is not None and not base.learner:
        raise ConfigError(
            f"--write names a model, but --model {model} is a number of values; name a model or omit --model"
        )
    check(base)
    if base.learner and not pilot:
        run_guarantees(base)  # refuses noise that depends on samples which only a pilot counts
    length = _own_length(base, config, pilot) if base.learner and not model else _length(model, base)
    machine = measure(base.protect.profile, (*REFERENCES, base.protect.method), say_measured)
    measured = None
    if pilot:
        measured = run_pilot(base, pilot_rounds or PILOT, _say_pilot, metric=metric)
        if train_seconds is None:
            train_seconds = train_seconds_of(measured, base, machine, length, bandwidth is None)
        if base.learner and lacks_samples(base):
            base = informed(base, measured.min_samples)
    shown = measured.metric if measured else ACCURACY
    request = Request(length=length, train=train_seconds, metric=shown, tolerance=tolerance, **limits)
    recommendation = recommend(base, request, machine, measured)
    if measured is not None:
        recommendation.instead = _tried(recommendation.instead, base, measured)
    if write is not None and recommendation.fits:
        write_config(write, configured(base, recommendation.choice))
    if as_json:
        print_json(recommendation)
    else:
        show_plan(recommendation, write)
    if not recommendation.fits:
        sys.exit(1)


def _tried(instead: list[Instead], base: Config, pilot: Pilot) -> list[Instead]:
    """The alternatives that learn, with what each reached in as many rounds as the pilot had."""
    from paraaegis.planning.learning import learnt
    from paraaegis.planning.pilot import try_out

    for one in instead:
        with suppress(ConfigError, PrivacyError):  # such as a model or a learner that cannot train with noise
            one.reached = try_out(make_config(base.tables(), one.settings), pilot, _say_pilot)
    return [one for one in instead if one.reached is not None and learnt(pilot, one.reached)]


def _say_pilot(name: str) -> None:
    typer.echo(f"pilot: {name}", err=True)


def _check(
    limits: dict[str, float | None],
    model: str,
    pilot: bool,
    of_pilot: Mapping[str, int | str | None],
    write: Path | None,
) -> None:
    """Refuse what can be refused before the machine is measured."""
    if limits["points"] is not None and not pilot:
        raise ConfigError("--points limits the loss of accuracy, which only a pilot run measures; add --pilot")
    for name, given in of_pilot.items():
        if given is not None and not pilot:
            raise ConfigError(f"--{name} {given} applies to a pilot run only; add --pilot")
    for name, value in limits.items():
        if value is not None and not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0, got {value:g}")
    if limits["seconds"] is not None and limits["train_seconds"] is None and not pilot:
        raise ConfigError(
            f"--seconds {limits['seconds']:g} limits the whole run, of which training is a part; add --train-seconds, "
            "the seconds that one client trains per round, or --pilot, which measures them"
        )
    if _number(model) is not None and pilot:
        raise ConfigError(
            f"--pilot trains a model, but --model {model} is a number of values; name a model or omit --model"
        )
    if write is not None:
        check_target("--write", write, ".toml")
        if write.exists():
            raise ConfigError(f"--write: {write} exists; name another file or remove it")


def _number(model: str) -> int | None:
    """The number of values, if given as one (11191242, 11_191_242 or 1.1e7); otherwise None."""
    try:
        value = float(model.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return round(value) if 1 <= value < 1e12 else None


def _base(
    path: Path | None,
    settings: list[str],
    clients: int | None,
    rounds: int | None,
    method: str | None,
    epsilon: float | None,
    model: str,
    bandwidth: float | None,
) -> Config:
    from paraaegis.learn.names import MODEL_NAMES
    from paraaegis.methods import METHODS, method_of
    from paraaegis.runs.check import check_budget

    named = model if model in MODEL_NAMES else None
    noised = next(name for name, one in METHODS.items() if one.votes and one.noised)
    engine = None if bandwidth is None else "flower"
    if method is None and path is None and epsilon is not None and "privacy.unit=record" not in settings:
        method = noised
    given = {
        "federation.clients": clients,
        "federation.rounds": rounds,
        "privacy.epsilon": epsilon,
        "privacy.calibration": "tight" if epsilon is not None else None,
        "privacy.noise": "secret" if path is None else None,
        "protect.method": method,
        "model.name": named,
        "engine.name": engine,
    }
    changes = [*(f"{key}={value}" for key, value in given.items() if value is not None), *settings]
    config = load_config(path, changes) if path is not None else make_config({}, changes)
    check_budget(config)
    if epsilon is not None and config.privacy.calibration != "tight":
        raise ConfigError(
            f"--epsilon needs exact accounting, got --set privacy.calibration={config.privacy.calibration}; leave one "
            "of them out"
        )
    if epsilon is not None and config.privacy.unit != "record" and not method_of(config).noised_parts(config):
        raise ConfigError(
            f"{config.protect.method} adds no noise, so --epsilon would have no effect; choose "
            f"--method {noised}, or add noise to the encrypted sum with --set privacy.inside_clip=1.0"
        )
    return config


def _own_length(config: Config, path: Path | None, pilot: bool) -> int:
    """The number of values of the model of the user's own learners, which only a pilot makes."""
    if not pilot:
        raise ConfigError(
            f"the model size of learner = {config.learner!r} is unknown until the learner is made; add --pilot, which "
            "also measures its training, or give the number of values with --model"
        )
    from paraaegis.protocol.learner import introduce
    from paraaegis.runs.check import warn_of_range
    from paraaegis.runs.learners import find_maker, importable

    importable(path.parent if path else None)
    name = config.names[0]
    learner = find_maker(config)(config, name)
    warn_of_range(config, getattr(learner, "has_batch_norm", False))
    return introduce(name, learner)[0].length


def _length(model: str, config: Config) -> int:
    """The number of values of a model: as given, or counted for the configuration's data."""
    from paraaegis.learn.names import MODEL_NAMES

    if (number := _number(model)) is not None:
        return number
    if config.learner:
        raise ConfigError(
            f"--model must be a number of values with learner = {config.learner!r}, whose model is not built in, got "
            f"{model!r}; or leave it out and add --pilot, which counts them"
        )
    name = model or config.model.name
    if name not in MODEL_NAMES:
        raise ConfigError(
            f"--model must be a number of values or one of {', '.join(MODEL_NAMES)}, got {name!r}"
            f"{meant(name, MODEL_NAMES)}"
        )
    from paraaegis.learn.models import has_batch_norm
    from paraaegis.runs.check import warn_of_range
    from paraaegis.runs.experiment import model_length

    warn_of_range(config, has_batch_norm(name))
    return model_length(name, config)
