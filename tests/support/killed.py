"""Kill a run at each of its writes in turn, let it go on, and tell what became of it.

    python killed.py FOLDER SETTING…

Prints JSON: what the run that was not killed left behind, and for each kill what the run that went on left behind.
A fresh interpreter, so that forks are safe: it starts no thread of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np

from paraaegis.crypto import mac, rlwe
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.run import federate
from toy import ToyLearner, configure

CLIENTS, ROUNDS, LENGTH = 3, 3, 40


class Open(ToyLearner):
    """A learner whose metrics are its whole model, so that the lines show every bit of it."""

    def evaluate(self, weights):
        return {f"w{index}": float(value) for index, value in enumerate(weights)}

    def train(self, weights, number):
        """Depends on how often it was called, as an optimiser's momentum does."""
        trained, metrics = super().train(weights, number)
        return trained * np.float32(1 + 0.01 * self.trained), metrics


def play(folder: Path, settings: list[str]) -> None:
    rng = np.random.default_rng(0)
    learners = {f"client-{i}": Open(rng.normal(size=(ROUNDS, LENGTH)), 10 + i) for i in range(CLIENTS)}
    noisy = ["privacy.clip=1", f"federation.clients={CLIENTS}", f"federation.rounds={ROUNDS}"]
    federate(configure(*noisy, "engine.workers=2", *settings), learners, folder)


class Countdown:
    """Dies at the n-th event; counts them where n is 0."""

    def __init__(self, fatal: int) -> None:
        self.fatal, self.seen = fatal, 0

    def __call__(self) -> None:
        self.seen += 1
        if self.seen == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: object, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments, **options):
            self()
            return original(*arguments, **options)

        setattr(owner, name, counted)

    def torn_lines(self) -> None:
        """A line may be cut anywhere."""

        def append(folder: RunFolder, line) -> None:
            import msgspec

            data = msgspec.json.encode(line) + b"\n"
            with folder.records.open("ab", buffering=0) as file:
                self()
                file.write(data[: len(data) // 2])
                self()
                file.write(data[len(data) // 2 :])

        RunFolder.append = append


def live(folder: Path, settings: list[str], fatal: int) -> int | None:
    """One life of a run in a child; how many events it had, or None where it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        countdown = Countdown(fatal)
        countdown.before(os, "fsync")
        countdown.before(Path, "replace")
        countdown.before(Path, "unlink")
        countdown.torn_lines()
        try:
            play(folder, settings)
            os.write(writer, str(countdown.seen).encode())
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if told:
        return int(told)
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise SystemExit(f"the run failed by itself before event {fatal}")
    return None


def left_behind(folder: Path) -> dict[str, object]:
    """Names of files, and a digest of all lines without what is measured: seconds, and the size of ciphertexts."""
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        for direction in ("bytes_up", "bytes_down"):
            line[direction].pop("ckks", None)
    digest = hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()
    return {"files": sorted(path.name for path in folder.iterdir()), "rounds": len(lines), "lines": digest}


def main() -> None:
    root, settings = Path(sys.argv[1]), sys.argv[2:]
    mac.warm()  # once, rather than in every life
    rlwe.warm()
    if threading.active_count() > 1:
        raise SystemExit("the loops' warm-up started a thread, and a fork would leave it behind")
    events = live(root / "whole", settings, 0)
    outcomes = []
    for fatal in range(1, (events or 0) + 1):
        folder = root / f"killed-{fatal}"
        died = live(folder, settings, fatal) is None
        live(folder, settings, 0)
        outcomes.append({"died": died, **left_behind(folder)})
    # And one that is killed again and again, each time one event later.
    folder, fatal = root / "often", 1
    while live(folder, settings, fatal) is None:
        fatal += 3
    outcomes.append({"died": fatal > 1, **left_behind(folder)})
    json.dump({"whole": left_behind(root / "whole"), "killed": outcomes}, sys.stdout)


if __name__ == "__main__":
    main()
