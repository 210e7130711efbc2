"""What ties a round's messages together, so that a server that lies is caught.

    view      H(configuration, roster, every client's weight, model, chain): what a client believes as a round begins
    chain     H(chain before, outcome of the round), void rounds too: what a client was told so far
    context   H(view, elected set) of one round and attempt, which every upload's pad is bound to
    tag       a linear MAC over what a client sends (crypto/mac.py); the server adds tags, clients check the sum

Clients that were told different things have different views, so their uploads never pass a check together. The set of
clients in a sum is bound by the pads: the check adds those of the clients that the aggregate names, each with the
nonce of its upload. Whoever holds the clients' common keys can make tags: this is against the server, not against a
server that a client helps.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from paraaegis.crypto import mac
from paraaegis.crypto.chunks import check_whole
from paraaegis.crypto.kdf import derive, tag
from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.shuffle import digest, secret_order
from paraaegis.errors import CryptoError, ForgedError, ProtocolError
from paraaegis.protocol.client_context import Silo
from paraaegis.protocol.messages import VERSION, Aggregate, Begin, Finish, Receiver, payload_blobs
from paraaegis.protocol.state import ClientState
from paraaegis.types import Grid, Mask

_TEST_ORDER = 1024  # values of the order that a client proves to draw like the others
MOST_SAMPLES = 2**40  # of one client: the total of a thousand still fits a 64-bit word


def view(silo: Silo, state: ClientState, model: bytes) -> bytes:
    """What this client believes before it trains, on a model of this digest: equal where clients may be mixed."""
    plan = silo.plan
    told = state.counts.tolist(), model, state.chain
    return _hash(VERSION, plan.run, plan.config, plan.clients, _roster(silo), *told)


def seen_in(silo: Silo, state: ClientState, number: int) -> str:
    """The view in round `number`, which this client may have been away from."""
    return state.view if state.number == number else view(silo, state, digest(state.weights)).hex()


def chained(state: ClientState, aggregate: Aggregate) -> str:
    """The chain after a round with this outcome. The tag stands for the sum; without keys nothing does."""
    void = aggregate.payload is None
    outcome = (aggregate.number, aggregate.attempt, void, aggregate.clients, aggregate.nonces, aggregate.tag)
    return _hash(state.chain, *outcome).hex()


def content_of(aggregate: Aggregate, elected: Mask | None) -> str:
    """A digest of a sum as it was received; refuses damaged bytes, which may be sent again."""
    outcome = aggregate.number, aggregate.attempt, aggregate.clients, aggregate.nonces, aggregate.tag
    whole = hashlib.sha256(msgspec.msgpack.encode(outcome))
    if elected is not None:
        whole.update(np.packbits(elected).tobytes())
    for kind, blob in () if aggregate.payload is None else payload_blobs(aggregate.payload):
        if kind == "ckks":
            check_whole(blob.view)
        whole.update(blob.view)
    return whole.hexdigest()


def sign(
    silo: Silo, state: ClientState, step: bytes, parts: Sequence[Grid], elected: Mask | None
) -> tuple[bytes, bytes]:
    """The nonce and tag of an upload of these whole numbers; both are empty for a method without keys."""
    if not silo.keyed:
        return b"", b""
    nonce, weight = mac.new_nonce(), silo.plan.weight(silo.learner.samples)
    value = mac.product(derive(step, "sum keys"), parts, weight)
    pads = derive(step, "sum pads")
    return nonce, mac.pack_tag(value + mac.pad(pads, silo.name, nonce, _context(state, elected)))


def verify(silo: Silo, state: ClientState, aggregate: Aggregate, parts: Sequence[Grid], elected: Mask | None) -> None:
    """Refuse a sum that is not that of the uploads of the clients which the aggregate names."""
    if not silo.keyed:
        return
    step = state.keys.at(aggregate.number, aggregate.attempt).step
    pads, context = derive(step, "sum pads"), _context(state, elected)
    try:
        total = mac.product(derive(step, "sum keys"), parts, weight_of(silo, state, aggregate))
    except CryptoError as error:
        raise ForgedError from error
    for client, nonce in zip(aggregate.clients, aggregate.nonces, strict=True):
        total += mac.pad(pads, client, nonce, context)
    if not hmac.compare_digest(mac.pack_tag(total), aggregate.tag):
        raise ForgedError


def check_names(silo: Silo, state: ClientState, aggregate: Aggregate) -> None:
    """Refuse a sum over too few clients, over others than the round's, or with an upload that it never made."""
    plan, names = silo.plan, aggregate.clients
    members = plan.members(aggregate.number)
    if len(names) < plan.quorum or names != tuple(name for name in members if name in names):
        raise ProtocolError(
            f"round {aggregate.number} should be a sum over {plan.quorum} or more of {members}, each once and in this "
            f"order, got {names}"
        )
    nonce, tag_bytes = (mac.NONCE_BYTES, mac.TAG_BYTES) if silo.keyed else (0, 0)
    if [*map(len, aggregate.nonces), len(aggregate.tag)] != [nonce] * len(names) + [tag_bytes]:
        raise ProtocolError(
            f"round {aggregate.number} should come with a nonce of {nonce} bytes for each of its {len(names)} clients "
            f"and a tag of {tag_bytes}, got {len(aggregate.nonces)} nonces and a tag of {len(aggregate.tag)}"
        )
    if silo.keyed and silo.name in names and state.number == aggregate.number:
        own = aggregate.nonces[names.index(silo.name)].hex()
        if (aggregate.attempt, own) != (state.attempt, state.nonce):
            raise ForgedError


