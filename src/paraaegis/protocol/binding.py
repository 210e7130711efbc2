"""Binds a round's messages to each other, so that a lying server is caught.

    view      H(configuration, roster, every client's weight, model, chain, what a learner was told in addition): what
              a client believes when a round begins
    chain     H(previous chain, outcome of the round), void rounds included: everything a client has been told so far
    context   H(view, elected set) of one round and attempt; the pad of every upload is bound to it
    tag       a linear MAC over what a client sends (crypto/mac.py); the server adds tags, clients check the sum

Clients that were told different things have different views, so a sum of their uploads never passes the check. The pads
bind the set of clients in a sum: the check adds the pads of the clients that the aggregate names, each with the nonce
of its upload. Anyone with the clients' shared keys can make tags, so this protects against the server, but not against
a server that a client helps.
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
from paraaegis.plural import plural
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import VERSION, Aggregate, Begin, Finish, Receiver, payload_blobs
from paraaegis.protocol.state import ClientState
from paraaegis.types import FixedPoint, Mask

_TEST_ORDER = 1024  # length of a test order, which shows that all clients draw orders in the same way
MOST_SAMPLES = 2**40  # per client: the total of a thousand clients still fits in a 64-bit word


def view(client: ClientContext, state: ClientState, model: bytes) -> bytes:
    """What this client believes before it trains on the model with this digest; clients in one sum must agree on it."""
    parameters = client.parameters
    received = [state.counts.tolist(), model, state.chain, *([state.told] if state.told else [])]
    return _hash(VERSION, parameters.run, parameters.config, parameters.clients, _roster(client), *received)


def view_in_round(client: ClientContext, state: ClientState, number: int) -> str:
    """The view in round `number`, even if this client took no part in it."""
    return state.view if state.number == number else view(client, state, digest(state.weights)).hex()


def chain_after(state: ClientState, aggregate: Aggregate) -> str:
    """The chain after a round with this outcome. It covers the sum by its tag; without keys there is no tag."""
    void = aggregate.payload is None
    outcome = (aggregate.number, aggregate.attempt, void, aggregate.clients, aggregate.nonces, aggregate.tag)
    return _hash(state.chain, *outcome).hex()


def digest_of_sum(aggregate: Aggregate, elected: Mask | None) -> str:
    """The digest of a sum as it was received; refuses damaged bytes, which the server may send again."""
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
    client: ClientContext, state: ClientState, step: bytes, parts: Sequence[FixedPoint], elected: Mask | None
) -> tuple[bytes, bytes]:
    """The nonce and tag of an upload of these integers; both are empty for a method without keys."""
    if not client.keyed:
        return b"", b""
    nonce, weight = mac.new_nonce(), client.parameters.weight(client.learner.samples)
    value = mac.product(derive(step, "sum keys"), parts, weight)
    pads = derive(step, "sum pads")
    return nonce, mac.pack_tag(value + mac.pad(pads, client.name, nonce, _context(state, elected)))


def verify(
    client: ClientContext, state: ClientState, aggregate: Aggregate, parts: Sequence[FixedPoint], elected: Mask | None
) -> None:
    """Refuse a sum that is not the sum of the uploads of the clients that the aggregate names."""
    if not client.keyed:
        return
    step = state.keys.at(aggregate.number, aggregate.attempt).step
    pads, context = derive(step, "sum pads"), _context(state, elected)
    try:
        total = mac.product(derive(step, "sum keys"), parts, weight_of(client, state, aggregate))
    except CryptoError as error:
        raise ForgedError from error
    for name, nonce in zip(aggregate.clients, aggregate.nonces, strict=True):
        total += mac.pad(pads, name, nonce, context)
    if not hmac.compare_digest(mac.pack_tag(total), aggregate.tag):
        raise ForgedError


def check_members(client: ClientContext, state: ClientState, aggregate: Aggregate) -> None:
    """Refuse a sum over too few clients, over clients not in the round, or with an upload this client never made."""
    parameters, names = client.parameters, aggregate.clients
    members = parameters.members(aggregate.number)
    if len(names) < parameters.quorum or names != tuple(name for name in members if name in names):
        raise ProtocolError(
            f"round {aggregate.number} should be a sum over {parameters.quorum} or more of {members}, each once and in "
            f"this order, got {names}"
        )
    nonce, tag_bytes = (mac.NONCE_BYTES, mac.TAG_BYTES) if client.keyed else (0, 0)
    if [*map(len, aggregate.nonces), len(aggregate.tag)] != [nonce] * len(names) + [tag_bytes]:
        raise ProtocolError(
            f"round {aggregate.number} should have a nonce of {nonce} bytes for each of its {len(names)} clients and a "
            f"tag of {tag_bytes} bytes, got {len(aggregate.nonces)} nonces and a tag of {len(aggregate.tag)} bytes"
        )
    if client.keyed and client.name in names and state.number == aggregate.number:
        own = aggregate.nonces[names.index(client.name)].hex()
        if (aggregate.attempt, own) != (state.attempt, state.nonce):
            raise ForgedError


def weight_of(client: ClientContext, state: ClientState, aggregate: Aggregate) -> int:
    """The total weight of the clients in an aggregate."""
    return int(sum(state.counts[client.parameters.clients.index(name)] for name in aggregate.clients))


def prove_count(client: ClientContext) -> dict[str, bytes]:
    """For each fellow client, a proof of this client's weight that only the two of them can compute."""
    if client.parameters.uniform or not client.keyed:
        return {}
    weight = client.parameters.weight(client.learner.samples)
    return {
        peer: _count_proof(client, peer, client.name, weight)
        for peer in client.parameters.clients
        if peer != client.name
    }


