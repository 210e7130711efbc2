"""A federation of real processes on one machine: prepare the folders, start it, follow it, gather the results."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tomli_w

from paraaegis.config import Config
from paraaegis.crypto.keys import new_identity, save_keys
from paraaegis.engines.flower.processes import FlowerProcesses, check_installed, sweep
from paraaegis.errors import RunError
from paraaegis.files import write_whole
from paraaegis.plural import plural
from paraaegis.privacy.records import record_privacy
from paraaegis.protocol.learner import check_learners
from paraaegis.runs.assemble import make_keys, record_draws
from paraaegis.runs.check import check_samples, resolve, warn_of_range
from paraaegis.runs.folder import RunFolder, write_config
from paraaegis.runs.learners import make_learners
from paraaegis.runs.origin import Origin, origin_of
from paraaegis.runs.result import Result, read_done, read_whole
from paraaegis.runs.run import OnRecord
from paraaegis.version import __version__

_APP = """from paraaegis.deploy import flower_app

server = flower_app.server
client = flower_app.client
"""
_LOOK = 0.3  # seconds between two checks for new records
_ASK = 120.0  # seconds between two queries to Flower whether the run is still going; each takes two seconds


def up(
    config: Config,
    out: Path,
    fresh: bool = False,
    on_record: OnRecord = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run a configuration on a built-in data set with a SuperLink and one SuperNode per client, or continue it.

    `out` is the run's folder, as for a run in one process; its `nodes/` holds the silos' folders, `flower/` the logs.
    """
    place = out / "flower"
    check_installed()
    sweep(place)
    folder, nodes = prepare(config, out, fresh)
    over = _is_over(folder)
    if not over:
        say(f"starting a SuperLink and {plural(len(nodes), 'SuperNode')} on this machine")
        with _stopped_by_sigterm(), FlowerProcesses(place, nodes) as processes:
            run = processes.run(write_app(place / "app"), {"folder": str(folder.path.resolve())})
            say(f"run {run}; logs are in {place / 'logs'}")
            follow(processes, run, folder, on_record, place / "logs", say)
    if not over or not folder.ledger.exists():
        gather(folder, nodes)
    done = read_whole(folder)
    if done is None:
        raise RunError(f"{folder.result} is missing")
    return done


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM stop it as Ctrl-C does, so that nothing is left running; only possible in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_over(folder: RunFolder) -> bool:
    """Whether there is a result and no client still lacks the last model."""
    return read_done(folder) is not None and not folder.checkpoint.exists()


def _begun(nodes: Mapping[str, Path]) -> bool:
    """Whether any silo has taken part in a run."""
    return any((node / "runs").exists() for node in nodes.values())


def prepare(config: Config, out: Path, fresh: bool = False) -> tuple[RunFolder, dict[str, Path]]:
    """Folders for the server and every silo, each with what it needs and nothing more."""
    if config.learner:
        learners = check_learners(make_learners(config), record_privacy(config), record_draws(config))
        warn_of_range(config, next(iter(learners.values())).has_batch_norm)
        check_samples(config, learners)
        resolved = resolve(config, [learner.samples for learner in learners.values()])
        return lay_out(resolved, out, fresh, origin_of(config, learners))
    from paraaegis.learn.models import has_batch_norm
    from paraaegis.runs.experiment import torch_experiment

    warn_of_range(config, has_batch_norm(config.model.name))
    return lay_out(torch_experiment(config, only="").config, out, fresh)


def lay_out(
    resolved: Config, out: Path, fresh: bool = False, origin: Origin | None = None
) -> tuple[RunFolder, dict[str, Path]]:
    """The same for a resolved configuration; `origin` is where its model comes from, with your own learners."""
    folder = RunFolder(out)
    with folder.claimed(resolved, fresh, origin):
        folder.error.unlink(missing_ok=True)
        if fresh:
            shutil.rmtree(out / "nodes", ignore_errors=True)
    nodes = {name: out / "nodes" / name for name in resolved.names}
    missing = [node for node in nodes.values() if not (node / "identity").exists()]
    if missing and _begun(nodes):
        raise RunError(f"{missing[0] / 'identity'} is missing, and the run cannot continue without it; {folder.remedy}")
    if missing and not _is_over(folder):
        for node in nodes.values():
            node.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_config(node / "config.toml", resolved)
        roster = {name: new_identity(node / "identity") for name, node in nodes.items()}
        keys = replace(make_keys(resolved), roster=roster)
        for node in nodes.values():
            save_keys(node / "keys", keys)
    return folder, nodes


def write_app(folder: Path, code: str = _APP) -> Path:
    """Write the Flower app that runs this package, for `flwr run`; `code` defines its `server` and `client`."""
    package = folder / "paraaegis_app"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""ParaAegis on Flower."""\n')
    (package / "app.py").write_text(code)
    components = {"serverapp": "paraaegis_app.app:server", "clientapp": "paraaegis_app.app:client"}
    app = {"publisher": "paraaegis", "components": components, "config": {"folder": ""}}
    project = {"name": "paraaegis-app", "version": __version__, "dependencies": [], "license": "Apache-2.0"}
    build = {"requires": ["setuptools"], "build-backend": "setuptools.build_meta"}
    content = {"build-system": build, "project": project, "tool": {"flwr": {"app": app}}}
    (folder / "pyproject.toml").write_text(tomli_w.dumps(content))
    return folder


def follow(
    processes: FlowerProcesses,
    run: str,
    folder: RunFolder,
    on_record: OnRecord,
    logs: Path,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Pass on records as they are written, until there is a result; raises if the run ends without one.

    Until the first record, `say` how many nodes are connected.
    """
    shown, joined, asked, before = 0, 0, time.monotonic(), read_done(folder)
    while True:
        over = False
        if time.monotonic() - asked > _ASK:
            over, asked = processes.status(run).startswith("finished"), time.monotonic()
        records = folder.read_records()
        for record in records[shown:]:
            on_record(record)
        shown = len(records)
        if not shown and (now := len(processes.connected())) > joined:
            joined = now
            say(f"{joined} of {plural(len(processes.nodes), 'node')} connected")
        # All nodes must join; later a run can continue with a quorum.
        processes.check_alive(*(["superlink"] if _begun(processes.nodes) else []))
        if _is_over(folder) or (before is None and read_done(folder) is not None):
            return
        if folder.error.exists():
            raise RunError(f"the server stopped: {folder.error.read_text().strip()}")
        if over:
            text = (logs / "superlink.log").read_text(errors="replace")
            raise RunError(f"the run ended without a result; the end of {logs / 'superlink.log'}:\n{text[-1500:]}")
        time.sleep(_LOOK)


def gather(folder: RunFolder, nodes: dict[str, Path]) -> None:
    """Gather what a run in one process would leave in one folder: all clients' ledgers, and the model."""
    ledgers = [path for node in nodes.values() if (path := node / "ledger.jsonl").exists()]
    content = b"".join(path.read_bytes() for path in ledgers)
    if folder.ledger.exists() and len(content) < folder.ledger.stat().st_size:
        raise RunError(
            f"{folder.ledger} has {folder.ledger.stat().st_size} bytes, but the silos' ledgers only {len(content)}: "
            "some of the privacy spent is no longer recorded; restore the silos' files"
        )
    if ledgers:
        write_whole(folder.ledger, lambda file: file.write(content))
    models = [model for node in nodes.values() for name in ("model.pt", "model.npy") if (model := node / name).exists()]
    if models:
        copied = folder.path / models[0].name
        shutil.copyfile(models[0], copied)
        copied.chmod(0o600)
