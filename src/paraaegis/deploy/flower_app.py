"""The Flower app: a server that reads its run's folder, and clients that read theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paraaegis.config import Config
from paraaegis.deploy.node import DeployedClient, load_resolved
from paraaegis.engines.flower.client import ClientApp, make_client_app
from paraaegis.engines.flower.server import FlowerTransport, OpenTransport, ServerApp, make_server_app
from paraaegis.engines.transport import States, Transport
from paraaegis.errors import BusyError, ConfigError, RunError
from paraaegis.methods import method_of
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import evaluators_of, make_parameters
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import Connect, carry_out

_log = logging.getLogger(__name__)


def server_app() -> ServerApp:
    """The server of a federation: run-config `folder` names the run's folder, which holds config.toml."""

    def run(open_transport: OpenTransport, settings: Mapping[str, Any]) -> None:
        if not settings.get("folder"):
            raise ConfigError("the run needs --run-config 'folder=\"…\"', the folder that holds its config.toml")
        folder = RunFolder(Path(str(settings["folder"])))
        try:
            config = load_resolved(folder.config)
            with folder.claimed(config, fresh=False):
                folder.error.unlink(missing_ok=True)
                if folder.read_result() is None or folder.checkpoint.exists():
                    method_of(config).check(config)  # before it waits for its nodes, who know the model's length
                    transport = open_transport(config.engine.deadline, config.federation.quorum, _log.info)
                    carry_out(config, folder, connector(config, folder, transport))
        except BusyError:
            raise  # error.txt belongs to the other process
        except Exception as error:
            with suppress(OSError):
                folder.error.write_text(f"{error}\n")
            raise

    return make_server_app(run)


def connector(config: Config, folder: RunFolder, transport: FlowerTransport) -> Connect:
    """Connect a run to its nodes: wait for them, relay keys, learn the length of their model."""

    @contextmanager
    def connect(state: ServerState, stored: States | None, over: bool) -> Iterator[tuple[RunParameters, Transport]]:
        if stored:
            raise RunError(
                f"{folder.path} holds a run of the local engine, with its clients' states in the checkpoint; continue "
                "it with engine.name = 'local', or choose another folder"
            )
        names = config.names
        enough = 1 if over else config.federation.quorum if state.weights else len(names)
        present = transport.meet(state.late if over else names, config.engine.deadline, enough)
        transport.enrol(present)
        length = transport.length(present)
        method_of(config).check(config, length)
        yield make_parameters(config, names, length, evaluators_of(config, names), state.run), transport

    return connect


def client_app() -> ClientApp:
    """A silo's client; node-config `name` and `folder` give its name and its folder, whose config.toml is its own.

    `simulation=true` there permits seeded noise, which protects nobody.
    """

    def open_node(settings: Mapping[str, Any]) -> DeployedClient:
        for key in ("name", "folder"):
            if key not in settings:
                raise ConfigError(f'the node\'s --node-config needs {key}="…", got {sorted(settings)}')
        name, folder = str(settings["name"]), Path(str(settings["folder"]))
        return DeployedClient(name, folder, bool(settings.get("simulation", False)))

    return make_client_app(open_node)


server = server_app()
client = client_app()
