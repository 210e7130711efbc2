"""A silo's node: what lies in its folder, and the client that this makes in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from paraaegis.config import Config, load_config, meant
from paraaegis.crypto.enrol import KeyRequest
from paraaegis.crypto.keys import load_identity, load_keys
from paraaegis.crypto.pool import SecretPool
from paraaegis.crypto.ratchet import Root
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.engines.flower.store import most_spent
from paraaegis.errors import ConfigError, KeyFileError, RunError, UpdateError
from paraaegis.files import write_whole
from paraaegis.methods import method_of
from paraaegis.plural import plural
from paraaegis.privacy.budget import budget
from paraaegis.privacy.ledger import Ledger
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.state import ClientState
from paraaegis.runs.assemble import make_client, make_parameters, short_name
from paraaegis.runs.check import resolve
from paraaegis.types import Arrays, Learner, Metrics, Vector

WORTH = 500_000  # values that one process encrypts in about the time that another takes to start
MakeLearner = Callable[[Config, str], Learner]
SaveModel = Callable[[Config, Path, Vector], None]


class _Facts(msgspec.Struct):
    config: str
    length: int
    samples: int


class LazyLearner:
    """A learner that is made when it is first needed: half of the messages of a round do not need one."""

    def __init__(self, make: Callable[[], Learner], samples: int) -> None:
        self._make, self.samples = make, samples

    @cached_property
    def made(self) -> Learner:
        """The learner itself; refused if its data is not what the node was introduced with."""
        learner = self._make()
        if learner.samples != self.samples:
            raise UpdateError(
                f"this silo has {plural(learner.samples, 'sample')} now and had {self.samples} when its node "
                "introduced itself: restart the run, so that all agree on weights again"
            )
        return learner

    def initial(self) -> Vector:
        """See Learner."""
        return self.made.initial()

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """See Learner."""
        return self.made.train(weights, number)

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """See Learner."""
        return self.made.apply(weights, delta)

    def evaluate(self, weights: Vector) -> Metrics:
        """See Learner."""
        return self.made.evaluate(weights)

    def state(self) -> Arrays:
        """See Learner."""
        return self.made.state()

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See Learner."""
        self.made.load(state)


def load_resolved(path: Path) -> Config:
    """A silo's or a server's configuration; the quorum, if it is not set, is worked out by everyone alike."""
    config = load_config(path)
    return resolve(config, [config.federation.min_samples])


