"""Golden records: what every method does to the last bit, so that code can be moved without changing it.

python tests/support/golden.py            # shows what differs from golden.json
python tests/support/golden.py --write    # writes it anew, after a change that is meant
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hand import Hand, Served, honest
from paraaegis.engines.local import LocalTransport
from paraaegis.methods import METHODS
from paraaegis.protocol.messages import Elected, Upload, unpack
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import RoundServer
from paraaegis.protocol.state import ClientState, ServerState, decode_state, encode_state
from toy import configure, federation_of, learners_of

RECORDS = Path(__file__).with_name("golden.json")
CLIENTS, ROUNDS, LENGTH = 6, 4, 500
SAMPLES = {"equal": [20] * CLIENTS, "unequal": [20, 22, 25, 30, 41, 60]}
BASE = ("privacy.epsilon=50.0", "privacy.clip=1.0", "privacy.calibration=paper", "federation.quorum=5",
        "federation.min_samples=20")  # fmt: skip
LEVER = {
    "paraaegis-static": ("protect.ratio=0.2",),
    "paraaegis-dynamic": ("protect.ratio=0.2", "protect.decay=0.8"),
    "paraaegis-feedback": ("protect.ratio=0.2",),
}


def updates() -> np.ndarray:
    """Multiples of 2^-10, so that sums of squares are exact and no record depends on the kind of CPU."""
    drawn = np.random.default_rng(0).normal(0, 0.05, (CLIENTS, ROUNDS, LENGTH))
    return (np.round(drawn * 1024) / 1024).astype(np.float32)


def settings(method: str, *more: str) -> tuple[str, ...]:
    return (f"protect.method={method}", *BASE, *LEVER.get(method, ()), *more)


def whole(method: str, split: str, *more: str) -> dict[str, Any]:
    """A run in one process."""
    learners = learners_of(updates(), SAMPLES[split])
    config = configure(f"federation.clients={CLIENTS}", f"federation.rounds={ROUNDS}", *settings(method, *more))
    federation, lines = federation_of(config, learners), list[RoundRecord]()
    engine = LocalTransport(federation.clients, workers=2)
    engine.run(RoundServer(federation.parameters, federation.server, ServerState()), lines.append, lambda _: None)
    return record(engine.states, lines, federation.clients["client-0"].ledger.releases)


def interrupted(method: str) -> dict[str, Any]:
    """The same, stopped after two rounds; everything goes through bytes and is taken up by fresh objects."""
    learners = learners_of(updates(), SAMPLES["unequal"])
    config = configure(f"federation.clients={CLIENTS}", f"federation.rounds={ROUNDS}", *settings(method))
    federation, lines, kept = federation_of(config, learners), list[RoundRecord](), list[Any]()
    engine = LocalTransport(federation.clients, workers=1)

    def stop(state: ServerState) -> None:
        if state.number == 2:
            kept.append((encode_state(state), state.history, dict(engine.states)))
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        engine.run(RoundServer(federation.parameters, federation.server, ServerState()), lines.append, stop)
    data, history, states = kept[0]
    server = decode_state(data)
    server.history = history
    back = {name: ClientState.from_arrays(state.to_arrays()) for name, state in states.items()}
    engine = LocalTransport(federation.clients, back, workers=1)
    engine.run(RoundServer(federation.parameters, federation.server, server), lines.append, lambda _: None)
    return record(engine.states, lines, federation.clients["client-0"].ledger.releases)


def dropping(method: str) -> dict[str, Any]:
    """A client's upload of round 2 is lost on its way."""
    hand = Hand(updates(), *settings(method), rounds=ROUNDS, samples=SAMPLES["unequal"])
    hand.silos = dict(hand.federation.clients)  # whose noise can be drawn again
    hand.states = {name: hand.joined(name) for name in hand.silos}

    def lose(client: str, request: Any, answer: Any) -> Any:
        frames = honest(client, request, answer)
        reply = unpack(frames)
        last = isinstance(reply, Upload) and (isinstance(request, Elected) or not hand.federation.server.votes)
        return None if client == "client-3" and last and reply.round_id.number == 2 else frames

    served = Served(hand, lose).run()
    return record(hand.states, served.lines, hand.silos["client-0"].ledger.releases)


def record(states: Mapping[str, ClientState], lines: list[RoundRecord], releases: list[Any]) -> dict[str, Any]:
    """Digests of models and residuals, and what the lines and the ledger say."""
    models = {name: digest(state.weights.tobytes()) for name, state in states.items()}
    residuals = {n: digest(s.residual.tobytes()) for n, s in states.items() if s.residual is not None}
    told = [
        {
            "metrics": line.metrics, "clients": line.clients, "dropped": sorted(line.dropped), "ratio": line.ratio,
            "elected": line.elected, "agreement": line.agreement, "up": sizes(line.bytes_up),
            "down": sizes(line.bytes_down),
        }
        for line in lines
    ]  # fmt: skip
    spent = sorted(msgspec.json.encode({k: v for k, v in msgspec.to_builtins(one).items() if k != "run"}).decode()
                   for one in releases)  # fmt: skip
    return {
        "model": sorted(set(models.values())),
        "residuals": digest(json.dumps(residuals, sort_keys=True).encode()),
        "lines": digest(json.dumps(told, sort_keys=True).encode()),
        "clients": [len(line.clients) for line in lines],
        "ledger": digest("\n".join(spent).encode()),
    }


def sizes(counted: Mapping[str, int]) -> dict[str, int]:
    """Bytes by kind; those of ciphertexts differ from run to run, those of headers with the lengths of names."""
    return {kind: size for kind, size in sorted(counted.items()) if kind not in ("ckks", "header")}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def cases() -> dict[str, Any]:
    found = {}
    for method in METHODS:
        for split in SAMPLES:
            found[f"{method}, {split}"] = lambda m=method, s=split: whole(m, s)
        found[f"{method}, resumed"] = lambda m=method: interrupted(m)
        found[f"{method}, a dropout"] = lambda m=method: dropping(m)
        if method != "lwe-secagg":  # which needs more clients than half
            found[f"{method}, sampled"] = lambda m=method: whole(
                m, "unequal", "federation.fraction=0.5", "federation.quorum=3", "federation.rounds=4"
            )
    return found


def main() -> None:
    now = {name: play() for name, play in cases().items()}
    if "--write" in sys.argv:
        RECORDS.write_text(json.dumps(now, indent=1) + "\n")
        return
    then = json.loads(RECORDS.read_text())
    for name, kept in then.items():
        for key in kept:
            if now[name][key] != kept[key]:
                sys.stdout.write(f"{name}: {key} was {kept[key]}, now {now[name][key]}\n")


if __name__ == "__main__":
    main()
