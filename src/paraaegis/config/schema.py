"""The tables of a configuration. They are checked however they are built, from a file or in Python."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from paraaegis.config.names import check_names, numbered
from paraaegis.config.refusals import explain, meant, naming
from paraaegis.config.rules import refuse_contradictions
from paraaegis.errors import ConfigError
from paraaegis.types import primed

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
# Keys that change no result or may differ between silos.
LOCAL_KEYS = ("engine.", "data.folder", "privacy.attempts", "learner")
# Keys that earlier versions did not have. While they are at their defaults, they are left out of digests and files, so
# that runs of those versions are still found.
NEWER = {
    "train": ("schedule", "last_lr", "stop_after", "stop_metric"),
    "protect": ("cipher", "reveal"),
    "privacy": ("sample_rate", "group"),
}
PROFILES = {"ckks": ("precise", "compact"), "rlwe": ("wide", "double")}  # by cipher, the default first


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file. Every key has a default, unknown keys are refused, and values are checked when built."""

    def __post_init__(self) -> None:
        """Check every value and convert it to its type: an int for a float becomes a float, so that digests agree."""
        _check_values(self, f"{type(self).__name__.lower()}.")


def _check_values(section: Section, table: str) -> None:
    for name, kind in _kinds(type(section)).items():
        given = getattr(section, name)
        value = given.item() if isinstance(given, np.generic) else given
        try:
            checked = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(explain(str(error), kind, value, table + name)) from error
        msgspec.structs.force_setattr(section, name, checked)


@cache
def _kinds(section: type[Section]) -> dict[str, Any]:
    """The annotations of a table's keys."""
    return get_type_hints(section, include_extras=True)


class Federation(Section, frozen=True):
    """Who takes part."""

    clients: Annotated[Natural, "enrolled clients; 0: one per name, or ten without names"] = 0
    names: Annotated[tuple[str, ...], "the clients' names; empty: client-0, client-1 and so on"] = ()
    rounds: Annotated[int, Meta(ge=1, le=100_000), "rounds of training"] = 15
    fraction: Annotated[float, Meta(gt=0, le=1), "fraction of the clients drawn each round"] = 1.0
    quorum: Annotated[
        Natural,
        "minimum number of clients in a sum; 0: 80% of a round, or more if privacy.floor or the method requires it",
    ] = 0
    weights: Annotated[Literal["samples", "uniform"], "a client's weight in the mean: its samples, or 1"] = "samples"
    min_samples: Annotated[
        Natural, "smallest number of samples of any client, which the paper's noise depends on; 0: that of the split"
    ] = 0
    history: Annotated[Count, "rounds whose aggregates are kept for clients that missed them"] = 10

    def __post_init__(self) -> None:
        """Also check the names and, if it is 0, set `clients`."""
        super().__post_init__()
        with naming("federation.names"):
            check_names(self.names)
        if self.names and self.clients not in (0, len(self.names)):
            raise ConfigError(
                f"federation.clients is {self.clients}, but federation.names lists {len(self.names)} "
                f"({', '.join(self.names)}); change the list, or omit the number (federation.clients, --clients)"
            )
        msgspec.structs.force_setattr(self, "clients", self.clients or len(self.names) or 10)


class Data(Section, frozen=True):
    """The data set, and how an experiment splits it among the clients."""

    name: Annotated[str, "see `paraaegis datasets`"] = "digits"
    split: Annotated[Literal["iid", "dirichlet"], "all clients alike, or label shares drawn per client"] = "iid"
    alpha: Annotated[Positive, "concentration of the Dirichlet split; the smaller it is, the more clients differ"] = 0.5
    folder: Annotated[str, "where the files are; empty: where the data set's package puts them, or data/NAME"] = ""


class Model(Section, frozen=True):
    """The network."""

    name: Annotated[str, "see `paraaegis models`"] = "cnn"


class Train(Section, frozen=True):
    """Local training."""

    epochs: Annotated[Count, "K, passes over a client's data per round"] = 3
    batch: Annotated[Count, "samples per step"] = 32
    optimizer: Annotated[Literal["sgd", "adam"], "each client's optimizer; its state is kept between rounds"] = "sgd"
    lr: Annotated[Positive, "learning rate of the first round"] = 0.05
    schedule: Annotated[Literal["constant", "linear", "cosine"], "how the rate gets from lr to last_lr"] = "constant"
    last_lr: Annotated[float, Meta(ge=0), "learning rate of the last round; 0: a hundredth of lr"] = 0.0
    momentum: Annotated[float, Meta(ge=0, lt=1), "momentum of SGD, or β₁ of Adam"] = 0.9
    server_lr: Annotated[Positive, "factor for the mean update, except for BatchNorm's statistics"] = 1.0
    stop_after: Annotated[Natural, "end the run after this many rounds without improvement; 0: never"] = 0
    stop_metric: Annotated[str, "the metric that decides which round is best; empty: the one shown"] = ""

    def __post_init__(self) -> None:
        """Also refuse a last learning rate that no schedule leads to."""
        super().__post_init__()
        if self.last_lr and self.schedule == "constant":
            raise ConfigError(
                f"train.last_lr = {self.last_lr:g} has no effect with train.schedule = 'constant'; set train.schedule "
                "to 'linear' or 'cosine', or leave train.last_lr out"
            )


