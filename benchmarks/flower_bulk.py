"""ResNet-18-sized messages through a real SuperLink and two SuperNodes: seconds per round, peak memory per process.

    python benchmarks/flower_bulk.py

Each client sends 11.19 million values, noised (45 MB) or under full CKKS (85 MB), for two rounds. Training returns a
random update, so all the time is spent in the protocol and in Flower.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from paraaegis.bench.round import RESNET18
from paraaegis.config import Config, make_config
from paraaegis.deploy.local_federation import follow, lay_out, write_app
from paraaegis.engines.flower.processes import FlowerProcesses
from paraaegis.planning.measure import NullLearner
from paraaegis.runs.check import resolve
from paraaegis.types import Metrics, Vector

APP = """from flower_bulk import make_learner
from paraaegis.deploy import flower_app

server = flower_app.server_app(holdout=False)
client = flower_app.client_app(make_learner, holdout=False)
"""


class Random(NullLearner):
    """A learner whose update is random."""

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """Draw a random update."""
        return weights + np.random.default_rng(number).normal(0, 0.01, weights.size).astype(np.float32), {}

    def evaluate(self, weights: Vector) -> Metrics:
        """Return a number to report."""
        return {"accuracy": float(np.abs(weights[:1000]).mean())}


def make_learner(_config: Config, _name: str) -> Random:
    """Return a learner, the same for every client."""
    return Random(RESNET18)


class Peaks:
    """The peak memory in MB of each program of a trial, polled twice a second."""

    def __init__(self, trial, names) -> None:
        self.peaks: dict[str, int] = {}
        self._trial, self._names, self._stop = trial, names, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self.peaks

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            for name in self._names:
                for pid in self._trial.family(name):
                    try:
                        status = Path(f"/proc/{pid}/status").read_text()
                        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                    except OSError:
                        continue
                    program = next((Path(part).name for part in command if "fl" in Path(part).name[:2]), command[0])
                    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
                    self.peaks[program] = max(self.peaks.get(program, 0), peak // 1000)


def measure(method: str) -> None:
    """Run two rounds of a method and print their cost."""
    settings = [f"protect.method={method}", "federation.clients=2", "federation.rounds=2", "federation.quorum=2",
                "federation.min_samples=947", "engine.deadline=300"]  # fmt: skip
    config = resolve(make_config({}, settings), [947])
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        folder, nodes = lay_out(config, out)
        started = time.perf_counter()
        with FlowerProcesses(out / "flower", nodes) as trial, Peaks(trial, ["superlink", *nodes]) as peaks:
            run = trial.run(write_app(out / "flower" / "app", APP), {"folder": str(folder.path)})
            follow(trial, run, folder, lambda _: None, out / "flower" / "logs")
        total = time.perf_counter() - started
        for line in folder.read_records():
            up, down = (sum(part.values()) / 2e6 for part in (line.bytes_up, line.bytes_down))
            print(f"{method} {line.round}: {line.seconds['wall']:.1f} s, {up:.1f} MB up, {down:.1f} MB down per client")
        print(f"{method}: {total:.0f} s with start and stop; peak MB: {peaks}", flush=True)


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    for name in sys.argv[1:] or ["dp-fedavg", "ckks-fedavg"]:
        measure(name)
