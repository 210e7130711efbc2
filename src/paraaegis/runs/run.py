"""One run: prepared, carried out over any transport, recorded as it goes, resumed where it stopped."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from paraaegis.config import PASSED, Config
from paraaegis.crypto.keys import load_keys, save_keys
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.engines.local import LocalTransport
from paraaegis.engines.transport import States, Transport
from paraaegis.errors import ConfigError, RunError
from paraaegis.files import write_whole
from paraaegis.methods import method_of
from paraaegis.plural import plural
from paraaegis.privacy.budget import budget
from paraaegis.privacy.ledger import Ledger
from paraaegis.privacy.records import record_privacy
from paraaegis.protocol.learner import CheckedLearner, check_learners
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import RoundServer, Served
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import evaluators_of, make_clients, make_keys, make_parameters, record_draws, short_name
from paraaegis.runs.check import check_budget, check_samples, checked_length, resolve, warn_of_range
from paraaegis.runs.extend import extend, extendable
from paraaegis.runs.folder import RunFolder
from paraaegis.runs.improvement import Improvement
from paraaegis.runs.learners import make_learners, save_model
from paraaegis.runs.origin import Origin, origin_of
from paraaegis.runs.result import Result, complete, read_whole
from paraaegis.types import Learner

OnRecord: TypeAlias = Callable[[RoundRecord], None]
# Opens a transport for a run in this state, with its clients' states from a checkpoint; True: the run is over.
Connect: TypeAlias = Callable[
    [ServerState, States | None, bool], AbstractContextManager[tuple[RunParameters, Transport]]
]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """How a run was asked for: in which folder, from the start, with more rounds, and who follows its records."""

    out: Path
    fresh: bool
    extend: bool
    on_record: OnRecord


@dataclass(frozen=True)
class _Kept:
    """Where a run is kept as it goes, and who follows it."""

    config: Config
    folder: RunFolder
    improvement: Improvement
    on_record: OnRecord
    served: Served | None


def run_here(config: Config, out: Path, fresh: bool, on_record: OnRecord, extend: bool = False) -> Result:
    """Run a configuration in the folder `out`, or continue it, with all clients in this process."""
    asked = _Asked(out, fresh, extend, on_record)
    if config.learner:
        return _run_own(config, make_learners(config), asked)
    from paraaegis.runs.experiment import torch_experiment

    experiment = torch_experiment(config)
    return _run(experiment.config, _checked(config, experiment.learners), asked, experiment.gpu)


def federate(
    config: Config,
    learners: Mapping[str, Learner],
    out: Path | str,
    fresh: bool = False,
    on_record: OnRecord = lambda _: None,
    extend: bool = False,
) -> Result:
    """Run a configuration in this process with your own learners, one per client, and save the model.

    `learners`: by client; each comes from `torch_learner`, or is any object with a `Learner`'s methods. `out` is the
    run's folder; called again with the same one, an interrupted run continues, and a finished one returns its result.
    With `extend`, a finished run continues up to a larger `federation.rounds`.
    """
    if config.engine.name != "local":
        raise ConfigError(
            f"federate runs its learners in this process, so engine.name must be 'local', got {config.engine.name!r}; "
            "to run over a network, give each node its own client app (docs/deployment.md)"
        )
    check_budget(config)
    if len(learners) != config.federation.clients:
        raise ConfigError(
            f"federation.clients is {config.federation.clients}, got {plural(len(learners), 'learner')}; set "
            f"federation.clients = {len(learners)}"
        )
    if names := config.federation.names:
        if set(learners) != set(names):
            raise ConfigError(f"federation.names lists {', '.join(names)}, got learners of {', '.join(learners)}")
        learners = {name: learners[name] for name in names}
    asked = _Asked(Path(out), fresh, extend, on_record)
    return _run_own(msgspec.structs.replace(config, learner=PASSED), learners, asked)


def _run_own(config: Config, learners: Mapping[str, Learner], asked: _Asked) -> Result:
    """Run the user's own learners. Each evaluates the model on its own hold-out data."""
    checked = _checked(config, learners)
    resolved = resolve(config, [learner.samples for learner in checked.values()])
    return _run(resolved, checked, asked, origin=origin_of(config, checked))


def _checked(config: Config, learners: Mapping[str, Learner]) -> dict[str, CheckedLearner]:
    return check_learners(learners, record_privacy(config), record_draws(config))


def _run(
    config: Config,
    learners: Mapping[str, CheckedLearner],
    asked: _Asked,
    gpu: str = "",
    origin: Origin | None = None,
) -> Result:
    """Run these learners in this process. Built-in ones have public test data, which the first one evaluates."""
    if asked.fresh and asked.extend:
        raise ConfigError("--fresh starts over and --extend adds rounds to what there is; choose one of them")
    check_samples(config, learners)
    warn_of_range(config, next(iter(learners.values())).has_batch_norm)
    folder, improvement = RunFolder(asked.out), Improvement(config)
    connect = _connector(config, folder, learners, improvement)
    with folder.claimed(config, asked.fresh, origin, asked.extend):
        if asked.extend:
            extend(folder, config)
        if (done := read_whole(folder)) is not None:
            if folder.saved_model is None:
                _log.warning("%s is missing; %s", folder.model, folder.remedy)
            folder.tidy(extendable(config, done.rounds))
            return done
        return carry_out(config, folder, connect, asked.on_record, gpu, improvement)


