"""The result of a run: written after its last round, read by every table and report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from paraaegis import metrics
from paraaegis.config import Config
from paraaegis.errors import PrivacyError, RunError
from paraaegis.privacy.ledger import read_ledger
from paraaegis.runs.folder import RunFolder
from paraaegis.version import __version__


class Result(msgspec.Struct, kw_only=True):
    """The summary of a run. Seconds and bytes are sums over all rounds; `metrics` are the final model's.

    `sites` are its metrics at each client, and `samples` their training samples, if more than one client reported.
    """

    method: str
    rounds: int
    metrics: dict[str, float]
    seconds: float
    bytes_up: int
    bytes_down: int
    folder: str
    stopped: str = ""  # why the run ended before its last round
    best_round: int = 0  # the best by train.stop_metric; 0 if no metric was reported
    machine: dict[str, str] = {}
    sites: dict[str, dict[str, float]] = {}
    samples: dict[str, int] = {}

    @property
    def model(self) -> Path:
        """The file of the final model: for torch a `state_dict`, otherwise a numpy vector."""
        path = RunFolder(Path(self.folder)).saved_model
        if path is None:
            raise RunError(f"{self.folder} holds no model: model.pt or model.npy is missing")
        return path

    @property
    def best_model(self) -> Path:
        """The file of the best round's model; a run across a network has none."""
        path = RunFolder(Path(self.folder)).saved_best
        if path is None:
            raise RunError(f"{self.folder} holds no best model: no metric was reported, or clients ran elsewhere")
        return path

    @property
    def shared(self) -> bool:
        """Whether its machine had other work, so that its seconds cannot be compared; added by whoever ran it."""
        return "shared" in self.machine


def complete(
    config: Config,
    folder: RunFolder,
    stopped: str,
    best_round: int = 0,
    keep: bool = False,
    extendable: bool = False,
    gpu: str = "",
    weights: Mapping[str, int] | None = None,
) -> Result:
    """Write the result of a run whose records are all written; `keep`: a client still needs the last aggregates.

    `weights` are the clients' weights in the mean.
    """
    result = msgspec.structs.replace(summarise(config, folder, stopped, gpu), best_round=best_round)
    if weights and config.federation.weights == "samples":
        samples = {site: weights[site] for site in result.sites}
        result = msgspec.structs.replace(result, samples=samples)
    folder.complete(msgspec.to_builtins(result), keep, extendable)
    return result


def read_done(folder: RunFolder) -> Result | None:
    """The result of a complete run; None if it is not complete."""
    if (content := folder.read_result()) is None:
        return None
    try:
        result = msgspec.convert(content, Result)
    except msgspec.ValidationError as error:
        raise RunError(f"{folder.result} is damaged: {error}; {folder.remedy}") from error
    return msgspec.structs.replace(result, folder=str(folder.path))  # the folder may have been moved


def read_whole(folder: RunFolder) -> Result | None:
    """The same; refused if the ledger, which every complete run has, is missing or incomplete."""
    done = read_done(folder)
    if done is None:
        return None
    if not folder.ledger.exists():
        raise RunError(f"{folder.ledger} is missing, so the privacy this run spent is unknown; restore the file")
    folder.check_ledger(read_ledger(folder.ledger))
    return done


def bytes_per_client(result: Result, config: Config) -> tuple[float, float]:
    """Bytes up and down per client per round."""
    rounds = result.rounds * config.sampled
    return result.bytes_up / rounds, result.bytes_down / rounds


def summarise(config: Config, folder: RunFolder, stopped: str = "", gpu: str = "") -> Result:
    """The result of a run whose records are all written."""
    records = folder.read_records()
    if not records:
        raise PrivacyError(stopped)
    return Result(
        method=config.protect.method,
        rounds=len(records),
        metrics=records[-1].metrics,
        sites=records[-1].sites,
        seconds=sum(record.seconds.get("wall", 0.0) for record in records),
        bytes_up=sum(sum(record.bytes_up.values()) for record in records),
        bytes_down=sum(sum(record.bytes_down.values()) for record in records),
        folder=str(folder.path),
        stopped=stopped,
        machine=machine(gpu),
    )


def by_site(result: Result, metric: str) -> tuple[list[str], list[list[str]]]:
    """The metric at each client: headings and rows; no rows unless several clients reported."""
    rows = []
    for site, measured in result.sites.items():
        samples = f"{result.samples[site]:,}" if site in result.samples else ""
        value = metrics.scaled(metric, measured[metric]) if metric in measured else None
        rows.append([site, samples, "" if value is None else metrics.text(metric, value)])
    return ["site", "samples", metric], rows


def machine(gpu: str) -> dict[str, str]:
    """The machine and software that made a result."""
    return {
        "paraaegis": __version__,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        **{name: version(name) for name in ("numpy", "torch", "tenseal")},
        **({"gpu": gpu} if gpu else {}),
    }