class Protect(Section, frozen=True):
    """The method and its settings."""

    method: Annotated[str, "see `paraaegis methods`"] = "paraaegis-feedback"
    ratio: Annotated[Share, "r₀, share of the values that is encrypted"] = 0.1
    decay: Annotated[float, Meta(gt=0, le=1), "λ, factor by which the ratio changes each round"] = 1.0
    strategy: Annotated[Literal["max", "min", "rand"], "which values a client votes for, by magnitude"] = "max"
    cipher: Annotated[Literal["ckks", "rlwe"], "what encrypts: the paper's, or one-time masks, faster and smaller"] = (
        "ckks"
    )
    reveal: Annotated[
        Literal["clients", "server"], "rlwe: who reads the sums; server: the server too, if nothing is in the clear"
    ] = "clients"
    profile: Annotated[
        str,
        "its parameters: precise (ckks) or wide (rlwe), the default; or, for models without BatchNorm, compact (ckks) "
        "or double (rlwe)",
    ] = ""
    carry: Annotated[bool, "noised methods: add what clipping cuts off to the next update"] = False
    lwe: Annotated[Literal["ring", "matrix"], "lwe-secagg: fast, or as published and slow"] = "ring"

    def __post_init__(self) -> None:
        """Also set the profile, and refuse one that the cipher does not have."""
        super().__post_init__()
        profiles = PROFILES[self.cipher]
        if self.profile and self.profile not in profiles:
            other = next((name for name, known in PROFILES.items() if self.profile in known), None)
            raise ConfigError(
                f"protect.profile must be one of {', '.join(profiles)} for protect.cipher = {self.cipher!r}, got "
                f"{self.profile!r}{meant(self.profile, profiles)}"
                + (f"; it belongs to cipher {other!r}; leave it out for {profiles[0]!r}" if other else "")
            )
        if self.reveal == "server" and self.cipher != "rlwe":
            raise ConfigError("protect.reveal = 'server' needs protect.cipher = 'rlwe': no server has a key for CKKS")
        msgspec.structs.force_setattr(self, "profile", self.profile or profiles[0])


class Privacy(Section, frozen=True):
    """The privacy budget of the noised values or, with unit `record`, of the training."""

    epsilon: Annotated[Positive, "ε of the budget; inf: no noise"] = 1.0
    delta: Annotated[float, Meta(ge=1e-100, lt=1), "δ of the budget; unit record: at most 1/(10 samples)"] = 1e-5
    clip: Annotated[
        Positive, "θ, L2 norm that an update, or with unit record a sample's gradient, is clipped to; inf: not clipped"
    ] = 1.0
    calibration: Annotated[Literal["tight", "paper"], "exact accounting, or the paper's formula"] = "tight"
    unit: Annotated[
        Literal["client", "client-replace", "record"],
        "what may change: a client's update removed or replaced, or one training record (DP-SGD in every client)",
    ] = "client"
    sample_rate: Annotated[float, Meta(gt=0, le=1), "unit record: the probability that a step draws a sample"] = 0.25
    group: Annotated[Count, "unit record: the most records that belong to one person, whom ε then protects"] = 1
    noise: Annotated[Literal["seeded", "secret"], "secret: nobody can replay it; seeded: a simulation"] = "seeded"
    sigma: Annotated[float, Meta(ge=0), "σ of the noise per value; 0: what the budget allows over all rounds"] = 0.0
    participations: Annotated[Natural, "tight: maximum number of rounds a client takes part in; 0: no limit"] = 0
    inside_clip: Annotated[float, Meta(ge=0), "clip encrypted values to this norm, with shared noise; 0: off"] = 0.0
    colluders: Annotated[Count, "clients assumed to help an attacker: for shared noise, rlwe and lwe-secagg"] = 1
    # The minimum number of clients in a sum. `floor` is its name in stored configurations, so it stays.
    floor: Annotated[Natural, "no client takes part in, or reads, a sum over fewer clients than this"] = 0
    attempts: Annotated[Count, "answers per client for one state of the model; repeating a round counts again"] = 3
    vary: Annotated[float, Meta(gt=0, le=1), "varying-dp: factor by which the noise changes each round"] = 0.9
    vary_scale: Annotated[Literal["deviation", "variance"], "varying-dp: what that factor multiplies"] = "deviation"
    vary_direction: Annotated[Literal["down", "up"], "varying-dp: whether noise shrinks or grows"] = "down"


