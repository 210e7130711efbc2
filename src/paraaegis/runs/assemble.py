"""From a configuration and learners to the two halves of a run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from paraaegis.config import Config, check_names
from paraaegis.crypto.ckks import profile
from paraaegis.crypto.kdf import derive
from paraaegis.crypto.keys import FederationKeys
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.ratchet import Root
from paraaegis.crypto.sealed_box import public_of
from paraaegis.crypto.streams import system
from paraaegis.errors import ConfigError
from paraaegis.methods import ClientParts, check_carry, check_inside, check_shares, find_method, least_quorum
from paraaegis.privacy.budget import budget, noise
from paraaegis.privacy.ledger import Ledger
from paraaegis.protocol.client_context import ClientContext, Draw
from paraaegis.protocol.parameters import RunParameters
from paraaegis.protocol.protect import ClientHalf
from paraaegis.protocol.schedule import Schedule
from paraaegis.protocol.single_flight import SingleFlight
from paraaegis.protocol.sums import ServerHalf
from paraaegis.seeds import Purpose, stream
from paraaegis.types import Learner


@dataclass(frozen=True)
class Federation:
    """A run that is ready to go."""

    parameters: RunParameters
    server: ServerHalf
    clients: dict[str, ClientContext]


def resolve(config: Config, samples: list[int]) -> Config:
    """Fill in what depends on the data: the quorum and the smallest data size."""
    federation = config.federation
    least = max(math.ceil(0.8 * config.sampled), config.privacy.floor, least_quorum(config))
    quorum = federation.quorum or min(least, config.sampled)
    fewest = federation.min_samples or min(samples)
    federation = msgspec.structs.replace(federation, quorum=quorum, min_samples=fewest)
    return msgspec.structs.replace(config, federation=federation)


def short_name(config: Config) -> str:
    """What the names of a configuration's runs begin with."""
    return config.digest()[:16]


def make_keys(config: Config) -> FederationKeys:
    """The clients' secrets: fresh ones, or for a seeded simulation some that can be drawn again."""
    if config.privacy.noise == "secret":
        return FederationKeys(Root.new())
    seeded = hashlib.sha256(config.seed.to_bytes(8, "little")).digest()
    return FederationKeys(Root(derive(seeded, "simulated root"), bytes(16)))


def check(config: Config, parameters: RunParameters) -> RunParameters:
    """Refuse what can be refused before anything is written."""
    if not 1 <= parameters.quorum <= parameters.sampled:
        raise ConfigError(
            f"federation.quorum must be 1 to the {parameters.sampled} clients of a round, got {parameters.quorum}"
        )
    check_method(config, parameters.length)
    if config.protect.method == "paraaegis-feedback" and not parameters.k(parameters.rounds):
        raise ConfigError(
            f"protect.ratio = {config.protect.ratio:g} elects none of {parameters.length} values in round "
            f"{parameters.rounds}, and paraaegis-feedback sends nothing else; set a larger ratio or a decay nearer to 1"
        )
    check_names(parameters.clients)
    return parameters


def check_method(config: Config, length: int) -> None:
    """Refuse a method that does not exist or cannot do what the configuration asks of it."""
    method, chosen = find_method(config.protect.method), profile(config.protect.profile)
    if method.encrypts and config.sampled > chosen.max_clients:
        raise ConfigError(
            f"profile {chosen.name!r} sums up to {chosen.max_clients} clients, got {config.sampled} a round; lower "
            "federation.clients or federation.fraction, or choose a method that does not encrypt"
        )
    if method.noisy:
        noise(config)
    if config.protect.carry:
        check_carry(config)
    if config.privacy.inside_clip:
        check_inside(config)
    if method.server(config, None).shares:
        check_shares(config, length)


def make_parameters(
    config: Config, clients: Sequence[str], length: int, evaluators: Sequence[str], run: str = ""
) -> RunParameters:
    """The public parameters of a run of a resolved configuration; `run` names it, else its configuration does."""
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


def make_client(
    config: Config,
    parameters: RunParameters,
    name: str,
    learner: Learner,
    keys: FederationKeys,
    half: ClientHalf,
    ledger: Ledger,
    holdout: bool,
    identity: tuple[bytes, bytes],
) -> ClientContext:
    """One client of a run, by itself; `identity` is its private and public key."""
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


def assemble(
    config: Config,
    learners: Mapping[str, Learner],
    keys: FederationKeys,
    evaluator: str,
    pools: tuple[SecretPool, Pool] | None = None,
    ledger: Ledger | None = None,
    holdout: bool = False,
) -> Federation:
    """Both halves of a run of a resolved configuration. Each has a pool of its own; only the clients' knows keys.

    With `holdout` clients evaluate on data of their own, which the ledger then counts as a release.
    """
    clients_pool, server_pool = pools or (None, None)
    length = int(next(iter(learners.values())).initial().size)
    parameters = check(config, make_parameters(config, tuple(learners), length, (evaluator,)))
    lagging = parameters.sampled < len(parameters.clients)  # who is not drawn applies several rounds at once, later
    method, cache, deltas = (
        find_method(config.protect.method),
        SingleFlight(),
        SingleFlight(keep=parameters.history if lagging else 2),
    )
    half = method.client(ClientParts(config, parameters.run, clients_pool))
    ledger = Ledger(budget(config)) if ledger is None else ledger
    # A run that is resumed must have the same identities: they are part of what its clients agreed on.
    privates = {name: derive(keys.root.secret, "simulated identity", name) for name in learners}
    pairs = {name: (private, public_of(private)) for name, private in privates.items()}
    keys = replace(keys, roster={name: public for name, (_, public) in pairs.items()})
    alone = {
        name: make_client(config, parameters, name, learner, keys, half, ledger, holdout, pairs[name])
        for name, learner in learners.items()
    }
    clients = {name: replace(client, cache=cache, deltas=deltas, resident=True) for name, client in alone.items()}
    return Federation(parameters, method.server(config, server_pool), clients)


def draw(config: Config, purpose: Purpose, client: int) -> Draw:
    """Streams that can be replayed for a simulation, fresh secret ones otherwise."""
    if config.privacy.noise == "seeded":
        return lambda number, attempt: stream(config.seed, purpose, client, number, attempt)
    return lambda _number, _attempt: system()
