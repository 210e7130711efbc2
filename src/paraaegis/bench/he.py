"""Compare the cost of encryption: our profiles, on one core and on all, and other projects' settings if given.

Every setting is measured in its own process, pinned to one core unless it uses all. Settings take turns for several
repeats, and the fastest time of each phase counts, because other work on the machine can only add time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.ckks import CipherSum, Secret, new_key, profile
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import ConfigError
from paraaegis.fixed_point import STEP, to_fixed_point

OURS = ("precise", "compact", "precise-all-cores", "compact-all-cores")
CLIENTS = 10


class Setting(msgspec.Struct, kw_only=True):
    """The cost of one setting, in ns and bytes per value. `add_ns` is load + add of one client's upload.

    `max_error` is the largest error in the sum of ten clients.
    """

    name: str
    encrypt_ns: float
    add_ns: float
    decrypt_ns: float
    bytes_up: float
    bytes_down: float
    max_error: float
    peak_mb: float
    speedup: float = 1.0  # all cores over one, measured alternately in one process


class HeBench(msgspec.Struct, kw_only=True):
    """All settings of one benchmark. Ratios are other over ours (`precise`, one core): above 1 is in our favour."""

    values: int
    settings: list[Setting]
    ratio_vs_authors: dict[str, float] = {}
    ratio_vs_nvflare: dict[str, float] = {}
    ratio_all_cores: dict[str, float] = {}


def bench_he(values: int, repeats: int, peers: Path | None, progress: Callable[[str], None]) -> HeBench:
    """Measure every setting on the same values."""
    if peers is not None and (not peers.is_file() or peers.suffix != ".py" or "class Peer" not in peers.read_text()):
        raise ConfigError(f"--peers needs a Python file with a class Peer, like benchmarks/peers.py, got {peers}")
    names = [*OURS, *(("authors", "nvflare") if peers is not None else ())]
    measured: dict[str, list[Setting]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names:
            progress(f"{name}, {repeat + 1} of {repeats}")
            measured[name].append(_in_a_process(name, values, peers))
    settings = {name: _best(runs) for name, runs in measured.items()}
    bench = HeBench(values=values, settings=list(settings.values()))
    ours = settings["precise"]
    if peers is not None:
        bench.ratio_vs_authors = _ratio(settings["authors"], ours)
        bench.ratio_vs_nvflare = _ratio(settings["nvflare"], ours)
    bench.ratio_all_cores = {"time": settings["precise-all-cores"].speedup}
    return bench


def _ratio(other: Setting, ours: Setting) -> dict[str, float]:
    return {"time": other.encrypt_ns / ours.encrypt_ns, "bytes": other.bytes_up / ours.bytes_up}


def _best(runs: Sequence[Setting]) -> Setting:
    best = {field: min(getattr(run, field) for run in runs) for field in Setting.__struct_fields__ if field != "name"}
    worst = {field: max(getattr(run, field) for run in runs) for field in ("max_error", "speedup", "peak_mb")}
    return Setting(name=runs[0].name, **{**best, **worst})


def _in_a_process(name: str, values: int, peers: Path | None) -> Setting:
    code = "import sys; from paraaegis.bench.he import measure_here; measure_here(*sys.argv[1:])"
    command = [sys.executable, "-c", code, name, str(values), str(peers or "")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — ourselves
    if done.returncode:
        raise ConfigError(f"measuring {name} failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Setting)


def measure_here(name: str, values: str, peers: str) -> None:
    """Measure one setting in this process and print it as a line of JSON."""
    if not name.endswith("-all-cores") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    data = np.random.default_rng(0).normal(0, 0.01, (CLIENTS, int(values)))
    measured = _ours(name, data) if name in OURS else _peer(name, data, Path(peers))
    sys.stdout.write(json.dumps({"name": name, **measured, "peak_mb": _peak_mb()}) + "\n")


def _ours(name: str, data: NDArray[np.float64]) -> dict[str, float]:
    setting = profile(name.removesuffix("-all-cores"))
    workers = 0 if name.endswith("-all-cores") else 1
    with SecretPool(workers) as secrets, Pool(workers) as pool:
        secret = Secret(setting, new_key(setting), secrets)
        warm = CipherSum(setting, data.shape[1], pool)
        warm.add(secret.encrypt(to_fixed_point(data[0]), CLIENTS))  # starts the workers
        total = CipherSum(setting, data.shape[1], pool)
        speedup = {} if workers else {"speedup": _speedup(secret, Secret(setting, new_key(setting)), data)}
        return speedup | _timed(
            data,
            encrypt=lambda row: secret.encrypt(to_fixed_point(row), CLIENTS),
            add=lambda _, chunks: total.add(chunks),
            close=lambda _: total.close(),
            decrypt=lambda chunks: np.multiply(secret.decrypt(chunks, data.shape[1]), STEP, dtype=np.float64),
        )


def _speedup(shared: Secret, alone: Secret, data: NDArray[np.float64]) -> float:
    """The fastest encryption by one process over the fastest by all, measured alternately."""
    spent: dict[Secret, list[float]] = {shared: [], alone: []}
    for row in data:
        steps = to_fixed_point(row)
        for secret, seconds in spent.items():
            start = time.perf_counter()
            secret.encrypt(steps, CLIENTS)
            seconds.append(time.perf_counter() - start)
    return min(spent[alone]) / min(spent[shared])


def _peer(name: str, data: NDArray[np.float64], path: Path) -> dict[str, float]:
    spec = spec_from_file_location("peers", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"cannot load {path}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    peer = module.Peer(name)

    def add(total: Any, chunks: Any) -> Any:
        return peer.load(chunks) if total is None else peer.add(total, chunks)

    return _timed(data, peer.encrypt, add, peer.close, lambda chunks: np.array(peer.decrypt(chunks)))


def _timed(
    data: NDArray[np.float64],
    encrypt: Callable[[NDArray[np.float64]], Any],
    add: Callable[[Any, Any], Any],
    close: Callable[[Any], Any],
    decrypt: Callable[[Any], NDArray[np.float64]],
) -> dict[str, float]:
    spent: dict[str, list[float]] = {"encrypt": [], "add": [], "close": [], "decrypt": []}
    total, up = None, 0

    def timed(phase: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        spent[phase].append(time.perf_counter() - start)
        return result

    for row in data:
        chunks = timed("encrypt", partial(encrypt, row))
        up += sum(map(len, chunks))
        total = timed("add", partial(add, total, chunks))
    down = timed("close", lambda: close(total))
    opened = timed("decrypt", lambda: decrypt(down))
    ns = {phase: min(seconds) * 1e9 / data.shape[1] for phase, seconds in spent.items()}
    return {
        "encrypt_ns": ns["encrypt"],
        "add_ns": ns["add"] + ns["close"] / len(data),
        "decrypt_ns": ns["decrypt"],
        "bytes_up": up / data.size,
        "bytes_down": sum(map(len, down)) / data.shape[1],
        "max_error": float(np.abs(opened[: data.shape[1]] - data.sum(axis=0)).max()),
    }


def _peak_mb() -> float:
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage) / 1000
