"""`paraaegis plan`: from what is wished for to a configuration, with what it will cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paraaegis.cli.options import Json, Settings, check_target, print_json, say_measured
from paraaegis.config import Config, Protect, load_config, make_config
from paraaegis.errors import ConfigError

PILOT = 4  # rounds


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file to start from; without it, every default, tight accounting, secret noise."),
    ] = None,
    settings: Settings = None,
    model: Annotated[
        str, typer.Option(help="A model's name or its number of values; default: the configuration's model.")
    ] = "",
    clients: Annotated[int | None, typer.Option(min=1, help="Clients.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Default: the file's; without one paraaegis-static with --epsilon, else paraaegis-feedback."),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="Mbit/s of each client's link, each on a machine like this one; without it, all run here."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="The run may take so long.")] = None,
    megabytes: Annotated[float | None, typer.Option(help="A client may send and receive so much in the run.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The noised part's ε, by exact accounting.")] = None,
    points: Annotated[float | None, typer.Option(help="Accuracy that may be lost; needs --pilot.")] = None,
    train_seconds: Annotated[
        float | None, typer.Option(help="Seconds of one client's training in a round; --pilot measures it.")
    ] = None,
    pilot: Annotated[bool, typer.Option(help="Run a few short rounds on the configuration's data first.")] = False,
    pilot_rounds: Annotated[int | None, typer.Option(min=2, help=f"Rounds of each pilot run, else {PILOT}.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the configuration here, a new file.")] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine, then choose the ratio that fits your limits and say what it costs and guarantees.

    Where nothing fits, shows what comes nearest, writes nothing and exits with 1.
    """
    from paraaegis.cli.tables import show_plan
    from paraaegis.methods import REFERENCE
    from paraaegis.planning.measure import measure
    from paraaegis.planning.pilot import run_pilot
    from paraaegis.planning.planner import Request, check, configured, recommend, train_seconds_of
    from paraaegis.runs.folder import write_config

    limits = {"seconds": seconds, "megabytes": megabytes, "bandwidth": bandwidth, "points": points}
    _check(limits | {"train-seconds": train_seconds}, model, pilot, pilot_rounds, write)
    chosen = _chosen(config, settings or [], clients, rounds, method, epsilon, model, bandwidth)
    check(chosen)
    length = _length(model, chosen)
    machine = measure(chosen.protect.profile, (REFERENCE, chosen.protect.method), say_measured)
    flown = (
        run_pilot(chosen, pilot_rounds or PILOT, lambda name: typer.echo(f"pilot: {name}", err=True)) if pilot else None
    )
    if flown is not None and train_seconds is None:
        train_seconds = train_seconds_of(flown, chosen, machine, length, bandwidth is None)
    request = Request(length=length, train=train_seconds, **limits)
    recommendation = recommend(chosen, request, machine, flown)
    if write is not None and recommendation.fits:
        write_config(write, configured(chosen, recommendation.choice))
    if as_json:
        print_json(recommendation)
    else:
        show_plan(recommendation, write)
    if not recommendation.fits:
        sys.exit(1)


def _check(
    limits: dict[str, float | None], model: str, pilot: bool, pilot_rounds: int | None, write: Path | None
) -> None:
    """Refuse what can be refused before the machine is measured."""
    if limits["points"] is not None and not pilot:
        raise ConfigError("--points asks what a ratio costs in accuracy, which only --pilot can tell; add --pilot")
    if pilot_rounds is not None and not pilot:
        raise ConfigError(f"--pilot-rounds {pilot_rounds} is for a pilot run; add --pilot")
    for name, value in limits.items():
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} must be above 0, got {value:g}")
    if _number(model) is not None and (pilot or write):
        what = "--pilot trains" if pilot else "--write names"
        raise ConfigError(f"{what} a model, and {model} is a number of values; name one, or leave --model out")
    if write is not None:
        check_target("--write", write, ".toml")
        if write.exists():
            raise ConfigError(f"--write: {write} is there already; name another file, or remove it")


def _number(model: str) -> int | None:
    """Values, where they are given as a number: 11191242, 11_191_242 or 1.1e7."""
    try:
        value = float(model.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return round(value) if 1 <= value < 1e12 else None


def _chosen(
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

    named = model if model in MODEL_NAMES else None
    engine = None if bandwidth is None else "flower"
    if method is None and path is None and epsilon is None:
        method = next(name for name, one in METHODS.items() if one.withholds)
    given = {
        "federation.clients": clients,
        "federation.rounds": rounds,
        "privacy.epsilon": epsilon,
        "privacy.calibration": "tight" if epsilon is not None or path is None else None,
        "privacy.noise": "secret" if path is None else None,
        "protect.method": method,
        "model.name": named,
        "engine.name": engine,
    }
    changes = [*(f"{key}={value}" for key, value in given.items() if value is not None), *settings]
    chosen = load_config(path, changes) if path is not None else make_config({}, changes)
    if epsilon is not None and chosen.privacy.calibration != "tight":
        raise ConfigError(
            f"--epsilon is counted exactly, got --set privacy.calibration={chosen.privacy.calibration}; leave one out"
        )
    if epsilon is not None and not method_of(chosen).noised_parts(chosen):
        raise ConfigError(
            f"{chosen.protect.method} sends nothing that is noised, so that --epsilon would promise nothing: choose "
            f"--method {Protect().method}, or noise the encrypted sum with --set privacy.inside_clip=1.0"
        )
    return chosen


def _length(model: str, config: Config) -> int:
    """Values of a model: given as a number, or counted for the configuration's data."""
    from paraaegis.learn.names import MODEL_NAMES

    if (number := _number(model)) is not None:
        return number
    name = model or config.model.name
    if name not in MODEL_NAMES:
        raise ConfigError(f"--model must be a number of values or one of {', '.join(MODEL_NAMES)}, got {model!r}")
    from paraaegis.runs.experiment import model_length

    return model_length(name, config)
