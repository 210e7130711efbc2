"""A run's folder: the resolved configuration, a record per round, the checkpoint, the model, the result.

    config.toml       what was run, with every default filled in
    rounds.jsonl      one record (line) per round
    ledger.jsonl      every release, written before it was sent; never shortened
    checkpoint.npz    what a resumed run needs, readable only by its owner; removed when every client has the last model
    history/          aggregates that a client may still need
    keys              the clients' secrets during the run, readable only by its owner
    model.pt          the final model, for plain torch; model.npy if the learner has no format of its own
    best.pt           the model of the best round, likewise
    last.npz          the last checkpoint of a finished run to which rounds can be added; may be removed
    learners.json     with your own learners: where the model came from (origin.py)
    metrics.jsonl     what each client measured in each round
    change.npy        if the server opens sums: what they changed in the first model, a float32 per parameter
    result.json       the summary; if it exists, the run is complete
    error.txt         why a federation's server stopped, until it is started again

rounds.jsonl and the ledger are appended to. Every other file that is read again is written to a temporary file and
moved into place, so that a kill at any time leaves it intact.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from paraaegis.config import Config, load_config
from paraaegis.engines.transport import States
from paraaegis.errors import BusyError, ParaAegisError, RunError
from paraaegis.files import write_whole
from paraaegis.plural import plural
from paraaegis.privacy.guarantee import VALUES
from paraaegis.privacy.ledger import Release, read_ledger
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.state import ServerState
from paraaegis.runs.checkpoint import Checkpoint
from paraaegis.runs.differences import EXTENSION, differences
from paraaegis.runs.history import History
from paraaegis.runs.lines import line_of, with_nan
from paraaegis.runs.metrics_log import MetricsLog
from paraaegis.runs.origin import Origin, obstacles, write_origin
from paraaegis.types import Vector


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path / ".lock"
        self.config = path / "config.toml"
        self.records = path / "rounds.jsonl"
        self.ledger = path / "ledger.jsonl"
        self.checkpoint = path / "checkpoint.npz"
        self._checkpoint = Checkpoint(self.checkpoint, self.ledger)
        self.last = path / "last.npz"
        self.change = path / "change.npy"
        self.history = History(path / "history")
        self.keys = path / "keys"
        self.model = path / "model.pt"
        self.best = path / "best.pt"
        self.origin = path / "learners.json"
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self.result = path / "result.json"
        self.error = path / "error.txt"

    @contextmanager
    def claimed(
        self, config: Config, fresh: bool, origin: Origin | None = None, extend: bool = False
    ) -> Iterator[None]:
        """Lock the folder for a run of this configuration; refuses the folder of another run or process.

        `origin` is where the model comes from, if the configuration does not say. With `extend` the number of rounds
        may differ from that of the run in the folder, and so may train.stop_after.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path} cannot be a run's folder: {error.strerror}; choose another --out") from error
        if (
            not self._lock.exists()
            and not self._is_ours()
            and (foreign := sorted(path.name for path in self.path.iterdir()))
        ):
            raise RunError(
                f"{self.path} is not a run's folder: it holds {', '.join(foreign[:5])}; choose another --out"
            )
        with self._lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BusyError(
                    f"another process is running in {self.path}; wait for it or choose another --out"
                ) from error
            if extend and not self.config.exists():
                raise RunError(f"{self.path} holds no run to extend; leave --extend out to start one")
            if origin is not None and not fresh:
                self._check_origin(origin)
            self._check(config, fresh, extend)
            if origin is not None:
                write_origin(self.origin, origin)
            yield

    def _is_ours(self) -> bool:
        """Whether the folder holds a run's configuration, as in results that were copied without their lock."""
        return self.config.exists() and self.read_config() is not None

    def read_config(self) -> Config | None:
        """The configuration of the run in this folder; None if there is none that can be read."""
        try:
            return load_config(self.config)
        except ParaAegisError:
            return None

    def _check(self, config: Config, fresh: bool, extend: bool) -> None:
        models = *_forms(self.model), *_forms(self.best)
        written = self.records, self.checkpoint, self.last, self.keys, self.change, self.result, self.error
        traces = (*written, *models, self.metrics.path, self.origin)
        if fresh:
            self._keep_what_was_spent()
            for path in (*traces, self.ledger, self.config):  # last, so that a kill leaves no traces without them
                path.unlink(missing_ok=True)
            self.history.prune()
        elif self.config.exists():
            self._same(config, extend)
            return
        else:
            self._refuse_nameless()
        write_config(self.config, config)

    def _check_origin(self, origin: Origin) -> None:
        """Refuse to continue with other learners, or to pass an old result off as that of changed code."""
        try:
            differing = obstacles(self.origin, origin, finished=self.result.exists())
        except RunError as error:
            raise RunError(f"{error}; {self.remedy}") from error
        if differing:
            text = f"{self.path} holds a run with other learners: {'; '.join(differing)}; choose another --out"
            raise RunError(text + self._or_start_over)

    @property
    def saved_model(self) -> Path | None:
        """The file of the final model, if it was saved."""
        return next((path for path in _forms(self.model) if path.exists()), None)

    @property
    def saved_best(self) -> Path | None:
        """The file of the best round's model, if it was saved."""
        return next((path for path in _forms(self.best) if path.exists()), None)

    def _refuse_nameless(self) -> None:
        """Refuse traces of a run without its configuration: they must not be mistaken for another run's."""
        traces = [path.name for path in (self.result, self.records, self.ledger, self.checkpoint) if path.exists()]
        if traces:
            raise RunError(
                f"{self.config} is missing, but the folder still contains {', '.join(traces)} from an earlier run, "
                "whose configuration is therefore unknown; restore the file, or choose another "
                f"--out{self._or_start_over}"
            )

    def _keep_what_was_spent(self) -> None:
        self._refuse_forgetting()
        if self._really_spent():
            raise RunError(
                f"{self.ledger} records privacy already spent with secret noise; starting over would discard that "
                "record. Choose another --out, and add up what both runs spend"
            )

    def _refuse_forgetting(self) -> None:
        """Refuse traces of a run with secret noise but no ledger: the privacy it spent is unknown."""
        config = self.read_config()
        traces = [path.name for path in (self.records, self.result, self.checkpoint) if path.exists()]
        secret = config is None or config.privacy.noise == "secret"
        if secret and traces and not self.ledger.exists():
            raise RunError(
                f"{self.ledger} is missing, but {traces[0]} shows that something was sent, so the privacy spent is "
                "unknown; restore the file, or choose another --out"
            )

    def _refuse_repeating(self) -> None:
        """Refuse to repeat a run with secret noise that was past its first checkpoint: it must continue from there."""
        config = self.read_config()
        if (
            config is not None
            and config.privacy.noise == "secret"
            and len(self.read_records()) >= config.engine.checkpoint
        ):
            raise RunError(
                f"{self.checkpoint} is missing, so the rounds in {self.records.name} would have to be repeated, which "
                "would spend their budget twice; restore the file, or choose another --out"
            )

    @property
    def remedy(self) -> str:
        """What to do about a damaged file: starting over must not forget what was spent."""
        if self._may_start_over:
            return "--fresh starts over"
        return "restore the file, or choose another --out and add up what both runs spend"

    @property
    def _or_start_over(self) -> str:
        return ", or --fresh to start over" if self._may_start_over else ""

    @property
    def _may_start_over(self) -> bool:
        try:
            self._keep_what_was_spent()
        except RunError:
            return False
        return True

    def _really_spent(self) -> bool:
        return self.ledger.exists() and not all(release.simulated for release in read_ledger(self.ledger))

    def stored(self, config: Config) -> Config:
        """The configuration in this folder; values that the run filled in are taken from `config` if it lacks them."""
        try:
            return load_config(self.config).filled(config)
        except ParaAegisError as error:
            raise RunError(f"{error}; {self.remedy}") from error  # the error names the file

    def _same(self, config: Config, extend: bool) -> None:
        differing = differences(self.stored(config), config)
        others = [text for text in differing if not text.startswith(EXTENSION)]
        if others or (differing and not extend):
            more = ", --extend to add rounds to this run" if self.last.exists() and not others else ""
            raise RunError(
                f"{self.path} holds a run with a different configuration: "
                f"{'; '.join(others if extend else differing)}; choose another --out{more}{self._or_start_over}"
            )

    def append(self, record: RoundRecord) -> None:
        """Append the record of a round."""
        with self.records.open("ab") as file:
            file.write(line_of(record))

    def read_records(self) -> list[RoundRecord]:
        """The records so far; a last line cut off by a kill is skipped."""
        if not self.records.exists():
            return []
        whole = self.records.read_bytes().split(b"\n")[:-1]
        try:
            return [msgspec.convert(with_nan(msgspec.json.decode(record)), RoundRecord) for record in whole]
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise RunError(f"{self.records} is damaged: {error}; {self.remedy}") from error

    def check_ledger(self, releases: Iterable[Release]) -> None:
        """Refuse a ledger with these releases if it lacks some that a client made: spending would seem too low."""
        ledger: dict[int, dict[str, set[str]]] = {}
        for release in releases:
            if release.what in VALUES:
                ledger.setdefault(release.round, {}).setdefault(release.client, set()).add(release.what)
        for record in self.read_records():
            sent = ledger.get(record.round, {})
            kinds = set[str]().union(*sent.values())  # the same for all clients of a round
            for client in record.clients:
                missing = kinds - sent.get(client, set())
                if missing or not kinds:
                    what = f"no {min(missing)!r}" if client in sent else "nothing"
                    raise RunError(
                        f"{self.ledger.name} is incomplete: it has {what} from {client} in round {record.round}; "
                        "restore the file"
                    )

    def save(self, server: ServerState, clients: States, best: Vector | None = None) -> None:
        """Write a checkpoint of the server, and of each client with its learner's state; `best`: the best model."""
        kept = self.history.save(server.history)
        self._checkpoint.write(server, kept, clients, best)
        self.history.prune(kept)

    def restore(self) -> tuple[ServerState, States] | None:
        """The last checkpoint, or None before the first one; records written after it are removed."""
        if not self.checkpoint.exists():
            self._refuse_forgetting()
            self._refuse_repeating()
            self.records.unlink(missing_ok=True)
            self.metrics.path.unlink(missing_ok=True)
            self.history.prune()
            return None
        try:
            stored = self._checkpoint.read()
            stored.server.history = self.history.load(stored.history)
        except RunError as error:
            raise RunError(f"{error}; {self.remedy}") from error
        self.history.prune(stored.history)  # the rounds after the checkpoint are repeated, with other encryptions
        self._checkpoint.check_ledger(stored)
        server = stored.server
        self._truncate_records(server.lines)
        self.metrics.truncate(train=server.number, evaluate=server.number - 1)  # the model is measured again
        return server, stored.clients

    def rounds_at_end(self) -> int:
        """The rounds of a run in one process, if its checkpoint is its last; 0 if it has none, or has rounds left."""
        if not self.checkpoint.exists():
            return 0
        stored = self._checkpoint.read()
        return stored.server.number if stored.clients and stored.server.pending is None else 0

    def best_weights(self) -> Vector | None:
        """The best model in the checkpoint, if it has one."""
        return self._checkpoint.best()

    def _truncate_records(self, count: int) -> None:
        records = self.read_records()
        if len(records) < count:
            raise RunError(
                f"{self.records} holds {plural(len(records), 'round')}, but the checkpoint expects {count}; "
                f"{self.remedy}"
            )
        write_whole(
            self.records,
            lambda file: file.writelines(map(line_of, records[:count])),
        )

    def complete(self, result: Mapping[str, Any], keep: bool = False, extendable: bool = False) -> None:
        """Write the result, then remove what only an unfinished run needs, unless `keep` is set."""
        content = msgspec.json.format(msgspec.json.encode(result), indent=2)
        write_whole(self.result, lambda file: file.write(content + b"\n"))
        if not keep:
            self.tidy(extendable)

    def tidy(self, extendable: bool = False) -> None:
        """Remove what a complete run no longer needs, and files that a kill left half-written.

        The checkpoint of an `extendable` one is set aside.
        """
        if extendable and self.checkpoint.exists():
            self.checkpoint.replace(self.last)
        for path in (self.checkpoint, self.keys, *self.path.glob("*.partial"), *self.path.glob("*.tmp")):
            path.unlink(missing_ok=True)
        self.history.prune()

    def read_result(self) -> dict[str, Any] | None:
        """The result of a complete run."""
        if not self.result.exists():
            return None
        try:
            result: dict[str, Any] = with_nan(msgspec.json.decode(self.result.read_bytes()))
        except msgspec.DecodeError as error:
            raise RunError(f"{self.result} is damaged: {error}; {self.remedy}") from error
        return result


def _forms(model: Path) -> tuple[Path, Path]:
    """The files in which a model may be saved."""
    return model, model.with_suffix(".npy")


def write_config(path: Path, config: Config) -> None:
    """Write a configuration as a file that `load_config` can read."""
    content = tomli_w.dumps(config.tables()).encode()
    write_whole(path, lambda file: file.write(content))
