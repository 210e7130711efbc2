"""Build both halves of a run from a configuration and learners."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paraaegis.config import Config
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.keys import FederationKeys
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import public_of
from paraaegis.crypto.streams import system
from paraaegis.errors import ConfigError
from paraaegis.methods import method_of
from paraaegis.privacy.budget import budget
from paraaegis.privacy.ledger import Ledger
from paraaegis.privacy.records import record_privacy
from paraaegis.protocol.client_context import ClientContext, Draw
from paraaegis.protocol.learner import CheckedLearner, check_learners
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.protect import ClientHalf
from paraaegis.protocol.schedule import Schedule
from paraaegis.protocol.single_flight import SingleFlight
from paraaegis.protocol.sums import ServerHalf
from paraaegis.runs.check import checked_length
from paraaegis.seeds import Purpose, stream
from paraaegis.types import Draw as RoundDraw
from paraaegis.types import Learner


@dataclass(frozen=True)
class Federation:
    """A run that is ready to start."""

    parameters: RunParameters
    server: ServerHalf
    clients: dict[str, ClientContext]


def short_name(config: Config) -> str:
    """The prefix of the names of a configuration's runs."""
    return config.digest()[:16]


def make_keys(config: Config) -> FederationKeys:
    """The clients' secrets: fresh ones or, for a seeded simulation, ones that can be derived again."""
    return FederationKeys(Root.new() if config.privacy.noise == "secret" else _seeded_root(config))


def simulated_keys(config: Config) -> tuple[FederationKeys, dict[str, bytes]]:
    """Secrets that every process can derive, with a roster, and all private identity keys: they protect nobody."""
    root = _seeded_root(config)
    privates = {name: _simulated_identity(root, name) for name in config.names}
    roster = {name: public_of(private) for name, private in privates.items()}
    return FederationKeys(root, roster=roster), privates


def _seeded_root(config: Config) -> Root:
    seeded = hashlib.sha256(config.seed.to_bytes(8, "little")).digest()
    return Root(derive(seeded, "simulated root"), bytes(16))


def _simulated_identity(root: Root, name: str) -> bytes:
    return derive(root.secret, "simulated identity", name)


def make_parameters(
    config: Config, clients: Sequence[str], length: int, evaluators: Sequence[str], run: str = ""
) -> RunParameters:
    """The public parameters of a run of a resolved configuration; without `run` its configuration names it."""
    if not 1 <= config.federation.quorum <= config.sampled:
        raise ConfigError(
            f"federation.quorum must be between 1 and the {config.sampled} clients of a round, got "
            f"{config.federation.quorum}"
        )
    return RunParameters(
        run=run or short_name(config),
        config=config.digest(),
        method=config.protect.method,
        length=length,
        rounds=config.federation.rounds,
        clients=tuple(clients),
        sampled=config.sampled,
        quorum=config.federation.quorum,
        uniform=config.federation.weights == "uniform",
        min_samples=config.federation.min_samples,
        schedule=Schedule(config.protect.ratio, config.protect.decay),
        strategy=config.protect.strategy,
        history=config.federation.history,
        seed=config.seed,
        attempts=config.privacy.attempts,
        participations=config.privacy.participations,
        evaluators=tuple(evaluators),
    )


def evaluators_of(config: Config, names: Sequence[str]) -> tuple[str, ...]:
    """Who reports metrics: every client on its own hold-out data, or the first one on a data set's public test data."""
    return tuple(names) if config.learner else tuple(names[:1])


def make_client(
    config: Config,
    parameters: RunParameters,
    name: str,
    learner: CheckedLearner,
    keys: FederationKeys,
    half: ClientHalf,
    ledger: Ledger,
    holdout: bool,
    identity: tuple[bytes, bytes],
) -> ClientContext:
    """A single client of a run; `identity` is its private and public key."""
    index = parameters.clients.index(name)
    return ClientContext(
        name=name,
        parameters=parameters,
        half=half,
        learner=learner,
        root=keys.root,
        noise=draw(config, Purpose.NOISE, index),
        votes=draw(config, Purpose.SELECT, index),
        ledger=ledger,
        simulated=config.privacy.noise == "seeded",
        holdout=holdout,
        identity=identity,
        roster=keys.roster,
    )


def make_clients(
    config: Config,
    parameters: RunParameters,
    learners: Mapping[str, CheckedLearner],
    keys: FederationKeys,
    pool: SecretPool | None = None,
    ledger: Ledger | None = None,
    holdout: bool = False,
) -> dict[str, ClientContext]:
    """All clients of a run in one process. They share what is the same for each of them.

    With `holdout` they evaluate on their own hold-out data, which the ledger then counts as a release.
    """
    lagging = parameters.sampled < len(parameters.clients)  # clients not drawn apply several rounds at once later
    cache, deltas = SingleFlight(), SingleFlight(keep=parameters.history if lagging else 2)
    half = method_of(config).client(config, pool)
    ledger = Ledger(budget(config)) if ledger is None else ledger
    # A resumed run must have the same identities, since they are part of what its clients agreed on.
    privates = {name: _simulated_identity(keys.root, name) for name in learners}
    pairs = {name: (private, public_of(private)) for name, private in privates.items()}
    keys = replace(keys, roster={name: public for name, (_, public) in pairs.items()})
    alone = {
        name: make_client(config, parameters, name, learner, keys, half, ledger, holdout, pairs[name])
        for name, learner in learners.items()
    }
    return {name: replace(client, cache=cache, deltas=deltas, resident=True) for name, client in alone.items()}


def assemble(
    config: Config,
    learners: Mapping[str, Learner],
    keys: FederationKeys,
    evaluator: str,
    pools: tuple[SecretPool, Pool] | None = None,
) -> Federation:
    """A run of a resolved configuration without a folder, for measurements and tests. Only the first pool has keys."""
    clients_pool, server_pool = pools or (None, None)
    checked = check_learners(learners, record_privacy(config), record_draws(config))
    parameters = make_parameters(config, tuple(learners), checked_length(config, checked), (evaluator,))
    clients = make_clients(config, parameters, checked, keys, clients_pool)
    return Federation(parameters, method_of(config).server(config, server_pool), clients)


def record_draws(config: Config) -> Callable[[int], RoundDraw]:
    """By client: what draws the samples and the noise of DP-SGD in a round."""
    if config.privacy.noise == "seeded":
        return lambda client: lambda number: stream(config.seed, Purpose.RECORDS, client, number)
    return lambda _client: lambda _number: system()


def draw(config: Config, purpose: Purpose, client: int) -> Draw:
    """Random streams: ones that can be replayed for a simulation, fresh secret ones otherwise."""
    if config.privacy.noise == "seeded":
        return lambda number, attempt: stream(config.seed, purpose, client, number, attempt)
    return lambda _number, _attempt: system()
