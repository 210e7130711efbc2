"""One configuration: a TOML file, checked whole before any work. Options on the command line use the same words."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
import tomli_w
from msgspec import Meta

from paraaegis.errors import ConfigError
from paraaegis.plural import plural
from paraaegis.types import primed

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
MOST = 1e30  # beyond it a float32 soon overflows
HERE = ("engine.", "data.folder", "privacy.attempts")  # keys that change no result, and may differ between silos


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Every key has a default and unknown keys are refused."""


class Federation(Section, frozen=True):
    """Who takes part."""

    clients: Annotated[Count, "enrolled clients"] = 10
    rounds: Annotated[int, Meta(ge=1, le=100_000), "rounds of training"] = 15
    fraction: Annotated[float, Meta(gt=0, le=1), "share of the clients that is drawn each round"] = 1.0
    quorum: Annotated[Natural, "fewest clients in a sum; 0: four fifths of a round, or what floor or method need"] = 0
    weights: Annotated[Literal["samples", "uniform"], "what a client weighs in the mean: its samples, or 1"] = "samples"
    min_samples: Annotated[Natural, "smallest data set, for the paper's noise; 0: the split's smallest share"] = 0
    history: Annotated[Count, "rounds for which aggregates are kept for clients that missed them"] = 10


class Data(Section, frozen=True):
    """Which data, and how an experiment shares it out."""

    name: Annotated[str, "see `paraaegis datasets`"] = "digits"
    split: Annotated[Literal["iid", "dirichlet"], "all alike, or labels drawn by client"] = "iid"
    alpha: Annotated[Positive, "of the Dirichlet split; the smaller, the less alike"] = 0.5
    folder: Annotated[str, "where the files lie; empty: where the data set's package puts them, else data/NAME"] = ""


class Model(Section, frozen=True):
    """Which network."""

    name: Annotated[str, "see `paraaegis models`"] = "cnn"


class Train(Section, frozen=True):
    """Local training."""

    epochs: Annotated[Count, "K, passes over a client's data in a round"] = 3
    batch: Annotated[Count, "samples in a step"] = 32
    optimizer: Annotated[Literal["sgd", "adam"], "of each client, with a state that it keeps"] = "sgd"
    lr: Annotated[Positive, "learning rate"] = 0.05
    momentum: Annotated[float, Meta(ge=0, lt=1), "of SGD; of Adam, β₁"] = 0.9
    server_lr: Annotated[Positive, "what the mean update is multiplied by, but for BatchNorm's statistics"] = 1.0


class Protect(Section, frozen=True):
    """Which method, and the practitioner's lever."""

    method: Annotated[str, "see `paraaegis methods`"] = "paraaegis-static"
    ratio: Annotated[Share, "r₀, share of the values that is encrypted"] = 0.1
    decay: Annotated[float, Meta(gt=0, le=1), "λ, what the ratio is multiplied by each round"] = 1.0
    strategy: Annotated[Literal["max", "min", "rand"], "which values a client votes for, by magnitude"] = "max"
    profile: Annotated[str, "CKKS parameters: precise, or compact for models without BatchNorm"] = "precise"
    carry: Annotated[bool, "noised methods: add what clipping cut off to the next update"] = False
    lwe: Annotated[Literal["ring", "matrix"], "lwe-secagg: fast, or as published and slow"] = "ring"


class Privacy(Section, frozen=True):
    """The budget of the noised part."""

    epsilon: Annotated[Positive, "budget; inf: no noise"] = 1.0
    delta: Annotated[float, Meta(ge=1e-100, lt=1), "of (ε, δ)"] = 1e-5
    clip: Annotated[Positive, "θ, L2 norm that an update is clipped to; inf: not clipped"] = 1.0
    calibration: Annotated[Literal["paper", "tight"], "the paper's formula, or exact accounting"] = "paper"
    unit: Annotated[Literal["client", "client-replace"], "a client's update is left out, or replaced"] = "client"
    noise: Annotated[Literal["seeded", "secret"], "secret: nobody can replay it; seeded: a simulation"] = "seeded"
    sigma: Annotated[float, Meta(ge=0), "noise a coordinate; 0: what the budget allows for all rounds"] = 0.0
    participations: Annotated[Natural, "tight: rounds that a client takes part in at most; 0: any"] = 0
    inside_clip: Annotated[float, Meta(ge=0), "clip the encrypted part to this and share noise for its sum"] = 0.0
    colluders: Annotated[Count, "clients assumed to help an attacker: with shared noise, and with lwe-secagg"] = 1
    floor: Annotated[Natural, "no client takes part in, or reads, a sum over fewer clients than this"] = 0
    attempts: Annotated[Count, "answers of a client for one state of the model; a repeated round is another"] = 3
    vary: Annotated[float, Meta(gt=0, le=1), "varying-dp: the noise's ratio from round to round"] = 0.9
    vary_scale: Annotated[Literal["deviation", "variance"], "varying-dp: what that ratio multiplies"] = "deviation"
    vary_direction: Annotated[Literal["down", "up"], "varying-dp: whether noise shrinks or grows"] = "down"