class Engine(Section, frozen=True):
    """How it runs here. Nothing in this table changes a result, except the device and late clients."""

    name: Annotated[Literal["local", "flower"], "clients as threads here, or as nodes of a Flower federation"] = "local"
    workers: Annotated[Natural, "threads for clients; 0: one per core"] = 0
    processes: Annotated[Natural, "processes to encrypt long vectors; 0: one per core"] = 0
    checkpoint: Annotated[Count, "rounds between checkpoints"] = 1
    device: Annotated[str, "where training runs: cpu, cuda, cuda:N, mps, or auto: on CUDA if available"] = "auto"
    deadline: Annotated[Positive, "seconds within which clients on a network must answer"] = 3600.0
    share_metrics: Annotated[bool, "send the server the model's metrics on this silo's own hold-out data"] = False
    share_seconds: Annotated[bool, "send the server the seconds that this silo spends training and protecting"] = False

    def __post_init__(self) -> None:
        """Also check the form of the device; whether this machine has it shows when a run starts."""
        super().__post_init__()
        if not re.fullmatch(r"auto|cpu|mps|cuda(:(0|[1-9][0-9]*))?", self.device, re.ASCII):
            raise ConfigError(
                "engine.device must be auto, cpu, cuda, cuda:N for GPU number N (from 0), or mps, got "
                f"{self.device!r}{meant(self.device, ('auto', 'cpu', 'cuda', 'mps'))}"
            )


class Config(Section, frozen=True):
    """A whole configuration."""

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1), "seed of models, splits, sampling and seeded noise"] = 0
    learner: Annotated[str, "your own model and data, as module:function; empty: the tables data and model"] = ""
    federation: Federation = Federation()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    protect: Protect = Protect()
    privacy: Privacy = Privacy()
    engine: Engine = Engine()

    def __post_init__(self) -> None:
        """Check every value, and refuse values that contradict each other."""
        _check_values(self, "")
        refuse_contradictions(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        return self.federation.names or numbered(self.federation.clients)

    @property
    def sampled(self) -> int:
        """Clients per round."""
        return max(1, round(self.federation.fraction * self.federation.clients))

    @property
    def participations(self) -> int:
        """The most rounds in which a client takes part."""
        return self.privacy.participations or self.federation.rounds

    @property
    def subject(self) -> str:
        """What is trained, for titles."""
        return f"learners {self.learner}" if self.learner else f"{self.data.name}, {self.model.name}"

    @property
    def split(self) -> str:
        """The name of its data split, for tables."""
        if self.learner:
            return "own"
        return "iid" if self.data.split == "iid" else f"dirichlet-{self.data.alpha:g}"

    def tables(self) -> dict[str, Any]:
        """Its tables as they are written to a file; with your own learner, of data and train only what was changed."""
        tables = self._as_before()
        if not self.learner:
            del tables["learner"]
            return tables
        del tables["model"]
        defaults = {"data": Data(), "train": Train()}
        for name, default in defaults.items():
            tables[name] = {key: value for key, value in tables[name].items() if value != getattr(default, key)}
        return {name: table for name, table in tables.items() if table or name not in defaults}

    def _as_before(self) -> dict[str, Any]:
        """Its tables without newer keys that are at their defaults."""
        tables: dict[str, Any] = msgspec.to_builtins(self)
        defaults: dict[str, Any] = msgspec.to_builtins({"train": Train(), "protect": Protect(), "privacy": Privacy()})
        for table, keys in NEWER.items():
            for key in keys:
                if tables[table][key] == defaults[table][key]:
                    del tables[table][key]
        return tables

    def filled(self, other: Config) -> Config:
        """The same configuration; values that it leaves for a run to fill in are taken from `other`."""
        mine, theirs = self.federation, other.federation
        federation = msgspec.structs.replace(
            mine, quorum=mine.quorum or theirs.quorum, min_samples=mine.min_samples or theirs.min_samples
        )
        return msgspec.structs.replace(self, federation=federation)

    def digest(self) -> str:
        """A fingerprint of everything that changes a result, equal for all who take part."""
        relevant = self._as_before()
        del relevant["engine"], relevant["data"]["folder"], relevant["privacy"]["attempts"], relevant["learner"]
        if self.learner:
            relevant["learner"] = "own"  # silos may name their code as they like
        if not self.federation.names:
            del relevant["federation"]["names"]
        return hashlib.sha256(msgspec.json.encode(relevant, order="deterministic")).hexdigest()


primed(Config)
