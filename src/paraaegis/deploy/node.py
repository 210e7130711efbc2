"""A silo's node: what its folder holds, and the client that it runs."""

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
from paraaegis.deploy.answer import answer
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.deploy.store import most_spent
from paraaegis.errors import ConfigError, KeyFileError, RunError, UpdateError
from paraaegis.files import write_whole
from paraaegis.methods import method_of
from paraaegis.plural import plural
from paraaegis.privacy.budget import budget
from paraaegis.privacy.ledger import Ledger
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Frames
from paraaegis.protocol.state import ClientState
from paraaegis.runs.assemble import make_client, make_parameters, short_name
from paraaegis.runs.check import resolve
from paraaegis.types import Arrays, Learner, Metrics, Vector

WORTH = 500_000  # values that one process encrypts in about the time another takes to start
MakeLearner = Callable[[Config, str], Learner]
SaveModel = Callable[[Config, Path, Vector], None]


class _Facts(msgspec.Struct):
    config: str
    length: int
    samples: int


class LazyLearner:
    """A learner that is built when it is first needed: half of a round's messages do not need it."""

    def __init__(self, make: Callable[[], Learner], samples: int) -> None:
        self._make, self.samples = make, samples

    @cached_property
    def made(self) -> Learner:
        """The learner itself; refused if its data has changed since the node introduced itself."""
        learner = self._make()
        if learner.samples != self.samples:
            raise UpdateError(
                f"this silo has {plural(learner.samples, 'sample')} now and had {self.samples} when its node "
                "introduced itself; restart the run, so that all clients agree on weights again"
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
    """A silo's or the server's configuration; if the quorum is not set, everyone computes the same one."""
    config = load_config(path)
    return resolve(config, [config.federation.min_samples])


@dataclass
class DeployedClient:
    """One silo: its folder holds config.toml, keys, identity, ledger.jsonl and the states of its runs.

    `make_learner` receives the configuration and the client's name. With `holdout` every client evaluates on its own
    hold-out data; otherwise the first one does, on public data. Seeded noise is refused except in a `simulation`.
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
        """The silo's model and data, loaded when they are first needed."""
        return LazyLearner(lambda: self._made, self._facts.samples)

    @cached_property
    def _made(self) -> Learner:
        return self.make_learner(self.config, self.name)

    @cached_property
    def _facts(self) -> _Facts:
        """What every message needs to know about the learner, as of the node's last introduction."""
        path = self.folder / "facts.json"
        if path.exists():
            facts = msgspec.json.decode(path.read_bytes(), type=_Facts)
            if facts.config == self.config.digest():
                return facts
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
        """The node's introduction: name, length of the model, and what enrolment needs. Reads the data again."""
        secrets = self._secrets
        length = self._find_facts().length
        identity: dict[str, str | bytes] = {"name": self.name, "public": secrets.public, "key_id": secrets.key_id}
        return {**identity, "length": length, "leads": secrets.leads}

    def ask(self, lead_public: bytes) -> KeyRequest:
        """A request to the lead for the federation's secrets."""
        return self._secrets.ask(lead_public)

    def seal(self, asking: Mapping[str, KeyRequest]) -> dict[str, bytes]:
        """As the lead: the federation's secrets and roster, sealed to approved silos."""
        return self._secrets.seal(asking, self.name)

    def open(self, sealed: bytes, lead_public: bytes) -> None:
        """Open and store the secrets that the lead sealed to this silo."""
        self._secrets.open(sealed, self.name, lead_public)

    def answer(self, frames: Frames) -> Frames:
        """Answer one message of a run."""
        return answer(self, frames)

    @contextmanager
    def client(self, run: str) -> Iterator[ClientContext]:
        """The node's client in a run; the processes that encrypt long vectors end with the context."""
        config, keys = self.config, load_keys(self.folder / "keys")
        if not run.startswith(short_name(config)):
            raise ConfigError(
                f"the run {run} is of another configuration than this silo's, {short_name(config)}; compare the "
                "config.toml here with the operator's; only the table engine and privacy.attempts may differ"
            )
        if strangers := [name for name in config.names if name not in keys.roster]:
            raise KeyFileError(
                f"the keys of {self.name} have no identity of {', '.join(strangers)}; let the lead approve them with "
                "`paraaegis keys lead` and start the run again, or make keys for all with `paraaegis keys new`"
            )
        if keys.roster[self.name] != load_identity(self.folder / "identity")[1]:
            raise KeyFileError(
                f"the keys contain another identity for {self.name} than {self.folder} does; enrol it again"
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
        """What this silo has released, under any name; refused if the file is gone or shorter than a run left it."""
        path = self.folder / "ledger.jsonl"
        if self.spent < (least := most_spent(self.folder / "runs")):
            raise RunError(
                f"{path} is gone, cut or an older copy: {self.name} took part in a run that left {least} bytes there, "
                f"now there are {self.spent}. The privacy spent is unknown; restore the file"
            )
        path.touch(mode=0o600)
        return Ledger(budget(config), path, one_owner=True)

    @property
    def spent(self) -> int:
        """The size of its ledger in bytes."""
        path = self.folder / "ledger.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _report_fields(self, config: Config) -> frozenset[str]:
        """What its reports include: metrics on public data always; with seeded noise, everything."""
        simulated = config.privacy.noise == "seeded"
        metrics = config.engine.share_metrics or not self.holdout
        shared = {"metrics": metrics or simulated, "seconds": config.engine.share_seconds or simulated}
        return frozenset(name for name, included in shared.items() if included)

    def _log_metrics(self, run: str, number: int, metrics: Metrics) -> None:
        """Write metrics to a file of this silo, whether or not the server gets them."""
        with (self.folder / "metrics.jsonl").open("ab") as file:
            file.write(msgspec.json.encode({"run": run, "round": number, "metrics": metrics}) + b"\n")

    def _erase_root(self, root: Root) -> None:
        """Erase the root of a run that begins; with seeded noise, which must be replayable, it is kept."""
        if self.config.privacy.noise == "secret":
            self._secrets.erase_root(root)

    def finished(self, state: ClientState) -> None:
        """Save the final model."""
        if self.save_model is not None:
            self.save_model(self.config, self.folder / "model.pt", state.weights)


def evaluators(config: Config, holdout: bool) -> tuple[str, ...]:
    """Who reports metrics: every client on its own hold-out data, or the first one on public data."""
    return config.names if holdout else config.names[:1]