def _connector(
    config: Config, folder: RunFolder, learners: Mapping[str, CheckedLearner], improvement: Improvement
) -> Connect:
    """Connect a run to its clients in this process; at its end, save the last model and the best."""
    length, holdout = checked_length(config, learners), bool(config.learner)
    evaluators = evaluators_of(config, tuple(learners))

    @contextmanager
    def connect(state: ServerState, stored: States | None, _over: bool) -> Iterator[tuple[RunParameters, Transport]]:
        _check_clients(config, folder, stored, learners)
        if stored is None or not folder.keys.exists():
            save_keys(folder.keys, make_keys(config))
        stored = stored or {}
        for name, (_, arrays) in stored.items():
            learners[name].load(arrays)
        parameters = make_parameters(config, tuple(learners), length, evaluators, state.run)
        with SecretPool(config.engine.processes) as pool:
            keys, ledger = load_keys(folder.keys), Ledger(budget(config), folder.ledger)
            clients = make_clients(config, parameters, learners, keys, pool, ledger, holdout)
            if holdout:
                clients = {
                    name: replace(one, log_metrics=folder.metrics.of(client=name)) for name, one in clients.items()
                }
            states = {name: state for name, (state, _) in stored.items()}
            with LocalTransport(clients, states, config.engine.workers) as transport:
                yield parameters, transport
        first = next(iter(learners.values())).made
        save_model(first, folder.model, transport.weights)
        if improvement.weights is not None:
            save_model(first, folder.best, improvement.weights)

    return connect


def _check_clients(
    config: Config, folder: RunFolder, stored: States | None, learners: Mapping[str, CheckedLearner]
) -> None:
    """Refuse a checkpoint that these learners cannot continue."""
    if stored is None:
        return
    if not stored:
        raise RunError(
            f"{folder.path} holds a run across a network, whose clients keep their own states; continue it with "
            f"engine.name = 'flower', or choose another --out"
        )
    if set(stored) != set(learners):
        raise RunError(f"the checkpoint holds {sorted(stored)}, got learners {sorted(learners)}; pass the same")
    if config.privacy.noise == "secret":
        load_keys(folder.keys)  # lost keys cannot be made again, those of a simulation can


def carry_out(
    config: Config,
    folder: RunFolder,
    connect: Connect,
    on_record: OnRecord = lambda _: None,
    gpu: str = "",
    improvement: Improvement | None = None,
    served: Served | None = None,
) -> Result:
    """Carry out a run, or what is left of it, over the transport that `connect` opens.

    A run that is over is served again if a client was absent at its end and lacks the last model. `improvement` is new,
    and knows the best round in the end. `served`: see RoundServer.
    """
    improvement = improvement or Improvement(config)
    kept = _Kept(config, folder, improvement, on_record, served)
    stored, over = folder.restore(), folder.result.exists()
    state, clients = stored or (ServerState(run=_run_name(config)), None)
    if stored and config.privacy.noise == "secret":
        state.attempt += 1  # the interrupted round may have been sent in part, so its secret order must not be reused
    _replay(kept)
    if stored:
        improvement.weights = folder.best_weights()
    if not over:
        state.stopped = improvement.stopped
    local = False
    if not over or state.late:
        with connect(state, clients, over) as (parameters, transport):
            _serve(kept, parameters, transport, state, over)
            local = not transport.remote
    if state.change:
        write_whole(folder.change, lambda file: np.save(file, np.frombuffer(state.change, dtype=np.float32)))
    if state.late:
        text = "the last model did not reach %s; to deliver it, start the run again when every node is connected"
        _log.warning(text, ", ".join(state.late))
    return complete(
        config,
        folder,
        state.stopped,
        best_round=improvement.best_round,
        keep=bool(state.late),
        extendable=local and extendable(config, state.number),
        gpu=gpu,
        weights=state.weights,
    )


def _serve(kept: _Kept, parameters: RunParameters, transport: Transport, state: ServerState, over: bool) -> None:
    config, folder, improvement = kept.config, kept.folder, kept.improvement

    def keep_record(record: RoundRecord) -> None:
        folder.append(record)
        improvement.take(record, transport.weights)
        state.stopped = state.stopped or improvement.stopped
        kept.on_record(record)

    def keep_state(state: ServerState) -> None:
        ended = state.pending is None
        if ended and not transport.remote:  # all clients have applied all sums
            state = msgspec.structs.replace(state, history=[])
        due = ended or state.number % config.engine.checkpoint == 0
        due &= state.opening[0] <= state.number  # within a round, learners have trained: they cannot train it again
        if due or transport.remote:  # after a restart, what remote clients were told must still be known
            folder.save(state, transport.checkpoint(), improvement.weights)
        server.measure()

    if transport.remote or folder.checkpoint.exists():  # the attempt must not be used again
        folder.save(state, transport.checkpoint(), improvement.weights)
    with Pool(config.engine.processes) as pool:
        half = method_of(config).server(config, pool)
        keep = folder.history.keep if transport.remote else lambda aggregate: aggregate
        server = RoundServer(parameters, half, state, keep, kept.served)
        drive(serve(server, over), transport.carry, keep_record, keep_state)


def _run_name(config: Config) -> str:
    """A name that no other run has, so that no secret order is used twice; a simulation's name is reproducible."""
    name = short_name(config)
    return name if config.privacy.noise == "seeded" else f"{name}-{secrets.token_hex(8)}"


def _replay(kept: _Kept) -> None:
    """Pass on the records of rounds that an earlier start completed."""
    records = kept.folder.read_records()
    if records:
        _log.info("continuing after round %d", records[-1].round)
    for record in records:
        kept.improvement.take(record)
        kept.on_record(record)
