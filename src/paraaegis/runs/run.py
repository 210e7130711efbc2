"""One run: prepared, carried out by the local engine, written down as it goes, resumed where it stopped."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import msgspec

from paraaegis.config import Config
from paraaegis.crypto.keys import load_keys, save_keys
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.engines.local import LocalEngine
from paraaegis.errors import ConfigError, PrivacyError, RunError
from paraaegis.privacy.budget import budget
from paraaegis.privacy.ledger import Ledger, read_ledger
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.state import RoundRecord, ServerState
from paraaegis.runs.assemble import assemble, check, check_method, make_keys, make_parameters, resolve
from paraaegis.runs.folder import RunFolder
from paraaegis.types import Learner, Vector
from paraaegis.version import __version__

OnRecord = Callable[[RoundRecord], None]
SaveModel = Callable[[Path, Vector], None]
_log = logging.getLogger(__name__)


class Result(msgspec.Struct, kw_only=True):
    """A run in short. Seconds and bytes are those of all rounds; `metrics` are the final model's."""

    method: str
    rounds: int
    metrics: dict[str, float]
    seconds: float
    bytes_up: int
    bytes_down: int
    folder: str
    stopped: str = ""  # why the run ended before its last round
    machine: dict[str, str] = {}

    @property
    def shared(self) -> bool:
        """Whether its machine had other work too, so that its seconds cannot be compared: whoever ran it wrote so."""
        return "shared" in self.machine


def run_here(config: Config, out: Path, fresh: bool, on_record: OnRecord) -> Result:
    """Run a configuration on its data set, or continue it, in the folder `out`, with all clients in this process."""
    check_config(config)
    from paraaegis.runs.experiment import torch_experiment

    classroom = torch_experiment(config)
    return _run(classroom.config, classroom.learners, out, fresh, on_record, classroom.save_model, classroom.gpu)


def check_config(config: Config) -> None:
    """Refuse what can be refused before the data is read: names that do not exist, noise or numbers that cannot be."""
    from paraaegis.learn.names import DATASET_NAMES, MODEL_NAMES

    check_method(resolve(config, [max(1, config.federation.min_samples)]), length=1)
    for key, name, known in (
        ("data.name", config.data.name, DATASET_NAMES),
        ("model.name", config.model.name, MODEL_NAMES),
    ):
        if name not in known:
            raise ConfigError(f"{key} must be one of {', '.join(known)}, got {name!r}")


def federate(
    config: Config,
    learners: Mapping[str, Learner],
    out: Path | str,
    fresh: bool = False,
    on_record: OnRecord = lambda _: None,
) -> Result:
    """Run a configuration with learners of your own, one a client; its tables data, model and train are not used."""
    if len(learners) != config.federation.clients:
        raise ConfigError(f"federation.clients is {config.federation.clients}, got {len(learners)} learners")
    if names := config.federation.names:
        if set(learners) != set(names):
            raise ConfigError(f"federation.names lists {', '.join(names)}, got learners of {', '.join(learners)}")
        learners = {name: learners[name] for name in names}
    resolved = resolve(config, [learner.samples for learner in learners.values()])
    return _run(resolved, learners, Path(out), fresh, on_record, holdout=True)


def _run(
    config: Config,
    learners: Mapping[str, Learner],
    out: Path,
    fresh: bool,
    on_record: OnRecord,
    save_model: SaveModel | None = None,
    gpu: str = "",
    holdout: bool = False,
) -> Result:
    least = max(1, config.federation.min_samples)
    for name, learner in learners.items():
        if learner.samples < least:
            raise ConfigError(f"{name} has {learner.samples} samples, federation.min_samples asks for {least}")
    length = int(next(iter(learners.values())).initial().size)
    check(config, make_parameters(config, tuple(learners), length, ()))
    folder = RunFolder(out)
    with folder.claimed(config, fresh):
        if (done := read_whole(folder)) is not None:
            if save_model is not None and not folder.model.exists():
                _log.warning("%s is gone; %s", folder.model, folder.remedy)
            folder.tidy()
            return done
        with SecretPool(config.engine.processes) as clients_pool, Pool(config.engine.processes) as server_pool:
            weights, stopped = _carry_out(config, learners, folder, on_record, (clients_pool, server_pool), holdout)
        if save_model is not None:
            save_model(folder.model, weights)
        return complete(config, folder, stopped, gpu=gpu)


