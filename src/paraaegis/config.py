"""One configuration: a TOML file, checked whole before any work. Options on the command line use the same words."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from paraaegis.errors import ConfigError

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Every key has a default and unknown keys are refused."""


class Federation(Section, frozen=True):
    """Who takes part. `quorum` and `min_samples` of 0 are filled in when the run is prepared."""

    clients: Count = 10
    rounds: Count = 15
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of the clients, sampled each round
    quorum: Annotated[int, Meta(ge=0)] = 0  # 0: four fifths of those sampled
    weights: Literal["samples", "uniform"] = "samples"
    min_samples: Annotated[int, Meta(ge=0)] = 0  # the Remark's min|D_i|; 0: the smallest share of the split
    history: Count = 10  # rounds for which aggregates are kept for clients that missed them


class Data(Section, frozen=True):
    """Which data, and how an experiment shares it out."""

    name: str = "digits"
    split: Literal["iid", "dirichlet"] = "iid"
    alpha: Positive = 0.5
    folder: str = ""  # where the files lie; empty: where the data set's package puts them


class Model(Section, frozen=True):
    """Which network."""

    name: str = "cnn"


class Train(Section, frozen=True):
    """Local training: K epochs of mini-batches."""

    epochs: Count = 3
    batch: Count = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.05
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9


class Protect(Section, frozen=True):
    """Which method, and the practitioner's lever: ratio r_0 and decay λ."""

    method: str = "paraaegis-static"
    ratio: Share = 0.1
    decay: Annotated[float, Meta(gt=0, le=1)] = 1.0
    strategy: Literal["max", "min", "rand"] = "max"
    profile: str = "precise"
    carry: bool = False  # noised methods: add what clipping cut off to the next update
    lwe: Literal["ring", "matrix"] = "ring"  # lwe-secagg: which form


class Privacy(Section, frozen=True):
    """The budget of the noised part. epsilon = inf means no noise, clip = inf no clipping."""

    epsilon: Positive = 1.0
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    clip: Positive = 1.0  # θ
    calibration: Literal["paper", "tight"] = "paper"
    unit: Literal["client", "client-replace"] = "client"  # a client's update replaced by nothing, or by another
    noise: Literal["seeded", "secret"] = "seeded"  # seeded: a simulation that can be replayed, no guarantee
    sigma: Annotated[float, Meta(ge=0)] = 0.0  # noise a coordinate; 0: what the budget allows for all rounds
    participations: Annotated[int, Meta(ge=0)] = 0  # tight: rounds that a client takes part in at most; 0: any
    inside_clip: Annotated[float, Meta(ge=0)] = 0.0  # clip the encrypted part to this and share noise for its sum
    colluders: Count = 1  # shared noise: clients assumed to know their own share of it and tell it
    floor: Annotated[int, Meta(ge=0)] = 0  # no client takes part in, or reads, a sum over fewer clients than this
    vary: Annotated[float, Meta(gt=0, le=1)] = 0.9  # varying-dp: the noise's geometric ratio a round
    vary_scale: Literal["deviation", "variance"] = "deviation"  # what that ratio multiplies
    vary_direction: Literal["down", "up"] = "down"  # whether the noise shrinks or grows


class Engine(Section, frozen=True):
    """How it runs here. Nothing in this table changes a result, but for `device`: CUDA trains in bfloat16."""

    name: Literal["local", "flower"] = "local"  # clients as threads of one process, or as nodes of a Flower federation
    workers: Annotated[int, Meta(ge=0)] = 0  # threads for clients; 0: one a core
    processes: Annotated[int, Meta(ge=0)] = 0  # for encryption of long vectors; 0: one a core
    checkpoint: Count = 1  # rounds between checkpoints
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deadline: Positive = 3600.0  # seconds that clients across a network may take to answer


class Config(Section, frozen=True):
    """All of it."""

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    federation: Federation = Federation()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    protect: Protect = Protect()
    privacy: Privacy = Privacy()
    engine: Engine = Engine()

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
        del relevant["engine"], relevant["data"]["folder"]
        return hashlib.sha256(msgspec.json.encode(relevant, order="deterministic")).hexdigest()


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
    return make_config(raw, settings)


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
        return (
            f"unknown key {'.'.join([*path, unknown[1]])!r}{meant(unknown[1], allowed)}; allowed: {', '.join(allowed)}"
        )
    if "enum value" in what:
        allowed = [str(choice) for choice in get_args(kind)]
        return f"{'.'.join(path)} must be one of {', '.join(allowed)}, got {value!r}{meant(str(value), allowed)}"
    return f"{'.'.join(path)}: {what[0].lower()}{what[1:].replace('`', '')}, got {value!r}"


def meant(word: str, allowed: Iterable[str]) -> str:
    """A hint at the allowed word that is nearest, if any is near."""
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _refuse_contradictions(config: Config) -> None:
    protect, privacy, federation = config.protect, config.privacy, config.federation
    if protect.method == "paraaegis-static" and protect.decay != 1.0:
        raise ConfigError(
            f"paraaegis-static keeps its ratio, so protect.decay must be 1.0, got {protect.decay}; "
            "use method paraaegis-dynamic for a ratio that decays"
        )
    if math.isinf(privacy.clip) and not math.isinf(privacy.epsilon):
        raise ConfigError("privacy.clip = inf leaves nothing to calibrate noise to; set a finite clip or epsilon = inf")
    if federation.quorum > config.sampled:
        raise ConfigError(
            f"federation.quorum must be at most the {config.sampled} clients of a round, got {federation.quorum}"
        )
    if privacy.participations and (privacy.calibration == "paper" or protect.method == "varying-dp"):
        raise ConfigError(
            "privacy.participations is for equal noise of calibration 'tight': the paper's formula counts sampling by "
            "its fraction, and a varying series needs all its rounds"
        )
    if privacy.participations > federation.rounds:
        raise ConfigError(
            f"privacy.participations must be at most the {federation.rounds} rounds, got {privacy.participations}"
        )
    if (least := math.ceil(federation.rounds * config.sampled / federation.clients)) > privacy.participations > 0:
        raise ConfigError(
            f"privacy.participations must be at least {least} for {federation.rounds} rounds of {config.sampled} of "
            f"{federation.clients} clients, got {privacy.participations}"
        )
    if privacy.floor > (federation.quorum or config.sampled):
        raise ConfigError(
            f"privacy.floor must be at most the quorum, {federation.quorum or config.sampled}, got {privacy.floor}"
        )
    for key, value in (("train.lr", config.train.lr), ("data.alpha", config.data.alpha)):
        if math.isinf(value):
            raise ConfigError(f"{key} must be finite, got {value}")
