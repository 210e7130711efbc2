"""For an existing Flower app: `protect()`, a mod for its ClientApp, and `ParaAegis`, which wraps its strategy.

    app = ClientApp(mods=[protect()])                                       # client_app.py
    strategy = ParaAegis(FedAdam(), config="paraaegis.toml")                # server_app.py
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=50)

The app's own functions stay as they are (docs/flower-app.md).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paraaegis.config import Config
from paraaegis.deploy.app_node import load_for_app, open_app_node, open_simulated_node
from paraaegis.deploy.flower_app import connector
from paraaegis.engines.flower.log import timed_log
from paraaegis.engines.flower.mod import AppNode, AppTraining, Context, Protect, RecordDict, files_in, sent_config
from paraaegis.engines.flower.strategy import (
    ArrayRecord,
    Asked,
    ConfigRecord,
    Driven,
    Grid,
    MetricRecord,
    ModelTransport,
    Result,
    ServedModel,
    check_inner,
    is_simulation,
)
from paraaegis.engines.transport import States, Transport
from paraaegis.errors import ConfigError, RunError
from paraaegis.files import write_whole
from paraaegis.methods import method_of
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.state import ServerState
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.guarantees import RunGuarantees, run_guarantees
from paraaegis.runs.run import carry_out
from paraaegis.types import Metrics, Vector

__all__ = ["ParaAegis", "protect"]
_log = logging.getLogger(__name__)


def protect(simulate: bool = False) -> Protect:
    """A mod for a ClientApp, the first of its `mods`: its node then answers a `ParaAegis` strategy and no other.

    The node's folder, with its own config.toml and keys, is named by the node's --node-config: 'paraaegis="/path"'.
    `simulate` is for Flower's simulation, where nodes have no folders. It protects nobody: anyone can derive its keys.
    """
    return Protect(_open_simulated if simulate else _open)


def _open(_content: RecordDict, context: Context, training: AppTraining) -> AbstractContextManager[AppNode]:
    return open_app_node(context.node_config, training)


def _open_simulated(content: RecordDict, context: Context, training: AppTraining) -> AbstractContextManager[AppNode]:
    return open_simulated_node(context.node_config, files_in(context.state), sent_config(content), training)


class ParaAegis(Driven):
    """A strategy that gets the mean of the clients' updates and nothing else, and hands it to the `inner` strategy.

    `config`: the federation's configuration, the same at every node; relative to the app or to the working folder.
    `folder`: the run's folder, by default one in `runs/` named after Flower's id of the run; given the folder of an
    interrupted run, `start` continues it.
    """

    def __init__(self, inner: Any, config: Path | str = "paraaegis.toml", folder: Path | str = "") -> None:
        super().__init__(inner)
        self._path, self._given = _locate(Path(config)), str(folder)
        self._folder: RunFolder | None = None
        self.config: Config = load_for_app(self._path)
        _check(self.config)
        check_inner(inner, self.config.federation.clients)
        method_of(self.config).check(self.config)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 0,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Carry out the run, with the parameters of Flower's `Strategy.start`.

        `num_rounds` is that of the configuration, or 0. `timeout`: seconds to wait for the replies of one exchange.
        """
        rounds = self.config.federation.rounds
        if num_rounds not in (0, rounds):
            raise ConfigError(
                f"start got num_rounds={num_rounds}, but federation.rounds is {rounds} in {self._path}, which every "
                "node checks; make them equal"
            )
        train, evaluate = ConfigRecord(dict(train_config or {})), ConfigRecord(dict(evaluate_config or {}))
        model = ServedModel(self.inner, Asked(initial_arrays, train, evaluate, evaluate_fn))
        config = load_for_app(self._path, simulated=is_simulation(grid))
        engine = msgspec.structs.replace(config.engine, name="flower", deadline=timeout)
        self.config = msgspec.structs.replace(config, engine=engine)
        self._folder = RunFolder(Path(self._given or f"runs/{grid.run.run_id}").resolve())
        with timed_log(), self.folder.claimed(self.config, fresh=False):
            text, quorum = self._path.read_text(), self.config.federation.quorum
            self._run(model, ModelTransport(grid, timeout, quorum, model, text))
        return model.result

    @property
    def folder(self) -> RunFolder:
        """The run's folder, once it has started."""
        if self._folder is None:
            raise RunError("the run has no folder yet; call `start` first")
        return self._folder

    def _run(self, model: ServedModel, transport: ModelTransport) -> None:
        _log.info("the configuration is %s", self._path)
        _log.info("the run is kept in %s", self.folder.path)
        if self.config.federation.quorum < self.config.sampled and not self.config.privacy.inside_clip:
            _log.warning(
                "a server that leaves a node out of one of two rounds on nearly the same model learns its update: set "
                "federation.quorum = %d if this server is not to be trusted with that, or add noise",
                self.config.sampled,
            )
        if self.folder.read_result() is not None and not self.folder.checkpoint.exists():
            raise RunError(f"{self.folder.path} holds a finished run; choose another folder")
        stored = self.folder.restore()
        if stored is not None and (done := stored[0].number):
            model.load(done, self._kept(done))
        else:
            model.evaluate_here(0)

        @contextmanager
        def connect(state: ServerState, stored: States | None, over: bool) -> Iterator[tuple[RunParameters, Transport]]:
            with connector(self.config, self.folder, transport)(state, stored, over) as (parameters, carried):
                transport.run = parameters.run
                yield parameters, carried

        carry_out(self.config, self.folder, connect, served=_Served(self, model, transport))

    def kept_file(self, number: int) -> Path:
        """What the strategy remembers after a round: the model, and momentum and the like."""
        return self.folder.path / f"strategy-{number:06d}.npz"

    def _kept(self, number: int) -> dict[str, Any]:
        try:
            with np.load(self.kept_file(number), allow_pickle=False) as kept:
                return dict(kept)
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.kept_file(number)}, the model after round {number}, is missing or damaged"
            ) from error

    def privacy_spent(self) -> RunGuarantees:
        """What the configuration guarantees against each adversary once all of its rounds have taken place.

        Every node keeps a ledger of what it released: `paraaegis privacy FOLDER` there.
        """
        return run_guarantees(self.config)

    def report(self, path: Path | str = "") -> Path:
        """Write a page about the run, by default into its folder; returns where."""
        from paraaegis.report.collect import collect
        from paraaegis.report.page import write_page

        target = Path(path or self.folder.path / "report.html").resolve()
        write_page(*collect([self.folder.path]), target)
        return target


