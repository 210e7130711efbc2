"""A silo's node in front of an existing Flower app: the app's training function is its learner."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import msgspec
import numpy as np

from paraaegis.config import PASSED, Config
from paraaegis.crypto.keys import save_keys, write_secret
from paraaegis.deploy.node import DeployedClient, load_resolved
from paraaegis.engines.flower.mod import AppTraining
from paraaegis.errors import ConfigError, LearnerError, ProtocolError, RunError
from paraaegis.files import write_whole
from paraaegis.privacy.ledger import METRICS, releases_of
from paraaegis.runs.assemble import simulated_keys
from paraaegis.runs.metrics_log import MetricsLog
from paraaegis.types import Arrays, Learner, Metrics, Vector

SETTING = "paraaegis"  # the key of a --node-config that names the folder; `name` there is the silo's, if it differs


def load_for_app(path: Path, simulated: bool = False) -> Config:
    """A configuration of a federation whose learners are Flower apps. Noise is secret, except in a simulation."""
    config = load_resolved(path)
    if config.learner:
        raise ConfigError(f"remove learner = {config.learner!r} from {path}: the app's own function is the learner")
    if config.privacy.unit == "record":
        raise ConfigError(
            f'privacy.unit = "record" in {path} needs a training loop of this library, which a Flower app does not '
            'use; set unit = "client", or run the model through torch_learner (docs/own-model.md)'
        )
    federation = msgspec.structs.replace(config.federation, history=1)  # only peers know the models of missed rounds
    privacy = msgspec.structs.replace(config.privacy, noise="seeded" if simulated else "secret")
    return msgspec.structs.replace(config, learner=PASSED, federation=federation, privacy=privacy)


class AppLearner(Learner):
    """The app's training function as a learner. The app evaluates when the server asks, and keeps its own state.

    How many examples it uses is known only after it has trained once. So it does when its node introduces itself, on
    the first model; the first round uses the result. `kept` is the file that holds both models until then.
    """

    def __init__(self, training: AppTraining, kept: Path) -> None:
        self._training, self._kept = training, kept
        self.samples = int(self._first["examples"])

    @cached_property
    def _first(self) -> Arrays:
        """The first model; until it was used, what the app made of it; the number of examples."""
        stored = self._stored()
        sent = self._training.model if self._training.introduces else None
        if stored is not None and (sent is None or self._is_of(stored, sent)):
            return stored
        if sent is None:
            raise RunError(f"{self._kept} is missing; restart the node, so that it introduces itself again")
        told = np.asarray(self._training.told)  # before the app can change it
        trained, examples, metrics = self._training.train(sent)
        first = {"initial": sent, "told": told, "trained": trained, "examples": np.asarray(examples)}
        first |= {f"metric/{name}": np.asarray(value) for name, value in metrics.items()}
        self._keep(first)
        return first

    def _is_of(self, first: Arrays, weights: Vector) -> bool:
        """Whether this was made of these weights, and of all else that the app is told now."""
        return bool(first.get("told") == self._training.told) and np.array_equal(weights, first["initial"])

    def _stored(self) -> Arrays | None:
        if not self._kept.exists():
            return None
        with np.load(self._kept, allow_pickle=False) as stored:
            return dict(stored)

    def _keep(self, first: Arrays) -> None:
        write_whole(self._kept, lambda file: np.savez(file, allow_pickle=False, **first), mode=0o600)

    def initial(self) -> Vector:
        """The server's first model."""
        initial: Vector = self._first["initial"]
        return initial

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:  # noqa: ARG002
        """What the app makes of the model."""
        first = self._first
        if "trained" in first and self._is_of(first, weights):
            self._keep({name: first[name] for name in ("initial", "told", "examples")})
            return first["trained"], {
                name.partition("/")[2]: float(value) for name, value in first.items() if name.startswith("metric/")
            }
        trained, examples, metrics = self._training.train(weights)
        if examples != self.samples:
            self._kept.unlink()
            raise LearnerError(
                f"the app trained on {examples} examples and on {self.samples} when this node introduced itself; "
                "restart the node and the run, so that all clients agree on weights again"
            )
        return trained, metrics

    def apply(self, weights: Vector, delta: Vector) -> Vector:  # noqa: ARG002
        """The server's model: its strategy decides what to make of the mean update."""
        model = self._training.model
        if model is None:
            raise ProtocolError("got the sum of a round without the model that the server made of it")
        return model

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing: there is no state of ours."""

    def save(self, path: Path, weights: Vector) -> None:
        """Write the arrays of a model, by name."""
        arrays = self._training.arrays(weights)

        def write(file: IO[bytes]) -> None:
            with zipfile.ZipFile(file, "w") as archive:  # as savez does, which takes no array called "file"
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.save(entry, array, allow_pickle=False)

        write_whole(path.with_suffix(".npz"), write)


@dataclass
class AppNode(DeployedClient):
    """One silo whose learner is a Flower app."""

    training: AppTraining | None = None

    def _load(self, path: Path) -> Config:
        return load_for_app(path, self.simulation)

    @cached_property
    def _made(self) -> Learner:
        if self.training is None:
            raise ConfigError("this node needs an app to train with")
        return AppLearner(self.training, self.folder / "first.npz")

    @property
    def _told(self) -> str:
        return self.training.told if self.training else ""

    def allowed(self, metrics: Metrics, run: str, number: int) -> Metrics:
        """The metrics of an evaluation that the server may see, recorded in the ledger.

        In a round this node evaluates one model, of a run that it knows: each answer tells something about its data.
        """
        self._check_round(run, number)
        MetricsLog(self.folder / "metrics.jsonl").of(run=run)("evaluate", number, metrics)
        if not metrics or "metrics" not in self._report_fields(self.config):
            return {}
        ledger = self._ledger(self.config)
        (made,) = releases_of([METRICS], self.name, number, simulated=self.simulation, run=run)
        release = msgspec.structs.replace(made, question=self._told)
        same_round = (each for each in ledger.releases if (each.what, each.run, each.round) == (made.what, run, number))
        if any(each.question != release.question for each in same_round):
            raise ProtocolError(f"{self.name} has already evaluated another model in round {number} of run {run}")
        ledger.record([release])
        return metrics

    def _check_round(self, run: str, number: int) -> None:
        runs, rounds = self.folder / "runs", self.config.federation.rounds
        if run not in {path.parent.name for path in runs.glob("*/manifest.json")}:
            raise ProtocolError(f"{self.name} has not joined run {run[:80]!r}, so it evaluates no model of it")
        if not 1 <= number <= rounds:
            raise ProtocolError(f"a model is evaluated after one of the rounds 1 to {rounds}, got {number}")


@contextmanager
def open_app_node(settings: Mapping[str, Any], training: AppTraining) -> Iterator[AppNode]:
    """The node of the folder that the --node-config names."""
    if not settings.get(SETTING):
        raise ConfigError(
            f"start this node with --node-config '{SETTING}=\"/path/to/its/folder\"', the folder with its config.toml "
            "and keys; in Flower's simulation, use protect(simulate=True)"
        )
    folder = Path(str(settings[SETTING]))
    yield AppNode(str(settings.get("name") or folder.name), folder, training=training)


@contextmanager
def open_simulated_node(
    settings: Mapping[str, Any], files: MutableMapping[str, bytes], text: str, training: AppTraining
) -> Iterator[AppNode]:
    """A node of Flower's simulation, with keys that anyone can derive.

    `files` are those of its folder by path, which the simulation keeps between messages; `text` is the configuration
    that the server sent, for the first message.
    """
    if settings.get(SETTING):
        raise ConfigError(
            "this node has a folder with keys; remove simulate=True from protect(), which protects nobody"
        )
    with _kept_folder(files) as folder:
        path = folder / "config.toml"
        if not path.exists():
            path.write_text(text)
        config = load_for_app(path, simulated=True)
        name = config.names[int(settings["partition-id"])]
        if not (folder / "keys").exists():
            keys, privates = simulated_keys(config)
            save_keys(folder / "keys", keys)
            write_secret(folder / "identity", privates[name])
        yield AppNode(name, folder, simulation=True, training=training)


@contextmanager
def _kept_folder(files: MutableMapping[str, bytes]) -> Iterator[Path]:
    """A folder with these files while the context lasts; afterwards, `files` are those that it then has."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_secret(folder / name, content)
        try:
            yield folder
        finally:
            files.clear()
            for path in folder.rglob("*"):
                if path.is_file():
                    files[str(path.relative_to(folder))] = path.read_bytes()
