"""Measure one cipher's setting in this process: times per value of one client's steps, and bytes."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto import rlwe
from paraaegis.crypto.ckks import CipherSum, Profile, Secret, new_key, profile
from paraaegis.crypto.kdf import KEY_BYTES
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.errors import ConfigError
from paraaegis.fixed_point import STEP, to_fixed_point
from paraaegis.types import Blob

RLWE = {f"rlwe-{name}": each for name, each in rlwe.PROFILES.items()}
CKKS = ("precise", "compact")
OURS = tuple(name + cores for cores in ("", "-all-cores") for name in (*CKKS, *RLWE))
CLIENTS = 10


def measure_here(name: str, values: str, peers: str) -> None:
    """Measure one setting in this process and print it as a line of JSON."""
    cores = 0 if name.endswith("-all-cores") else 1
    if cores == 1:
        _on_one_core()
    data = np.random.default_rng(0).normal(0, 0.01, (CLIENTS, int(values)))
    cipher = name.removesuffix("-all-cores")
    if cipher in RLWE:
        measured = _rlwe(RLWE[cipher], data, cores)
    elif cipher in CKKS:
        measured = _ckks(profile(cipher), data, cores)
    else:
        measured = _peer(name, data, Path(peers))
    sys.stdout.write(json.dumps({"name": name, **measured, "peak_mb": _peak_mb()}) + "\n")


def _on_one_core() -> None:
    os.cpu_count = lambda: 1  # the threads of `parallel_map`
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _rlwe(setting: rlwe.Profile, data: NDArray[np.float64], cores: int) -> dict[str, float]:
    rlwe.warm()
    seed, secrets, length = bytes(KEY_BYTES), np.zeros(rlwe.SECRET, dtype=np.int64), data.shape[1]
    total = rlwe.RlweSum(setting, length)

    def encrypt(row: NDArray[np.float64]) -> Sequence[Blob]:
        secret = rlwe.new_secret()
        secrets[:] += secret
        return rlwe.encrypt(setting, to_fixed_point(row), CLIENTS, rlwe.new_mask(seed, secret))

    def again() -> None:
        rlwe.encrypt(setting, steps, CLIENTS, rlwe.new_mask(seed))

    steps = to_fixed_point(data[0])
    speedup = {} if cores else {"speedup": _speedup(lambda: _alone(again), again)}
    return speedup | _timed(
        data,
        encrypt=encrypt,
        add=lambda _, chunks: total.add(chunks),
        close=lambda _: total.close(),
        decrypt=lambda chunks: np.multiply(
            rlwe.decrypt(setting, chunks, length, secrets, seed, CLIENTS), STEP, dtype=np.float64
        ),
    )


def _ckks(setting: Profile, data: NDArray[np.float64], cores: int) -> dict[str, float]:
    with SecretPool(cores) as secrets, Pool(cores) as pool:
        secret = Secret(setting, new_key(setting), secrets)
        warm = CipherSum(setting, data.shape[1], pool)
        warm.add(secret.encrypt(to_fixed_point(data[0]), CLIENTS))  # starts the workers
        total = CipherSum(setting, data.shape[1], pool)
        steps, alone = to_fixed_point(data[0]), Secret(setting, new_key(setting))
        works = partial(alone.encrypt, steps, CLIENTS), partial(secret.encrypt, steps, CLIENTS)
        speedup = {} if cores else {"speedup": _speedup(*works)}
        return speedup | _timed(
            data,
            encrypt=lambda row: secret.encrypt(to_fixed_point(row), CLIENTS),
            add=lambda _, chunks: total.add(chunks),
            close=lambda _: total.close(),
            decrypt=lambda chunks: np.multiply(secret.decrypt(chunks, data.shape[1]), STEP, dtype=np.float64),
        )


def _speedup(alone: Callable[[], Any], shared: Callable[[], Any]) -> float:
    """The fastest run on one core over the fastest on all, measured alternately."""
    spent: dict[Callable[[], Any], list[float]] = {alone: [], shared: []}
    for _ in range(CLIENTS):
        for work, seconds in spent.items():
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    return min(spent[alone]) / min(spent[shared])


def _alone(work: Callable[[], Any]) -> None:
    """Call `work` with one thread in `parallel_map`, for which `cpu_count` is the limit."""
    counted = os.cpu_count
    os.cpu_count = lambda: 1
    try:
        work()
    finally:
        os.cpu_count = counted


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
