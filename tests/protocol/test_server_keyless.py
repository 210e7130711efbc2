"""The server holds no key and no model."""

import types

import numpy as np
import pytest

from five_clients import METHODS, STATIC, hand
from hand import Served, honest, served
from paraaegis.crypto.ckks import Secret
from paraaegis.crypto.pool import Pool, SecretPool
from paraaegis.crypto.ratchet import Ratchet
from paraaegis.engines.local import LocalTransport
from paraaegis.protocol.messages import pack, unpack
from paraaegis.protocol.round_server import Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ServerState
from paraaegis.runs.assemble import assemble
from paraaegis.runs.check import resolve
from paraaegis.types import Blob
from toy import KEYS, configure, learners_of


def reachable(root):
    """Every object that can be reached through attributes, slots, items and closures; not through modules and types."""
    found, open_ = {}, [root]
    while open_:
        item = open_.pop()
        if id(item) in found or isinstance(item, type | types.ModuleType):
            continue
        found[id(item)] = item
        open_ += inner(item)
    return list(found.values())


def inner(item):
    if isinstance(item, str | bytes | bytearray | int | float | None):
        return
    if isinstance(item, dict):
        yield from (*item.keys(), *item.values())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from item
    elif isinstance(item, types.FunctionType):
        yield from (*(cell.cell_contents for cell in item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)
    elif isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, memoryview):
        yield item.obj
    else:
        yield getattr(item, "__dict__", None)
        yield getattr(item, "base", None)  # of an array
        for kind in type(item).__mro__:
            slots = getattr(kind, "__slots__", ())
            for name in [slots] if isinstance(slots, str) else slots:
                yield getattr(item, name, None)
        for name in getattr(type(item), "__struct_fields__", ()):
            yield getattr(item, name)


def holding(root, **needles):
    """Which of these bytes lie somewhere within what can be reached."""
    found = set()
    for item in reachable(root):
        try:
            data = memoryview(item).tobytes()
        except TypeError:
            continue
        found |= {name for name, needle in needles.items() if needle in data}
    return found


def secrets_in(root):
    """What of the clients' secrets can be reached: their bytes, and key objects."""
    objects = {"Secret"} if any(isinstance(item, Secret) for item in reachable(root)) else set()
    objects |= {"Ratchet"} if any(isinstance(item, Ratchet) for item in reachable(root)) else set()
    return objects | holding(root, secret=KEYS.root.secret)


def test_the_walk_finds_keys_where_they_are():
    playing = served(hand(*STATIC)).hand
    assert secrets_in(playing.silos["client-0"]) >= {"secret", "Secret"}
    assert secrets_in(playing.states) == {"Ratchet"}
    assert secrets_in([KEYS.__dict__]) == {"secret"}
    closure = (lambda key: lambda: key)(KEYS)
    assert secrets_in({"deep": (closure,)}) == {"secret"}
    assert secrets_in(Blob(b"before" + KEYS.root.secret + b"after")) == {"secret"}
    assert secrets_in(np.frombuffer(KEYS.root.secret, dtype=np.uint8)[::2]) == {"secret"}


@pytest.mark.parametrize("settings", [*METHODS.values(), ("protect.method=paraaegis-feedback",)])
def test_the_servers_object_graph_holds_no_key(settings):
    done = served(hand(*settings))
    assert len(done.lines) == 3
    assert any(isinstance(item, ServerState) for item in reachable(done.round_server))
    assert secrets_in(done.round_server) == set()


def test_the_server_in_the_middle_of_a_round_holds_no_key():
    """Its generator's frame too: sums, tally and closures while uploads come in."""
    playing = hand(*STATIC)
    done = Served(playing, honest)
    steps = serve(done.round_server)
    walked = []

    def carry(exchange):
        for client, frames in exchange.messages.items():
            generator = steps
            while generator is not None:
                walked.append(secrets_in(generator.gi_frame.f_locals))
                generator = generator.gi_yieldfrom
            yield Reply(client, pack(playing.send(client, unpack(frames))))

    drive(steps, carry, done.lines.append, lambda _: None)
    assert len(walked) > 50
    assert set().union(*walked) == set()


def test_with_worker_processes_the_server_reaches_none_that_knows_a_key():
    updates = np.random.default_rng(0).normal(size=(2, 3 * 65536 + 1)).astype(np.float32)
    learners = learners_of(updates)
    config = resolve(configure("protect.method=ckks-fedavg", "federation.clients=2", "federation.rounds=1"), [10])
    with SecretPool(2) as secrets, Pool(2) as keyless:
        federation = assemble(config, learners, KEYS, "client-0", (secrets, keyless))
        round_server = RoundServer(federation.parameters, federation.server, ServerState())
        total = round_server.half.new_sum(federation.parameters.round_id(1), 0)
        LocalTransport(federation.clients).run(round_server, lambda _: None, lambda _: None)
        for root in (round_server, total):
            assert secrets_in(root) == set()
            assert not any(isinstance(item, SecretPool) for item in reachable(root))
        assert any(item is keyless for item in reachable(total))


def test_the_server_holds_no_model():
    done = served(hand(*STATIC))
    model = done.model().tobytes()
    assert holding(done.hand.states, model=model) == {"model"}
    assert holding(done.round_server, model=model) == set()