class Engine(Section, frozen=True):
    """How it runs here. Nothing in this table changes a result, but CUDA (in bfloat16) and late clients."""

    name: Annotated[Literal["local", "flower"], "clients as threads here, or as nodes of a Flower federation"] = "local"
    workers: Annotated[Natural, "threads for clients; 0: one a core"] = 0
    processes: Annotated[Natural, "for encryption of long vectors; 0: one a core"] = 0
    checkpoint: Annotated[Count, "rounds between checkpoints"] = 1
    device: Annotated[Literal["auto", "cpu", "cuda"], "where training runs; auto: CUDA where there is any"] = "auto"
    deadline: Annotated[Positive, "seconds that clients across a network may take to answer"] = 3600.0
    share_metrics: Annotated[bool, "tell the server what this silo's model scores on its own hold-out data"] = False
    share_seconds: Annotated[bool, "tell the server how long this silo trains and protects"] = False


class Config(Section, frozen=True):
    """All of it."""

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1), "of models, splits, draws and seeded noise"] = 0
    federation: Federation = Federation()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    protect: Protect = Protect()
    privacy: Privacy = Privacy()
    engine: Engine = Engine()

    @property
    def names(self) -> tuple[str, ...]:
        """The clients."""
        return tuple(f"client-{index}" for index in range(self.federation.clients))

    @property
    def sampled(self) -> int:
        """Clients in a round."""
        return max(1, round(self.federation.fraction * self.federation.clients))

    def filled(self, other: Config) -> Config:
        """The same with what a run fills in, and this leaves open, as in another."""
        mine, theirs = self.federation, other.federation
        federation = msgspec.structs.replace(
            mine, quorum=mine.quorum or theirs.quorum, min_samples=mine.min_samples or theirs.min_samples
        )
        return msgspec.structs.replace(self, federation=federation)

    def digest(self) -> str:
        """A fingerprint of everything that changes a result, equal for all who take part."""
        relevant = msgspec.to_builtins(self)
        del relevant["engine"], relevant["data"]["folder"], relevant["privacy"]["attempts"]
        return hashlib.sha256(msgspec.json.encode(relevant, order="deterministic")).hexdigest()


primed(Config)


def as_toml(value: Any) -> str:
    """A value as a setting gives it after its `=`."""
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()


def load_config(path: Path | str, settings: Iterable[str] = ()) -> Config:
    """Read a TOML file, change it by `key=value` settings, and check it."""
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        if "rows" in raw:
            raise ConfigError(
                f"{path} is a preset of many configurations, for `paraaegis compare --preset`; name one's file"
            )
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    settings = list(settings)
    with naming(path, settings):
        return make_config(raw, settings)