@dataclass
class DeployedClient:
    """One silo: config.toml, keys, identity, ledger.jsonl and the runs' states lie in its folder.

    `make_learner` is given the configuration and the client's name. With `holdout` every client evaluates on data of
    its own; else the first one does, on data that is no secret. Seeded noise is refused but in a `simulation`.
    """

    name: str
    folder: Path
    make_learner: MakeLearner
    holdout: bool = True
    simulation: bool = False
    save_model: SaveModel | None = None

    @cached_property
    def config(self) -> Config:
        """The configuration that this silo trusts."""
        path = self.folder / "config.toml"
        config = load_resolved(path)
        if self.name not in config.names:
            raise ConfigError(
                f"this node is called {self.name!r}, and {path} has no such client{meant(self.name, config.names)}; "
                f"its clients are {', '.join(config.names)}"
            )
        if config.privacy.noise == "seeded" and not self.simulation:
            raise ConfigError('privacy.noise is "seeded", which protects nobody: set it to "secret", in every silo')
        return config

    @cached_property
    def learner(self) -> LazyLearner:
        """The silo's model and data, made when they are first needed."""
        return LazyLearner(lambda: self._made, self._facts.samples)

    @cached_property
    def _made(self) -> Learner:
        return self.make_learner(self.config, self.name)

    @cached_property
    def _facts(self) -> _Facts:
        """What is asked of a learner in every message, as the node's last introduction found it."""
        path = self.folder / "facts.json"
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=_Facts)
            if known.config == self.config.digest():
                return known
        return self._find_facts()

    def _find_facts(self) -> _Facts:
        made = self._made
        facts = _Facts(config=self.config.digest(), length=int(made.initial().size), samples=made.samples)
        write_whole(self.folder / "facts.json", lambda file: file.write(msgspec.json.encode(facts)))
        return facts

    @property
    def _secrets(self) -> KeyFolder:
        return KeyFolder(self.folder)

    def card(self) -> dict[str, str | int | bytes | bool]:
        """How it introduces itself: name, length of the model, and what enrolment asks for. The data is read anew."""
        secrets = self._secrets
        length = self._find_facts().length
        known: dict[str, str | bytes] = {"name": self.name, "public": secrets.public, "key_id": secrets.key_id}
        return {**known, "length": length, "leads": secrets.leads}

    def ask(self, lead_public: bytes) -> KeyRequest:
        """Ask the lead for the federation's secrets."""
        return self._secrets.ask(lead_public)

    def seal(self, asking: Mapping[str, KeyRequest]) -> dict[str, bytes]:
        """As lead: the federation's secrets and roster, sealed to approved silos."""
        return self._secrets.seal(asking, self.name)

    def open(self, sealed: bytes, lead_public: bytes) -> None:
        """Take up secrets that the lead sealed to this silo."""
        self._secrets.open(sealed, self.name, lead_public)

    @contextmanager
    def client(self, run: str) -> Iterator[ClientContext]:
        """The node's client of a run; many values are encrypted by processes that end with the context."""
        config, keys = self.config, load_keys(self.folder / "keys")
        if not run.startswith(short_name(config)):
            raise ConfigError(
                f"the run {run} is of another configuration than this silo's, {short_name(config)}: compare the "
                "config.toml here with the operator's; only the table engine and privacy.attempts may differ"
            )
        if strangers := [name for name in config.names if name not in keys.roster]:
            raise KeyFileError(
                f"the keys of {self.name} carry no identity of {', '.join(strangers)}: let the lead approve them with "
                "`paraaegis keys lead` and start the run again, or deal keys to all with `paraaegis keys new`"
            )
        if keys.roster[self.name] != load_identity(self.folder / "identity")[1]:
            raise KeyFileError(
                f"the keys know {self.name} by another identity than lies in {self.folder}: enrol it again"
            )
        length = self._facts.length
        method = method_of(config)
        method.check(config, length)
        parameters = make_parameters(config, config.names, length, evaluators(config, self.holdout), run)
        with SecretPool(config.engine.processes) as pool:
            half = method.client(config, pool)
            encrypted = parameters.k(1) if half.votes else length
            pool.workers = max(1, min(pool.workers, encrypted // WORTH))
            ledger, identity = self._ledger(config), load_identity(self.folder / "identity")
            yield replace(
                make_client(config, parameters, self.name, self.learner, keys, half, ledger, self.holdout, identity),
                erase_root=self._erase_root,
                report_fields=self._report_fields(config),
                log_metrics=lambda number, metrics: self._log_metrics(run, number, metrics),
            )

    def _ledger(self, config: Config) -> Ledger:
        """What this silo has released, under whatever name; refused where it is gone after a run."""
        path = self.folder / "ledger.jsonl"
        if self.spent < (least := most_spent(self.folder / "runs")):
            raise RunError(
                f"{path} is gone, cut or an older copy: {self.name} took part in a run that left {least} bytes there, "
                f"now there are {self.spent}. What it spent cannot be known; bring the file back"
            )
        path.touch(mode=0o600)
        return Ledger(budget(config), path, one_owner=True)

    @property
    def spent(self) -> int:
        """How long its ledger is, in bytes."""
        path = self.folder / "ledger.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _report_fields(self, config: Config) -> frozenset[str]:
        """What its reports carry. Metrics on data that is no secret are told always; with seeded noise all is."""
        simulated = config.privacy.noise == "seeded"
        metrics = config.engine.share_metrics or not self.holdout
        told = {"metrics": metrics or simulated, "seconds": config.engine.share_seconds or simulated}
        return frozenset(name for name, tell in told.items() if tell)

    def _log_metrics(self, run: str, number: int, metrics: Metrics) -> None:
        """Keep metrics for this silo's people, whether the server is told or not."""
        with (self.folder / "metrics.jsonl").open("ab") as file:
            file.write(msgspec.json.encode({"run": run, "round": number, "metrics": metrics}) + b"\n")

    def _erase_root(self, root: Root) -> None:
        """Erase the root of a run that begins; that of seeded noise, which can be replayed, is kept."""
        if self.config.privacy.noise == "secret":
            self._secrets.erase_root(root)

    def finished(self, state: ClientState) -> None:
        """Keep the final model."""
        if self.save_model is not None:
            self.save_model(self.config, self.folder / "model.pt", state.weights)


def evaluators(config: Config, holdout: bool) -> tuple[str, ...]:
    """Who reports metrics: everyone from its own hold-out, or the first client on public data."""
    return config.names if holdout else config.names[:1]