@dataclass(frozen=True)
class _Served:
    """The server's model, kept in the run's folder for a run that is continued."""

    strategy: ParaAegis
    model: ServedModel
    transport: ModelTransport

    def take(self, number: int, mean: Vector) -> None:
        """See Served."""
        self.model.take(number, mean)
        path, state = self.strategy.kept_file(number), self.model.state()
        write_whole(path, lambda file: np.savez(file, allow_pickle=False, **state))
        self.strategy.kept_file(number - 2).unlink(missing_ok=True)

    def measure(self, number: int) -> Metrics:
        """See Served."""
        return self.model.evaluate(number, self.transport)


def _locate(path: Path) -> Path:
    """A file of the app, whose folder Flower puts first on the path, or in the working folder, which is Flower's."""
    places = [Path(sys.path[0]) / path, path]
    if (found := next((place for place in places if place.exists()), None)) is None:
        raise ConfigError(f"no configuration at {' or '.join(str(place.resolve()) for place in places)}")
    return found.resolve()


def _check(config: Config) -> None:
    """Refuse a configuration under which the server would not get the mean, or that has a server's step of its own."""
    if config.protect.reveal != "server":
        raise ConfigError(
            "a strategy of Flower needs the mean update, so set protect.cipher = 'rlwe' and protect.reveal = 'server'. "
            "If the server should learn neither updates nor sums, deploy ParaAegis itself (docs/deployment.md)"
        )
    if config.train.server_lr != 1.0:
        raise ConfigError(
            f"train.server_lr is {config.train.server_lr:g}, but here the strategy makes the step; use "
            f"FedAvgM(server_learning_rate={config.train.server_lr:g})"
        )
