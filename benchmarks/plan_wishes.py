"""Plan what ten practitioners might ask for, run the plans that this machine can run, and compare.

    python benchmarks/plan_wishes.py [NUMBER …]

A plan that is refused says why and what would learn. Of a plan that is run, accuracy must be within the predicted
range, bytes within 5% and seconds within 25% (on a quiet machine). Exits with status 1 if accuracy or bytes are not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEDED = ("--set", "privacy.noise=seeded")
RECORD = ("--set", "privacy.unit=record", "--set", "privacy.sample_rate=0.5", "--set", "train.batch=128")


@dataclass(frozen=True)
class Wish:
    """What someone asks for, in words and as arguments of `paraaegis plan`; `here`: this machine can run it."""

    text: str
    arguments: tuple[str, ...]
    here: bool = True


WISHES = (
    Wish("3 sites, MLP, at most 2 MB each", ("--clients", "3", "--model", "mlp", "--megabytes", "2", "--pilot")),
    Wish("10 sites, CNN, as cheap as possible within a point", ("--model", "cnn", "--pilot")),
    Wish("10 sites, CNN, at most an hour", ("--model", "cnn", "--pilot", "--seconds", "3600")),
    Wish("10 sites, CNN, ε = 8 per client", ("--model", "cnn", "--pilot", "--epsilon", "8")),
    Wish("10 sites, CNN, ε = 8 per record", ("--model", "cnn-gn", "--pilot", "--epsilon", "8", *RECORD,
                                             "--method", "paraaegis-feedback", "--tolerance", "3")),
    Wish("50 sites, MLP, 200 MB for all of them", ("--clients", "50", "--model", "mlp", "--megabytes-total", "200",
                                                  "--pilot")),
    Wish("10 sites, CNN, the paper's noise", ("--model", "cnn", "--pilot", "--method", "paraaegis-static",
                                              "--set", "privacy.calibration=paper")),
    Wish("10 sites, CNN, no shared key", ("--model", "cnn", "--pilot", "--set", "protect.cipher=rlwe")),
    Wish("10 sites, ResNet-18, 10 Mbit/s, 500 MB each", ("--model", "resnet18", "--bandwidth", "10", "--rounds", "50",
                                                         "--megabytes", "500"), here=False),
    Wish("10 sites, ResNet-18, 1,000 Mbit/s, ε = 8 per client", ("--model", "resnet18", "--bandwidth", "1000",
                                                                "--rounds", "50", "--epsilon", "8"), here=False),
)  # fmt: skip


def paraaegis(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run one of our commands; return its exit status and JSON."""
    command = [sys.executable, "-m", "paraaegis", *arguments, "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode > 1:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.returncode, json.loads(done.stdout)


def show(wish: Wish, folder: Path) -> bool:
    """Plan one wish, run it if possible, and print a line; whether predictions held."""
    plan = folder / "plan.toml"
    status, answer = paraaegis("plan", *wish.arguments, *SEEDED, "--write", str(plan))
    choice = answer["choice"]
    chosen = f"{choice['method'].removeprefix('paraaegis-')} {100 * choice['ratio']:g}%"
    if status:
        others = "; ".join(" ".join(one["settings"]) for one in answer["instead"])
        print(f"{wish.text:52} refused: {choice['misses'][-1]}. Instead: {others}", flush=True)
        return not plan.exists()
    expected = choice["predicted"]
    range_ = "unknown" if expected is None else f"{expected['low']:.1f}–{expected['high']:.1f}"
    if not wish.here:
        megabytes = choice["estimate"]["bytes_up"] / answer["rounds"] / 1e6
        print(f"{wish.text:52} {chosen:14} accuracy {range_}, {megabytes:.2f} MB up per client per round", flush=True)
        return True
    _, run = paraaegis("run", str(plan), "--out", str(folder / "run"))
    accuracy, clients = 100 * run["metrics"]["accuracy"], answer["clients"]
    bytes_ = run["bytes_up"] / clients / choice["estimate"]["bytes_up"] - 1
    seconds = run["seconds"] / choice["estimate"]["seconds"] - 1
    held = expected is not None and expected["low"] <= accuracy <= expected["high"] and abs(bytes_) < 0.05
    print(
        f"{wish.text:52} {chosen:14} accuracy {range_}: {accuracy:.1f}; bytes {100 * bytes_:+.1f}%, "
        f"seconds {100 * seconds:+.0f}%{'' if held else '  NOT HELD'}",
        flush=True,
    )
    return held


def main() -> int:
    """Print a line per wish; return 1 if a prediction did not hold."""
    numbers = [int(text) for text in sys.argv[1:]] or range(1, len(WISHES) + 1)
    held = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            held.append(show(WISHES[number - 1], Path(folder)))
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
