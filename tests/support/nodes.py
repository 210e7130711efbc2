"""Silos' nodes on disk without Flower: every message makes a node of its folder anew, as on a real network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from blobs import SAMPLES
from paraaegis.config import Config, make_config
from paraaegis.deploy.answer import answer
from paraaegis.deploy.local_federation import lay_out
from paraaegis.deploy.node import DeployedClient
from paraaegis.errors import ParaAegisError
from paraaegis.methods import find_method
from paraaegis.protocol.messages import Frames, Message, pack, unpack
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import Exchange, Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import make_parameters, short_name
from paraaegis.runs.check import resolve

LENGTH = 120
BASE = ("privacy.noise=secret", "privacy.calibration=tight", f"federation.min_samples={SAMPLES}", "privacy.epsilon=8.0",
        "protect.ratio=0.2", "engine.processes=1", "learner=blobs:make_learner")  # fmt: skip
Meddle = Callable[[str, Message, Callable[[], Frames]], Frames | None]


class Nodes:
    """A federation's folders, and its server as long as a test lets it run."""

    def __init__(self, out: Path, method: str, clients: int, *settings: str) -> None:
        given = [*BASE, f"protect.method={method}", f"federation.clients={clients}", *settings]
        self.config: Config = resolve(make_config({}, given), [SAMPLES])
        self.folders = lay_out(self.config, out)[1]
        self.state = ServerState(run=f"{short_name(self.config)}-a")
        self.lines: list[RoundRecord] = []
        self.traffic: list[tuple[str, Message, Message]] = []  # of each client: what it was sent, and its answer

        self.views: set[str] = set()  # what clients believed in each round

    def node(self, name: str) -> DeployedClient:
        return DeployedClient(name, self.folders[name])

    def ask(self, name: str, message: Message) -> Message:
        reply = unpack(answer(self.node(name), pack(message)))
        self.traffic.append((name, message, reply))
        self.views |= {json.loads(one.read_text())["values"].get("state/view", "") for one in self.manifests(name)}
        return reply

    def manifests(self, name: str) -> list[Path]:
        return list(self.folders[name].glob("runs/*/manifest.json"))

    def parameters(self, run: str = ""):
        names = self.config.names
        return make_parameters(self.config, names, LENGTH, names[:1], run or self.state.run)

    def serve(self, meddle: Meddle = lambda _name, _message, answered: answered()) -> None:
        """Carry out the run, or what is left of it."""

        def carry(exchange: Exchange) -> Iterator[Reply]:
            for name, frames in exchange.messages.items():
                request = unpack(frames)
                try:
                    found = meddle(name, request, lambda n=name, r=request: pack(self.ask(n, r)))
                except ParaAegisError as error:
                    yield Reply(name, error=str(error))
                else:
                    yield Reply(name, found or (), lost=found is None, error="" if found else "away")

        round_server = RoundServer(
            self.parameters(), find_method(self.config.protect.method).server(self.config, None), self.state
        )
        drive(serve(round_server), carry, self.lines.append, lambda _: None)

    def models(self) -> list[np.ndarray]:
        found = []
        for folder in self.folders.values():
            (weights,) = folder.glob(f"runs/{self.state.run}/*state-weights.npy")
            found.append(np.load(weights))
        return found


def secrets_of(folder: Path) -> list[bytes]:
    """Every 32 bytes in a folder's files that a key could be: raw keys, and hexadecimal ones."""
    found = set()
    for path in folder.rglob("*"):
        if not path.is_file() or path.suffix == ".npy":
            continue
        content = path.read_bytes()
        found.update(content[at : at + 32] for at in range(max(0, len(content) - 31)))
        found.update(bytes.fromhex(text.decode()) for text in re.findall(rb"(?=([0-9a-f]{64}))", content))
    return sorted(found)
