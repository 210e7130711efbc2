"""The cost of protection relative to training: vote and noise alone, and a client's whole round on ResNet-18."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from paraaegis.config import Config, make_config
from paraaegis.crypto.mac import add_tags
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.shuffle import digest, secret_order
from paraaegis.crypto.streams import system
from paraaegis.fixed_point import slices
from paraaegis.parallel import parallel_map
from paraaegis.planning.measure import NullLearner
from paraaegis.privacy.gaussian import Gaussian, Noise
from paraaegis.protocol import round as algorithm
from paraaegis.protocol.binding import sign, view
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Aggregate, Survivors
from paraaegis.protocol.partition import places_of
from paraaegis.protocol.protect import Protected
from paraaegis.protocol.shares import row_of, seal_shares, sum_shares
from paraaegis.protocol.state import ClientState
from paraaegis.protocol.sums import Sum
from paraaegis.protocol.voting import Tally, cast, select, unpack_positions
from paraaegis.runs.assemble import assemble, make_keys
from paraaegis.runs.check import resolve
from paraaegis.types import Mask, Vector

CLIENTS = 10
RATIOS = (0.01, 0.1, 1.0)
EPOCHS, BATCHES = 3, 30  # the local training that overheads are relative to
RESNET18 = 11_191_242


class VoteBench(msgspec.Struct, kw_only=True):
    """Seconds per phase for one client, and for the server with ten ballots; bytes per ballot."""

    length: int
    ratio: float
    client: dict[str, float]
    server: dict[str, float]
    bytes_ballot: int


class RoundBench(msgspec.Struct, kw_only=True):
    """A client's own work as a fraction of its training, by ratio; a round's order is drawn during training."""

    length: int
    train_seconds: float
    overhead: dict[str, float]
    client_seconds: dict[str, dict[str, float]]
    combine_seconds: dict[str, float]
    order_seconds: float


def _best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several repeats: other work on the machine can only add time."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def bench_vote(length: int, ratio: float, repeats: int = 3) -> VoteBench:
    """Time one client's order, selection, ballot and noise, and the tally and election of ten ballots."""
    update = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)
    k, rng = round(ratio * length), np.random.default_rng(1)
    order = secret_order(bytes(32), length)
    selected = select("max", update, k, rng)
    places = places_of(order)
    ballot = cast(selected, places)
    gaussian = Gaussian(1.0, (0.07,))
    client = {
        "order": _best(lambda: secret_order(bytes(32), length), repeats),
        "places": _best(lambda: places_of(order), repeats),
        "select": _best(lambda: select("max", update, k, rng), repeats),
        "ballot": _best(lambda: cast(selected, places), repeats),
        "noise": _best(
            lambda: parallel_map(gaussian.perturb(update[k:], 1, Noise(system())), slices(length - k)), repeats
        ),
    }

    def tally() -> Tally:
        counted = Tally(k, length)
        for _ in range(CLIENTS):
            counted.add(ballot)
        return counted

    counted = tally()
    server = {"tally": _best(tally, repeats), "elect": _best(counted.elect, repeats)}
    return VoteBench(length=length, ratio=ratio, client=client, server=server, bytes_ballot=len(ballot))


def bench_round(
    train_seconds: float,
    length: int = RESNET18,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    settings: Sequence[str] = (),
) -> RoundBench:
    """Time one client's vote, protect and reveal, and the server's combine of ten clients, at each ratio.

    `settings` are those of a configuration, such as `protect.cipher=rlwe`, which adds what a client does for others'
    shares.
    """
    update = np.random.default_rng(0).normal(0, 0.01, length).astype(np.float32)
    bench = RoundBench(
        length=length,
        train_seconds=train_seconds,
        overhead={},
        client_seconds={},
        combine_seconds={},
        order_seconds=_best(lambda: places_of(secret_order(bytes(32), length)), repeats),
    )
    with SecretPool() as secrets, Pool() as pool:
        for ratio in RATIOS:
            progress(f"r = {ratio:g}")
            clients, new_sum = _clients(ratio, length, (secrets, pool), settings)
            runs = [_one_round(clients, new_sum, update) for _ in range(repeats)]
            phases = {phase: min(run[phase] for run in runs) for phase in runs[0]}
            bench.combine_seconds[str(ratio)] = phases.pop("combine")
            bench.client_seconds[str(ratio)] = phases
            bench.overhead[str(ratio)] = sum(phases.values()) / train_seconds
    return bench