@contextmanager
def naming(where: object, settings: Collection[str]) -> Iterator[None]:
    """Let a refusal say where it comes from: a file or a row, perhaps changed by settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}{' as changed' if settings else ''}: {error}") from error


def make_config(raw: Mapping[str, Any], settings: Iterable[str] = ()) -> Config:
    """Build and check a configuration from nested tables."""
    tables = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    for setting in settings:
        _set(tables, setting)
    try:
        config = msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), tables)) from error
    _refuse_contradictions(config)
    return config


def _set(tables: dict[str, Any], setting: str) -> None:
    """Apply one `section.key=value`; the value is read as TOML, or as text where it is none."""
    key, found, text = setting.partition("=")
    if not found or not key.strip():
        raise ConfigError(f"a setting has the form section.key=value, got {setting!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, name = key.strip().split(".")
    table = tables
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{section} is a value, not a table: cannot set {key}")
    table[name] = value


def _explain(message: str, tables: Mapping[str, Any]) -> str:
    """Say which key, what came and what is allowed, from msgspec's message and the path in it."""
    what, _, where = message.partition(" - at `$")
    path = [part for part in where.rstrip("`").split(".") if part]
    kind: Any = Config
    value: Any = tables
    for part in path:
        kind = get_type_hints(kind, include_extras=True).get(part, Any)
        value = value.get(part) if isinstance(value, Mapping) else value
    if unknown := re.search(r"unknown field `(.+)`", what):
        allowed = [field.name for field in msgspec.structs.fields(kind)]
        hint = _elsewhere(unknown[1]) or meant(unknown[1], allowed)
        return f"unknown key {'.'.join([*path, unknown[1]])!r}{hint}; allowed: {', '.join(allowed)}"
    if "enum value" in what:
        allowed = [str(choice) for choice in get_args(get_args(kind)[0])]
        return f"{'.'.join(path)} must be one of {', '.join(allowed)}, got {value!r}{meant(str(value), allowed)}"
    what = what.partition(", got")[0]  # msgspec's is the type
    return f"{'.'.join(path)}: {what[0].lower()}{what[1:].replace('`', '')}, got {value!r}"


def _elsewhere(name: str) -> str:
    """A hint at the table that has a key of this name."""
    tables = {field.name: field.type for field in msgspec.structs.fields(Config)}
    found = [table for table, kind in tables.items() if name in getattr(kind, "__struct_fields__", ())]
    return f" (did you mean {found[0] + '.' + name!r}?)" if found else ""


def meant(word: str, allowed: Iterable[str]) -> str:
    """A hint at the allowed word that is nearest, if any is near."""
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _refuse_contradictions(config: Config) -> None:
    federation = config.federation
    if federation.quorum > config.sampled:
        raise ConfigError(
            f"federation.quorum must be at most the {plural(config.sampled, 'client')} of a round, "
            f"got {federation.quorum}"
        )
    numbers = {
        "train.lr": config.train.lr,
        "train.server_lr": config.train.server_lr,
        "data.alpha": config.data.alpha,
        "privacy.clip": 0.0 if math.isinf(config.privacy.clip) else config.privacy.clip,
        "privacy.sigma": config.privacy.sigma,
        "privacy.inside_clip": config.privacy.inside_clip,
    }
    for key, value in numbers.items():
        if value > MOST:
            raise ConfigError(f"{key} must be at most {MOST:g}, got {value:g}")
    _refuse_contradictory_privacy(config)


def _refuse_contradictory_privacy(config: Config) -> None:
    privacy, federation = config.privacy, config.federation
    if math.isinf(privacy.clip) and not math.isinf(privacy.epsilon):
        raise ConfigError("privacy.clip = inf leaves nothing to calibrate noise to; set a finite clip or epsilon = inf")
    if privacy.sigma and math.isinf(privacy.epsilon):
        raise ConfigError(
            f"privacy.sigma = {privacy.sigma:g} asks for noise and privacy.epsilon = inf for none; set one"
        )
    if privacy.participations and privacy.calibration == "paper":
        raise ConfigError(
            "privacy.participations is for calibration 'tight': the paper's formula counts sampling by its fraction"
        )
    if privacy.participations > federation.rounds:
        raise ConfigError(
            f"privacy.participations must be at most the {plural(federation.rounds, 'round')}, "
            f"got {privacy.participations}"
        )
    if (least := math.ceil(federation.rounds * config.sampled / federation.clients)) > privacy.participations > 0:
        raise ConfigError(
            f"privacy.participations must be at least {least} for {plural(federation.rounds, 'round')} of "
            f"{config.sampled} of {plural(federation.clients, 'client')}, got {privacy.participations}"
        )
    if privacy.floor > (federation.quorum or config.sampled):
        raise ConfigError(
            f"privacy.floor must be at most the quorum, {federation.quorum or config.sampled}, got {privacy.floor}"
        )
