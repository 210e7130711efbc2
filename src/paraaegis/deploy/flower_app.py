"""The Flower app: a server that reads its run's folder, and clients of the built-in data sets."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paraaegis.config import Config
from paraaegis.crypto.pool import Pool
from paraaegis.deploy.node import (
    DeployedClient,
    MakeLearner,
    SaveModel,
    evaluators,
    load_resolved,
)
from paraaegis.engines.flower.client import ClientApp, make_client_app
from paraaegis.engines.flower.server import Connect, FlowerTransport, ServerApp, make_server_app
from paraaegis.errors import BusyError, ConfigError
from paraaegis.methods import method_of
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import check, make_parameters, short_name
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import complete
from paraaegis.types import Learner, Vector

_log = logging.getLogger(__name__)


def server_app(holdout: bool = True) -> ServerApp:
    """The server of a federation: run-config `folder` names the run's folder, which holds config.toml."""

    def run(connect: Connect, settings: Mapping[str, Any]) -> None:
        if not settings.get("folder"):
            raise ConfigError("the run needs --run-config 'folder=\"…\"', the folder that holds its config.toml")
        folder = RunFolder(Path(str(settings["folder"])))
        try:
            config = load_resolved(folder.config)
            with folder.claimed(config, fresh=False):
                folder.error.unlink(missing_ok=True)
                if folder.read_result() is None or folder.checkpoint.exists():
                    serve_run(
                        config, folder, connect(config.engine.deadline, config.federation.quorum, _log.info), holdout
                    )
        except BusyError:
            raise  # what the other one leaves there is its own
        except Exception as error:
            with suppress(OSError):
                folder.error.write_text(f"{error}\n")
            raise

    return make_server_app(run)


def serve_run(config: Config, folder: RunFolder, transport: FlowerTransport, holdout: bool) -> None:
    """Serve a run, or what is left of it. Every round is kept on disk before the next one begins.

    A run that is over is served once more where a client was away at its end and lacks the last model.
    """
    stored = folder.restore()
    state, over = stored[0] if stored else ServerState(run=run_name(config)), folder.result.exists()
    if stored and config.privacy.noise == "secret":
        state.attempt += 1  # what the interrupted round sent may be out already: its order is not used again
    folder.save(state, {})
    if not over or state.late:
        _serve(config, folder, transport, state, holdout)
    if state.late:
        text = "the last model did not reach %s; start the run again when every node is connected, to hand it over"
        _log.warning(text, ", ".join(state.late))
    complete(config, folder, state.stopped, keep=bool(state.late))


def _serve(config: Config, folder: RunFolder, transport: FlowerTransport, state: ServerState, holdout: bool) -> None:
    names, over = config.names, folder.result.exists()
    awaited: Sequence[str] = state.late if over else names
    enough = 1 if over else config.federation.quorum if state.weights else len(names)
    present = transport.meet(awaited, config.engine.deadline, enough)
    transport.enrol(present)
    parameters = check(
        config, make_parameters(config, names, transport.length(present), evaluators(config, holdout), state.run)
    )
    with Pool(config.engine.processes) as pool:
        server = RoundServer(parameters, method_of(config).server(config, pool), state, folder.history.keep)
        drive(serve(server, over), transport.carry, folder.append, lambda kept: folder.save(kept, {}))


def run_name(config: Config) -> str:
    """A name that no other run has, so that no secret order comes twice; a simulation's can be made again."""
    name = short_name(config)
    return name if config.privacy.noise == "seeded" else f"{name}-{secrets.token_hex(8)}"


def client_app(
    make_learner: MakeLearner,
    holdout: bool = True,
    save_model: SaveModel | None = None,
) -> ClientApp:
    """A silo's client with a learner of its own; node-config `name` and `folder` say who and where it is.

    `simulation=true` there lets seeded noise pass, which protects nobody.
    """

    def open_node(settings: Mapping[str, Any]) -> DeployedClient:
        for key in ("name", "folder"):
            if key not in settings:
                raise ConfigError(f'the node\'s --node-config needs {key}="…", got {sorted(settings)}')
        name, folder = str(settings["name"]), Path(str(settings["folder"]))
        return DeployedClient(name, folder, make_learner, holdout, bool(settings.get("simulation", False)), save_model)

    return make_client_app(open_node)


def built_in(config: Config, name: str) -> Learner:
    """The learner of one client of a built-in data set."""
    from paraaegis.runs.experiment import torch_experiment

    return torch_experiment(config, only=name).learners[name]


def _save(config: Config, path: Path, weights: Vector) -> None:
    from paraaegis.runs.experiment import torch_experiment

    torch_experiment(config, only="").save_model(path, weights)


server = server_app(holdout=False)
client = client_app(built_in, holdout=False, save_model=_save)