def _clients(
    ratio: float, length: int, pools: tuple[SecretPool, Pool], settings: Sequence[str]
) -> tuple[dict[str, ClientContext], Callable[[], Sum]]:
    """Ten clients, with secret noise as in deployment."""
    fixed = [f"protect.ratio={ratio}", "privacy.noise=secret", f"federation.clients={CLIENTS}"]
    config: Config = resolve(make_config({}, [*settings, *fixed]), [NullLearner.samples])
    learners = {name: NullLearner(length) for name in config.names}
    federation = assemble(config, learners, make_keys(config), "client-0", pools)
    parameters = federation.parameters
    return federation.clients, lambda: federation.server.new_sum(parameters.round_id(1), parameters.k(1))


def _one_round(clients: Mapping[str, ClientContext], new_sum: Callable[[], Sum], update: Vector) -> dict[str, float]:
    """Seconds of one client's vote, protect and reveal, with only the order computed beforehand, and of combine."""
    spent: dict[str, float] = {}
    client, parameters = clients["client-0"], clients["client-0"].parameters
    keys = client.first_keys(client.root)
    state = ClientState(weights=client.learner.initial(), counts=np.full(CLIENTS, NullLearner.samples), held=keys)
    client.cache.clear()
    client.places(keys.step)

    def timed(phase: str, start: float) -> float:
        now = time.perf_counter()
        spent[phase] = now - start
        return now

    start = time.perf_counter()
    votes = algorithm.vote(client, keys, update)
    client.fingerprint(keys.step, view(client, state, digest(state.weights)))
    start = timed("vote", start)
    elected = unpack_positions(votes, parameters.k(1), parameters.length)
    start = time.perf_counter()
    protected = _protected(client, state, update, elected)
    sign(client, state, keys.step, protected.parts, elected)
    seal_shares(client, state, protected.shares)
    start = timed("protect", start)
    # Under masks, ten times the same upload would not open: its errors are not those of ten clients.
    uploads = dict.fromkeys(clients, protected)
    if protected.shares:
        uploads |= {
            name: _protected(each, state, update, elected) for name, each in clients.items() if name != client.name
        }
    total, start = new_sum(), time.perf_counter()
    for upload in uploads.values():
        total.add(upload.payload)
    timed("combine", start)
    if protected.shares:
        spent["open"] = _open(clients, replace(state, number=1), uploads, total)
    start = time.perf_counter()
    payload = total.close()
    spent["combine"] += time.perf_counter() - start
    signed = [sign(clients[name], state, keys.step, upload.parts, elected) for name, upload in uploads.items()]
    nonces, tags = zip(*signed, strict=True)
    aggregate = Aggregate(1, 0, parameters.clients, None, payload, nonces, add_tags(tags))
    start = time.perf_counter()
    client.learner.apply(state.weights, algorithm.reveal(client, state, aggregate, elected))
    timed("reveal", start)
    return spent


def _protected(client: ClientContext, state: ClientState, update: Vector, elected: Mask) -> Protected:
    return algorithm.protect(
        client, algorithm.prepare(client, state), update, client.partition(state.keys.step, elected)
    )


def _open(
    clients: Mapping[str, ClientContext], state: ClientState, uploads: Mapping[str, Protected], total: Sum
) -> float:
    """Open a sum with the clients' sums of shares; returns the seconds that one client needs to make its own."""
    client, step = clients["client-0"], state.keys.step
    sealed = {
        name: seal_shares(each, state, {client.name: uploads[name].shares[client.name]})[client.name]
        for name, each in clients.items()
        if name != client.name
    }
    message = Survivors(round_id=client.parameters.round_id(1), clients=tuple(clients), shares=sealed)
    start = time.perf_counter()
    sum_shares(client, state, uploads[client.name].shares[client.name], message)
    seconds = time.perf_counter() - start
    rows = {
        index: row_of(client.half, step, index, [upload.shares[name] for upload in uploads.values()])
        for index, name in enumerate(clients)
    }
    total.open(rows, client.parameters.quorum, CLIENTS)
    return seconds
