"""A silo's node: what its folder holds, and the client that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from paraaegis.config import Config, load_config, meant
from paraaegis.crypto.enrol import KeyRequest
from paraaegis.crypto.keys import load_identity, load_keys
from paraaegis.crypto.pool import SecretPool
from paraaegis.crypto.ratchet import Root
from paraaegis.deploy.answer import answer
from paraaegis.deploy.key_folder import KeyFolder
from paraaegis.deploy.store import most_spent
from paraaegis.errors import ConfigError, KeyFileError, RunError
from paraaegis.files import write_whole
from paraaegis.methods import method_of
from paraaegis.privacy.budget import budget
from paraaegis.privacy.ledger import Ledger
from paraaegis.privacy.record_budget import check_delta
from paraaegis.privacy.records import record_privacy
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.learner import CheckedLearner, LearnerFacts, introduce, protect_records
from paraaegis.protocol.messages import Frames
from paraaegis.protocol.state import ClientState
from paraaegis.runs.assemble import evaluators_of, make_client, make_parameters, record_draws, short_name
from paraaegis.runs.check import resolve, warn_of_range
from paraaegis.runs.learners import digest_of_file, find_maker, importable, save_model
from paraaegis.runs.metrics_log import MetricsLog
from paraaegis.types import Learner

WORTH = 500_000  # values that one process encrypts in about the time another takes to start


class _Introduced(msgspec.Struct):
    """What a node said of itself when it last introduced itself."""

    config: str
    learner: str
    facts: LearnerFacts
    code: str = ""  # digest of the learner's file


def load_resolved(path: Path) -> Config:
    """A silo's or the server's configuration; if the quorum is not set, everyone computes the same one."""
    config = load_config(path)
    return resolve(config, [config.federation.min_samples])


@dataclass
class DeployedClient:
    """One silo: its folder holds config.toml, keys, identity, ledger.jsonl and the states of its runs.

    Its configuration names its learner, which may differ between silos. Seeded noise is refused except in a
    `simulation`.
    """

    name: str
    folder: Path
    simulation: bool = False

    @cached_property
    def config(self) -> Config:
        """The configuration that this silo trusts."""
        path = self.folder / "config.toml"
        config = self._load(path)
        if self.name not in config.names:
            raise ConfigError(
                f"this node is called {self.name!r}, but {path} has no such client{meant(self.name, config.names)}; "
                f"its clients are {', '.join(config.names)}"
            )
        if config.privacy.noise == "seeded" and not self.simulation:
            raise ConfigError('privacy.noise is "seeded", which protects nobody: set it to "secret", in every silo')
        return config

    def _load(self, path: Path) -> Config:
        return load_resolved(path)

    @property
    def holdout(self) -> bool:
        """Whether it evaluates on its own hold-out data, as its own learner does."""
        return bool(self.config.learner)

    @cached_property
    def learner(self) -> CheckedLearner:
        """The silo's model and data, loaded when they are first needed."""
        return CheckedLearner(self.name, lambda: self._made, self._facts, record_privacy=record_privacy(self.config))

    @cached_property
    def _made(self) -> Learner:
        if self.config.learner:
            importable(self.folder)
            made = find_maker(self.config)(self.config, self.name)
            draw = record_draws(self.config)(self.config.names.index(self.name))
            protect_records(self.name, made, record_privacy(self.config), draw)
            return made
        from paraaegis.runs.experiment import torch_experiment

        return torch_experiment(self.config, only=self.name).learners[self.name]

    @cached_property
    def _facts(self) -> LearnerFacts:
        """What every message needs to know about the learner, as of the node's last introduction."""
        path = self.folder / "facts.json"
        if path.exists():
            with suppress(msgspec.DecodeError, msgspec.ValidationError):  # written by an earlier version
                known = msgspec.json.decode(path.read_bytes(), type=_Introduced)
                if (known.config, known.learner) == (self.config.digest(), self.config.learner):
                    return known.facts
        return self._introduce()

    def _introduce(self) -> LearnerFacts:
        facts, _ = introduce(self.name, self._made)
        check_delta(self.config, self.name, facts.samples)
        warn_of_range(self.config, bool(getattr(self._made, "has_batch_norm", False)))
        introduced = _Introduced(
            config=self.config.digest(), learner=self.config.learner, facts=facts, code=digest_of_file(self.config)
        )
        write_whole(self.folder / "facts.json", lambda file: file.write(msgspec.json.encode(introduced)))
        return facts

    @property
    def _told(self) -> str:
        """See ClientContext: this node's learner hears nothing from the server."""
        return ""

    @property
    def _secrets(self) -> KeyFolder:
        return KeyFolder(self.folder)

    def card(self) -> dict[str, str | int | bytes | bool]:
        """The node's introduction: name, length of the model, and what enrolment needs. Reads the data again."""
        secrets = self._secrets
        length = self._introduce().length
        identity: dict[str, str | bytes] = {"name": self.name, "public": secrets.public, "key_id": secrets.key_id}
        return {**identity, "length": length, "leads": secrets.leads}

    def ask(self, lead_public: bytes) -> KeyRequest:
        """A request to the lead for the federation's secrets."""
        return self._secrets.ask(lead_public)

    def seal(self, asking: Mapping[str, KeyRequest]) -> dict[str, bytes]:
        """As the lead: the federation's secrets and roster, sealed to approved silos."""
        return self._secrets.seal(asking, self.name)

    def open(self, sealed: bytes, lead_public: bytes) -> None:
        """Open and store the secrets that the lead sealed to this silo."""
        self._secrets.open(sealed, self.name, lead_public)

    def answer(self, frames: Frames) -> Frames:
        """Answer one message of a run."""
        return answer(self, frames)

    @contextmanager
    def client(self, run: str) -> Iterator[ClientContext]:
        """The node's client in a run; the processes that encrypt long vectors end with the context."""
        config, keys = self.config, load_keys(self.folder / "keys")
        if not run.startswith(short_name(config)):
            raise ConfigError(
                f"run {run} uses a different configuration from this silo's, {short_name(config)}; compare the "
                "config.toml here with the operator's: only the table engine, data.folder, privacy.attempts and "
                "learner may differ"
            )
        if strangers := [name for name in config.names if name not in keys.roster]:
            raise KeyFileError(
                f"the keys of {self.name} contain no identity for {', '.join(strangers)}; let the lead approve them "
                "with `paraaegis keys lead` and start the run again, or make keys for all with `paraaegis keys new`"
            )
        if keys.roster[self.name] != load_identity(self.folder / "identity")[1]:
            raise KeyFileError(
                f"the keys contain a different identity for {self.name} from the one in {self.folder}; enrol it again"
            )
        length = self._facts.length
        method = method_of(config)
        method.check(config, length)
        parameters = make_parameters(config, config.names, length, evaluators_of(config, config.names), run)
        with SecretPool(config.engine.processes) as pool:
            half = method.client(config, pool)
            encrypted = parameters.k(1) if half.votes else length
            pool.workers = max(1, min(pool.workers, encrypted // WORTH))
            ledger, identity = self._ledger(config), load_identity(self.folder / "identity")
            yield replace(
                make_client(config, parameters, self.name, self.learner, keys, half, ledger, self.holdout, identity),
                erase_root=self._erase_root,
                told=self._told,
                report_fields=self._report_fields(config),
                log_metrics=MetricsLog(self.folder / "metrics.jsonl").of(run=run),
            )

    def _ledger(self, config: Config) -> Ledger:
        """What this silo has released, under any name; refused if the file is missing or shorter than a run left it."""
        path = self.folder / "ledger.jsonl"
        if self.spent < (least := most_spent(self.folder / "runs")):
            raise RunError(
                f"{path} is missing, truncated or outdated: a run of {self.name} left {least} bytes in it, and it now "
                f"has {self.spent}. The privacy spent is unknown; restore the file"
            )
        path.touch(mode=0o600)
        return Ledger(budget(config), path, one_owner=True)

    @property
    def spent(self) -> int:
        """The size of its ledger in bytes."""
        path = self.folder / "ledger.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _report_fields(self, config: Config) -> frozenset[str]:
        """What its reports include: metrics on public data always; with seeded noise, everything."""
        simulated = config.privacy.noise == "seeded"
        metrics = config.engine.share_metrics or not self.holdout
        shared = {"metrics": metrics or simulated, "seconds": config.engine.share_seconds or simulated}
        return frozenset(name for name, included in shared.items() if included)

    def _erase_root(self, root: Root) -> None:
        """Erase the root of a run that begins; with seeded noise, which must be replayable, it is kept."""
        if self.config.privacy.noise == "secret":
            self._secrets.erase_root(root)

    def finished(self, state: ClientState) -> None:
        """Save the final model."""
        save_model(self._made, self.folder / "model.pt", state.weights)
