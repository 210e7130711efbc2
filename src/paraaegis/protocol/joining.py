"""How a client joins a run and is brought back to it: the roll call, the keys, a peer's model."""

from __future__ import annotations

import hmac
from dataclasses import replace

import msgspec
import numpy as np

from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.sealed_box import new_pair, public_of
from paraaegis.crypto.shuffle import digest
from paraaegis.errors import ForgedError, ProtocolError, UpdateError
from paraaegis.privacy.ledger import SAMPLES
from paraaegis.protocol.binding import is_once, proof_of_keys, prove_count, prove_once
from paraaegis.protocol.client_context import Silo
from paraaegis.protocol.messages import Hello, OneTimeKey, Peek, Rescue, RollCall, Snapshot, expect
from paraaegis.protocol.round import checked
from paraaegis.protocol.state import ClientState
from paraaegis.types import Blob


class Given(msgspec.Struct, frozen=True, array_like=True):
    """What a client that fell far behind is given by a peer."""

    chains: str
    line: bytes
    root: int
    joined: str
    keys: str
    weights: bytes


def hello(silo: Silo, state: ClientState, message: RollCall) -> tuple[ClientState, Hello]:
    """Say who this client is and which keys it has; the state with keys and a fresh one-time key."""
    plan, where = silo.plan, silo.plan.where(0)
    expect(message, RollCall, where)
    samples, least = silo.learner.samples, max(1, plan.min_samples)
    if samples < least:
        few = f"fewer samples than the {least} that this federation's noise assumes" if samples else "no samples"
        raise ProtocolError(f"{silo.name} has {few}")
    state = _joined(silo, state, message)
    if not plan.uniform:
        silo.ledger.record(silo.releases(0, 0, [SAMPLES]))
    once, public = new_pair()  # erased with the next Begin or Finish
    return replace(state, once=once), Hello(
        where=where,
        config=plan.config,
        model=digest(silo.learner.initial()).hex(),
        weight=plan.weight(samples),
        joined=state.joined,
        root=state.root,
        once=OneTimeKey(public, prove_once(silo, public, state.applied)),
        proofs=prove_count(silo),
        applied=state.applied,
        holds=state.number if state.phase == "sent" else 0,
    )


def _joined(silo: Silo, state: ClientState, message: RollCall) -> ClientState:
    """The state with keys for this run, where it has none or is to move on to later ones before the first round.

    It moves on only to keys that somebody has already: a server alone cannot make it erase what it has. Where its own
    are later than those of the run, it says so, and the others move on or give it theirs with a model.
    """
    root, began = silo.root, state.number or state.applied
    moves = message.joined and message.root > state.root
    if state.held is not None and (began or (state.line == root.line and not moves)):
        return state
    if message.joined and message.root > root.index:
        root = root.forward(message.root)
    keys = silo.first_keys(root)
    joined = proof_of_keys(silo, keys)
    if message.joined and message.root == root.index and not hmac.compare_digest(joined, message.joined):
        raise ProtocolError(
            f"{silo.name} has other keys than the client that joined run {message.root} of these keys: all need the "
            "same, from the same lead"
        )
    silo.spend(root)
    return replace(state, held=keys, line=root.line, root=root.index, joined=joined)


def snapshot(silo: Silo, state: ClientState, message: Peek) -> Snapshot:
    """The model and the keys, sealed to clients that fell far behind."""
    where = silo.plan.where(message.where.number, message.where.attempt)
    expect(message, Peek, where)
    if odd := sorted({*message.receivers} - {*silo.plan.clients} | {*message.receivers} & {silo.name}):
        raise ProtocolError(f"models are sealed to other clients of the run only, got {odd[0]!r}")
    keys, model = state.keys.encoded(), state.weights.tobytes()
    content = msgspec.msgpack.encode(Given(state.chains, state.line, state.root, state.joined, keys, model))
    sealed = {
        name: Blob(silo.seal_to(name, content, "model", state.applied, once=receiver.once))
        for name, receiver in message.receivers.items()
        # One that is not behind would be given keys that it has erased.
        if receiver.applied <= state.applied and is_once(silo, name, receiver)
    }
    return Snapshot(where=where, applied=state.applied, sealed=sealed)


def rescued(silo: Silo, state: ClientState, rescue: Rescue | None) -> ClientState:
    """Take a peer's model and keys where this client is too far behind. What it sent last is taken as counted."""
    if rescue is None or (state.applied and rescue.applied <= state.applied):
        return state
    if not state.once or public_of(state.once) != rescue.once:
        raise ProtocolError(
            f"{silo.name} has another one-time key than this model is sealed to; ask it again who it is"
        )
    opened = silo.open_from(rescue.sender, bytes(rescue.sealed.view), "model", rescue.applied, once=state.once)
    try:
        given = msgspec.msgpack.decode(opened, type=Given)
        weights = checked(np.frombuffer(given.weights, dtype=np.float32), silo, "snapshot")
        keys = Ratchet.decoded(given.keys)
    except (msgspec.DecodeError, ValueError, UpdateError) as error:
        raise ForgedError from error
    if given.chains[: len(state.chains)] != state.chains:  # another past than this client was told
        raise ForgedError
    _spend_given(silo, given)
    residual = state.residual
    if silo.half.withholds and state.phase != "idle" and state.number <= rescue.applied:
        residual = state.kept if state.phase == "sent" else state.update
    return settled(
        replace(
            state,
            weights=weights,
            chains=given.chains,
            line=given.line,
            root=given.root,
            joined=given.joined,
            held=keys,
            applied=rescue.applied,
            pinned="",
            residual=residual,
        )
    )


def _spend_given(silo: Silo, given: Given) -> None:
    """Erase the root of a run whose keys came with a peer's model: they follow from it."""
    if given.line != silo.root.line or given.root < silo.root.index:
        return
    root = silo.root.forward(given.root)
    if not hmac.compare_digest(proof_of_keys(silo, silo.first_keys(root)), given.joined):
        raise ForgedError
    silo.spend(root)


def settled(state: ClientState) -> ClientState:
    """The state without what the round that it was in needed, once that round has come to its end."""
    if state.applied < state.number:
        return state
    return replace(state, phase="idle", update=None, kept=None, elected=None, turn=None, share=None)