def weight_of(silo: Silo, state: ClientState, aggregate: Aggregate) -> int:
    """The summed weight of the clients in an aggregate."""
    return int(sum(state.counts[silo.plan.clients.index(name)] for name in aggregate.clients))


def prove_count(silo: Silo) -> dict[str, bytes]:
    """For each fellow client a proof of this one's weight, which only the two of them can make."""
    if silo.plan.uniform or not silo.keyed:
        return {}
    weight = silo.plan.weight(silo.learner.samples)
    return {peer: _count_proof(silo, peer, silo.name, weight) for peer in silo.plan.clients if peer != silo.name}


def prove_once(silo: Silo, public: bytes, applied: int) -> dict[str, bytes]:
    """For each fellow client a proof that this one-time key is this client's, after `applied` rounds."""
    peers = [peer for peer in silo.plan.clients if peer != silo.name]
    return {peer: silo.prove_to(peer, "one-time key", silo.name, _once(public, applied)) for peer in peers}


def is_once(silo: Silo, peer: str, receiver: Receiver) -> bool:
    """Whether a fellow client made this one-time key after that many rounds."""
    expected = silo.prove_to(peer, "one-time key", peer, _once(receiver.once, receiver.applied))
    return hmac.compare_digest(receiver.proof, expected)


def _once(public: bytes, applied: int) -> bytes:
    return applied.to_bytes(8, "little") + public


def proof_of_keys(silo: Silo, keys: Ratchet) -> str:
    """What only a client with a run's keys can say: equal where keys, roster and the way to draw orders are equal."""
    test = secret_order(keys.step, _TEST_ORDER).tobytes()
    return tag(derive(keys.step, "joined"), test, _hash(_roster(silo))).hex()


def take_counts(silo: Silo, state: ClientState, message: Begin | Finish) -> ClientState:
    """The state with every client's weight, each proved by that client; they are fixed for a run."""
    plan, own = silo.plan, silo.plan.weight(silo.learner.samples)
    if state.counts.size and (began := state.counts[plan.clients.index(silo.name)]) != own:
        raise ProtocolError(f"{silo.name} began this run with {began} samples and has {own} now: begin a new run")
    if state.counts.size and not message.counts:
        return state
    counts = dict.fromkeys(plan.clients, 1) if plan.uniform else message.counts
    least = max(1, 0 if plan.uniform else plan.min_samples)
    if tuple(counts) != plan.clients:
        raise ProtocolError(
            f"sample counts of {', '.join(plan.clients)} were expected, got those of {', '.join(counts) or 'nobody'}"
        )
    if odd := [(name, count) for name, count in counts.items() if not least <= count <= MOST_SAMPLES]:
        raise ProtocolError(f"a sample count lies within {least} and {MOST_SAMPLES}, got {odd[0][1]} for {odd[0][0]}")
    known = np.array(list(counts.values()), dtype=np.int64)
    if counts[silo.name] != own or (state.counts.size and not np.array_equal(state.counts, known)):
        raise ProtocolError(f"sample counts are fixed for a run; {silo.name} has {own}, others were received")
    if not state.counts.size and not plan.uniform and silo.keyed:
        _check_proofs(silo, counts, message.proofs)
    return replace(state, counts=known)


def _check_proofs(silo: Silo, counts: Mapping[str, int], proofs: Mapping[str, bytes]) -> None:
    for peer, weight in counts.items():
        if peer == silo.name:
            continue
        if not hmac.compare_digest(proofs.get(peer, b""), _count_proof(silo, peer, peer, weight)):
            raise ForgedError


def _count_proof(silo: Silo, peer: str, owner: str, weight: int) -> bytes:
    return silo.prove_to(peer, "weight", owner, weight.to_bytes(8, "little"))


def _context(state: ClientState, elected: Mask | None) -> bytes:
    return _hash(state.view, b"" if elected is None else digest(np.packbits(elected)))


def _roster(silo: Silo) -> list[bytes]:
    return [silo.roster.get(name, b"") for name in silo.plan.clients]


def _hash(*parts: Any) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
