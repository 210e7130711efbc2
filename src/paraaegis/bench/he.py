"""Compare the cost of encryption: our ciphers, on one core and on all, and other projects' settings if given.

Every setting is measured in its own process, pinned to one core unless it uses all. Settings take turns for several
repeats, and the fastest time of each phase counts, because other work on the machine can only add time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paraaegis.bench.ciphers import OURS
from paraaegis.errors import ConfigError
from paraaegis.methods import REFERENCE

FEDAVG_BYTES = 4.0  # a float32 per value, up and down


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
    """All settings of one benchmark. Ratios are other over ours: above 1 is in our favour.

    `ratios` has them by our RLWE setting and by what it is compared with, for settings on one core. Those of CKKS are
    `ratio_vs_authors` and `ratio_vs_nvflare`, for `precise` on one core.
    """

    values: int
    settings: list[Setting]
    ratio_vs_authors: dict[str, float] = {}
    ratio_vs_nvflare: dict[str, float] = {}
    ratio_all_cores: dict[str, float] = {}
    ratios: dict[str, dict[str, dict[str, float]]] = {}


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
    if peers is not None:
        bench.ratio_vs_authors = _ratio_of_ckks(settings["authors"], settings["precise"])
        bench.ratio_vs_nvflare = _ratio_of_ckks(settings["nvflare"], settings["precise"])
    bench.ratio_all_cores = {"time": settings["precise-all-cores"].speedup}
    bench.ratios = {name: _ratios(settings, settings[name]) for name in ("rlwe-wide", "rlwe-double")}
    return bench


def _ratio_of_ckks(other: Setting, ours: Setting) -> dict[str, float]:
    return {"time": other.encrypt_ns / ours.encrypt_ns, "bytes": other.bytes_up / ours.bytes_up}


def _ratios(settings: dict[str, Setting], ours: Setting) -> dict[str, dict[str, float]]:
    """Time to encrypt and serialise, and bytes up and down, by what it is compared with; FedAvg does not encrypt."""
    others = {name: settings[name] for name in ("precise", "compact", "authors", "nvflare") if name in settings}
    ratios = {
        name: {
            "time": other.encrypt_ns / ours.encrypt_ns,
            "up": other.bytes_up / ours.bytes_up,
            "down": other.bytes_down / ours.bytes_down,
        }
        for name, other in others.items()
    }
    return ratios | {REFERENCE: {"up": FEDAVG_BYTES / ours.bytes_up, "down": FEDAVG_BYTES / ours.bytes_down}}


def _best(runs: Sequence[Setting]) -> Setting:
    best = {field: min(getattr(run, field) for run in runs) for field in Setting.__struct_fields__ if field != "name"}
    worst = {field: max(getattr(run, field) for run in runs) for field in ("max_error", "speedup", "peak_mb")}
    return Setting(name=runs[0].name, **{**best, **worst})


def _in_a_process(name: str, values: int, peers: Path | None) -> Setting:
    code = "import sys; from paraaegis.bench.ciphers import measure_here; measure_here(*sys.argv[1:])"
    command = [sys.executable, "-c", code, name, str(values), str(peers or "")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — ourselves
    if done.returncode:
        raise ConfigError(f"measuring {name} failed:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Setting)