def prove_one_time_key(client: ClientContext, public: bytes, applied: int) -> dict[str, bytes]:
    """For each fellow client, a proof that this client made this one-time key after `applied` rounds."""
    peers = [peer for peer in client.parameters.clients if peer != client.name]
    return {
        peer: client.prove_to(peer, "one-time key", client.name, _one_time_key_content(public, applied))
        for peer in peers
    }


def verify_one_time_key(client: ClientContext, peer: str, receiver: Receiver) -> bool:
    """Whether a fellow client made this one-time key after as many rounds as it says."""
    expected = client.prove_to(peer, "one-time key", peer, _one_time_key_content(receiver.once, receiver.applied))
    return hmac.compare_digest(receiver.proof, expected)


def _one_time_key_content(public: bytes, applied: int) -> bytes:
    return applied.to_bytes(8, "little") + public


def proof_of_keys(client: ClientContext, keys: Ratchet) -> str:
    """A proof of having a run's keys: equal at all clients with the same keys, roster and way of drawing orders."""
    test = secret_order(keys.step, _TEST_ORDER).tobytes()
    return tag(derive(keys.step, "joined"), test, _hash(_roster(client))).hex()


def take_counts(client: ClientContext, state: ClientState, message: Begin | Finish) -> ClientState:
    """The state with every client's weight, each proved by that client. Weights are fixed for a run."""
    parameters, own = client.parameters, client.parameters.weight(client.learner.samples)
    if state.counts.size and (initial := state.counts[parameters.clients.index(client.name)]) != own:
        raise ProtocolError(
            f"{client.name} had {plural(initial, 'sample')} when this run began and has {own} now; start a new run"
        )
    if state.counts.size and not message.counts:
        return state
    counts = dict.fromkeys(parameters.clients, 1) if parameters.uniform else message.counts
    least = max(1, 0 if parameters.uniform else parameters.min_samples)
    if tuple(counts) != parameters.clients:
        raise ProtocolError(
            f"expected sample counts of {', '.join(parameters.clients)}, got those of {', '.join(counts) or 'nobody'}"
        )
    if wrong := [(name, count) for name, count in counts.items() if not least <= count <= MOST_SAMPLES]:
        name, count = wrong[0]
        raise ProtocolError(f"a sample count must be between {least} and {MOST_SAMPLES}, got {count} for {name}")
    weights = np.array(list(counts.values()), dtype=np.int64)
    if counts[client.name] != own or (state.counts.size and not np.array_equal(state.counts, weights)):
        raise ProtocolError(
            f"sample counts are fixed for a run; {client.name} has {own}, but different ones were received"
        )
    if not state.counts.size and not parameters.uniform and client.keyed:
        _check_proofs(client, counts, message.proofs)
    return replace(state, counts=weights)


def _check_proofs(client: ClientContext, counts: Mapping[str, int], proofs: Mapping[str, bytes]) -> None:
    for peer, weight in counts.items():
        if peer == client.name:
            continue
        if not hmac.compare_digest(proofs.get(peer, b""), _count_proof(client, peer, peer, weight)):
            raise ForgedError


def _count_proof(client: ClientContext, peer: str, owner: str, weight: int) -> bytes:
    return client.prove_to(peer, "weight", owner, weight.to_bytes(8, "little"))


def _context(state: ClientState, elected: Mask | None) -> bytes:
    return _hash(state.view, b"" if elected is None else digest(np.packbits(elected)))


def _roster(client: ClientContext) -> list[bytes]:
    return [client.roster.get(name, b"") for name in client.parameters.clients]


def _hash(*parts: Any) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
