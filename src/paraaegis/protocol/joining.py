"""How a client joins a run and returns to it: the roll call, the keys, a peer's model."""

from __future__ import annotations

import hmac
from dataclasses import replace

import msgspec
import numpy as np

from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.sealed_box import new_pair, public_of
from paraaegis.errors import ForgedError, ProtocolError
from paraaegis.privacy.ledger import SAMPLES
from paraaegis.protocol.binding import proof_of_keys, prove_count, prove_one_time_key, verify_one_time_key
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Hello, OneTimeKey, Rescue, RollCall, Snapshot, SnapshotRequest, expect
from paraaegis.protocol.state import ClientState
from paraaegis.types import Blob


class SnapshotContent(msgspec.Struct, frozen=True, array_like=True):
    """What a peer seals in a Snapshot for a client that fell far behind."""

    chains: str
    line: bytes
    root: int
    joined: str
    keys: str
    weights: bytes
    told: str = ""


def hello(client: ClientContext, state: ClientState, message: RollCall) -> tuple[ClientState, Hello]:
    """Answer a roll call: who this client is and which keys it has. The state gets keys and a fresh one-time key."""
    parameters, round_id = client.parameters, client.parameters.round_id(0)
    expect(message, RollCall, round_id)
    samples, least = client.learner.samples, max(1, parameters.min_samples)
    if samples < least:
        few = f"too few samples: this federation's noise assumes at least {least}" if samples else "no samples"
        raise ProtocolError(f"{client.name} has {few}")
    state = _joined(client, state, message)
    if not parameters.uniform:
        client.ledger.record(client.releases(0, 0, [SAMPLES]))
    once, public = new_pair()  # erased with the next Begin or Finish
    return replace(state, once=once), Hello(
        round_id=round_id,
        config=parameters.config,
        model=client.learner.facts.model,
        weight=parameters.weight(samples),
        joined=state.joined,
        root=state.root,
        once=OneTimeKey(public, prove_one_time_key(client, public, state.applied)),
        proofs=prove_count(client),
        applied=state.applied,
        holds=state.number if state.uploaded else 0,
    )


def _joined(client: ClientContext, state: ClientState, message: RollCall) -> ClientState:
    """The state with keys for this run, if it has none or has to move on to later ones before the first round.

    It moves on only to keys that another client already has: a server alone cannot make it erase its own. If its own
    keys are later than the run's, it says so, and the others move on or give it theirs with a model.
    """
    root, began = client.root, state.number or state.applied
    moves = message.joined and message.root > state.root
    if state.held is not None and (began or (state.line == root.line and not moves)):
        return state
    if message.joined and message.root > root.index:
        root = root.forward(message.root)
    keys = client.first_keys(root)
    joined = proof_of_keys(client, keys)
    if message.joined and message.root == root.index and not hmac.compare_digest(joined, message.joined):
        raise ProtocolError(
            f"{client.name} has different keys from the client that joined run {message.root} of these keys; all "
            "clients need the same keys, from the same lead"
        )
    client.erase_root(root)
    return replace(state, held=keys, line=root.line, root=root.index, joined=joined)


def snapshot(client: ClientContext, state: ClientState, message: SnapshotRequest) -> Snapshot:
    """The model and the keys, sealed to clients that fell far behind."""
    round_id = client.parameters.round_id(message.round_id.number, message.round_id.attempt)
    expect(message, SnapshotRequest, round_id)
    if wrong := sorted({*message.receivers} - {*client.parameters.clients} | {*message.receivers} & {client.name}):
        raise ProtocolError(f"a model can only be sealed to other clients of the run, got {wrong[0]!r}")
    keys, model = state.keys.encoded(), state.weights.tobytes()
    content = msgspec.msgpack.encode(
        SnapshotContent(state.chains, state.line, state.root, state.joined, keys, model, state.told)
    )
    sealed = {
        name: Blob(client.seal_to(name, content, "model", state.applied, once=receiver.once))
        for name, receiver in message.receivers.items()
        # A client that is further ahead would get back keys that it has erased.
        if receiver.applied <= state.applied and verify_one_time_key(client, name, receiver)
    }
    return Snapshot(round_id=round_id, applied=state.applied, sealed=sealed)


def apply_rescue(client: ClientContext, state: ClientState, rescue: Rescue | None) -> ClientState:
    """The state with a peer's model and keys, if the peer is ahead. The last upload is assumed to be counted."""
    if rescue is None or (state.applied and rescue.applied <= state.applied):
        return state
    if not state.once or public_of(state.once) != rescue.once:
        raise ProtocolError(
            f"this model is sealed to a one-time key that {client.name} no longer has; send it a new roll call"
        )
    opened = client.open_from(rescue.sender, bytes(rescue.sealed.view), "model", rescue.applied, once=state.once)
    try:
        given = msgspec.msgpack.decode(opened, type=SnapshotContent)
        weights = np.frombuffer(given.weights, dtype=np.float32)
        keys = Ratchet.decoded(given.keys)
    except (msgspec.DecodeError, ValueError) as error:
        raise ForgedError from error
    if weights.size != client.parameters.length:
        raise ForgedError
    if given.chains[: len(state.chains)] != state.chains:  # not the past that this client was told
        raise ForgedError
    _erase_given_root(client, given)
    residual = state.residual
    if client.half.carries and state.phase != "idle" and state.number <= rescue.applied:
        residual = state.next_residual if state.uploaded else state.update
    return clear_finished_round(
        replace(
            state,
            weights=weights,
            chains=given.chains,
            told=given.told,
            line=given.line,
            root=given.root,
            joined=given.joined,
            held=keys,
            applied=rescue.applied,
            pinned="",
            residual=residual,
        )
    )


def _erase_given_root(client: ClientContext, given: SnapshotContent) -> None:
    """Erase the root of a run whose keys were received with a peer's model, since they derive from it."""
    if given.line != client.root.line or given.root < client.root.index:
        return
    root = client.root.forward(given.root)
    if not hmac.compare_digest(proof_of_keys(client, client.first_keys(root)), given.joined):
        raise ForgedError
    client.erase_root(root)


def clear_finished_round(state: ClientState) -> ClientState:
    """The state without the data of the round that it was in, once that round has been applied."""
    if state.applied < state.number:
        return state
    return replace(state, phase="idle", update=None, next_residual=None, elected=None, upload_context=None, share=None)