def complete(config: Config, folder: RunFolder, stopped: str, keep: bool = False, gpu: str = "") -> Result:
    """Write the result of a run whose lines are all there; `keep`: a client still needs the last aggregates."""
    result = summarise(config, folder, stopped, gpu)
    folder.complete(msgspec.to_builtins(result), keep)
    return result


def read_done(folder: RunFolder) -> Result | None:
    """The result of a complete run."""
    if (content := folder.read_result()) is None:
        return None
    try:
        found = msgspec.convert(content, Result)
    except msgspec.ValidationError as error:
        raise RunError(f"{folder.result} is damaged: {error}; {folder.remedy}") from error
    return msgspec.structs.replace(found, folder=str(folder.path))  # it may have been moved


def read_whole(folder: RunFolder) -> Result | None:
    """The same; refused where its ledger is gone or cut, which every run that came to a result has."""
    done = read_done(folder)
    if done is None:
        return None
    if not folder.ledger.exists():
        raise RunError(f"{folder.ledger} is gone, and with it what this run spent; bring back a copy")
    folder.check_ledger(read_ledger(folder.ledger))
    return done


def _carry_out(
    config: Config,
    learners: Mapping[str, Learner],
    folder: RunFolder,
    on_record: OnRecord,
    pools: tuple[SecretPool, Pool],
    holdout: bool,
) -> tuple[Vector, str]:
    """Run what is left; the final model, and why the run stopped early if it did."""
    stored = folder.restore()
    if stored is None:
        save_keys(folder.keys, make_keys(config))
    evaluator = next(iter(learners))
    ledger = Ledger(budget(config), folder.ledger)
    federation = assemble(config, learners, load_keys(folder.keys), evaluator, pools, ledger, holdout)
    server, clients = stored if stored is not None else (ServerState(), {})
    if clients and set(clients) != set(learners):
        raise RunError(f"the checkpoint holds {sorted(clients)}, got learners {sorted(learners)}; pass the same")
    for name, (_, arrays) in clients.items():
        learners[name].load(arrays)
    engine = LocalEngine(
        federation.clients, {name: state for name, (state, _) in clients.items()}, config.engine.workers
    )

    def save(state: ServerState) -> None:
        folder.save(state, {name: (engine.states[name], learners[name].state()) for name in learners})

    if clients and config.privacy.noise == "secret":
        # What the interrupted round sent may be out already: its order is not used again.
        server.attempt += 1
        save(server)

    def keep_record(record: RoundRecord) -> None:
        folder.append(record)
        on_record(record)

    def keep_state(state: ServerState) -> None:
        if state.number % config.engine.checkpoint == 0 or state.number == config.federation.rounds:
            save(state)

    _replay(folder, on_record)
    engine.run(RoundServer(federation.parameters, federation.server, server), keep_record, keep_state)
    return engine.states[evaluator].weights, server.stopped


def _replay(folder: RunFolder, on_record: OnRecord) -> None:
    """Show the rounds of an earlier start."""
    records = folder.read_records()
    if records:
        _log.info("going on after round %d", records[-1].round)
    for record in records:
        on_record(record)


def bytes_a_client(result: Result, config: Config) -> tuple[float, float]:
    """Up and down, of a client and round."""
    rounds = result.rounds * config.sampled
    return result.bytes_up / rounds, result.bytes_down / rounds


def summarise(config: Config, folder: RunFolder, stopped: str = "", gpu: str = "") -> Result:
    """The result of a run whose lines are all written."""
    records = folder.read_records()
    if not records:
        raise PrivacyError(stopped)
    return Result(
        method=config.protect.method,
        rounds=len(records),
        metrics=records[-1].metrics,
        seconds=sum(record.seconds.get("wall", 0.0) for record in records),
        bytes_up=sum(sum(record.bytes_up.values()) for record in records),
        bytes_down=sum(sum(record.bytes_down.values()) for record in records),
        folder=str(folder.path),
        stopped=stopped,
        machine=machine(gpu),
    )


def machine(gpu: str) -> dict[str, str]:
    """Where a result was made."""
    return {
        "paraaegis": __version__,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        **{name: version(name) for name in ("numpy", "torch", "tenseal")},
        **({"gpu": gpu} if gpu else {}),
    }
