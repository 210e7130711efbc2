"""What is kept between messages: on a real network each one may reach a new process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.ratchet import Ratchet
from paraaegis.crypto.shamir import Shares
from paraaegis.errors import ProtocolError, RunError
from paraaegis.plural import plural
from paraaegis.protocol.contexts import UploadContext
from paraaegis.protocol.messages import VERSION, Aggregate
from paraaegis.protocol.records import RoundRecord
from paraaegis.types import Arrays, Mask, Vector

_STORED_AS = {"next_residual": "kept", "fingerprint": "mark"}  # fields stored under an older name
Phase = Literal["idle", "voted", "elected", "sent", "shared", "ended"]


@dataclass(frozen=True, eq=False)
class ClientState:
    """A client between two messages: Idle → Voted → Sent → Idle; with masks opened by shares, Shared follows Sent.

    A client whose upload fails stays Elected: it does not answer a second elected set. `number` and `attempt` are the
    last it answered: it answers each once, because a secret order used twice would link them. A failed check ends the
    run for this client: there is no way back from Ended.
    """

    weights: Vector  # the model after `applied` rounds
    phase: Phase = "idle"
    number: int = 0
    attempt: int = 0
    applied: int = 0
    held: Ratchet | None = None  # the keys of the round that it is in, or waits for; see `keys`
    line: bytes = b""  # the line of roots from which these keys derive; see crypto/ratchet.py
    root: int = 0  # index of their root in that line
    joined: str = ""  # proof of having this run's keys; other clients check it before they move on to them
    once: bytes = field(default=b"", repr=False)  # private one-time key; the next snapshot is sealed to its public one
    counts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # weights by client, fixed
    chains: str = ""  # the chain after each round, 64 hexadecimal digits each; see binding.py
    pinned: str = ""  # digest of the next round's sum, set before it is checked
    model: str = ""  # digest of the model that round `number` was trained on
    told: str = ""  # digest of what the last Begin told its learner; empty for learners that hear nothing
    view: str = ""  # what it believed when round `number` began; see binding.py
    nonce: str = ""  # of its upload in round `number`
    share: Shares | None = None  # sent: its own share of its mask's secret
    opened: int = 0  # the last round in which it gave out a sum of shares
    residual: Vector | None = None  # feedback: what is added to the next update
    update: Vector | None = None  # voted: what to send; sent: the residual if the upload was not counted
    next_residual: Vector | None = None  # sent: the residual if the upload was counted
    fingerprint: str = ""  # of view and secret order in round `number`
    elected: Mask | None = None  # sent: the elected positions of round `number`
    upload_context: UploadContext | None = None  # voted: for the upload, while the process lives; never stored

    @property
    def uploaded(self) -> bool:
        """Whether it has sent its update of round `number`, which has not been applied yet."""
        return self.phase in ("sent", "shared")

    @property
    def keys(self) -> Ratchet:
        """The keys of the round that it is in, or waits for."""
        if self.held is None:
            raise ProtocolError("this client has no keys for this run; a roll call or a peer's model provides them")
        return self.held

    @property
    def chain(self) -> str:
        """The digest of everything it has been told so far."""
        return self.chains[-64:]

    @property
    def total(self) -> int:
        """W, the sum of all weights."""
        return int(self.counts.sum())

    @property
    def heaviest(self) -> float:
        """The largest share of W that any client has."""
        return float(self.counts.max() / self.total)

    def to_arrays(self) -> Arrays:
        """Named arrays that `from_arrays` reads back."""
        values = {stored: getattr(self, name) for stored, name in self._stored().items()}
        values |= {"held": self.held.encoded() if self.held else "", "once": self.once.hex(), "line": self.line.hex()}
        return {name: np.asarray(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ClientState:
        """A state from named arrays."""
        names = cls._stored()
        if "weights" not in arrays or not set(arrays) <= set(names):
            raise RunError(f"a client's state has the arrays {sorted(names)}, got {sorted(arrays)}")
        values: dict[str, Any] = {names[name]: value if value.ndim else value.item() for name, value in arrays.items()}
        held, once, line = (values.pop(name, "") for name in ("held", "once", "line"))
        try:
            keys = Ratchet.decoded(held) if held else None
            return cls(**values, held=keys, once=bytes.fromhex(once), line=bytes.fromhex(line))
        except ValueError as error:
            raise RunError(f"a client's stored keys are damaged: {error}") from error

    @classmethod
    def _stored(cls) -> dict[str, str]:
        """The names of the fields, by the names of their arrays."""
        names = [field.name for field in fields(cls) if field.name != "upload_context"]
        return {_STORED_AS.get(name, name): name for name in names}


class ServerState(msgspec.Struct, kw_only=True):
    """The server between two rounds. It holds opaque aggregates, no key and no model.

    Only if the server opens sums (protect.reveal), `change` is what they changed in the model: float32 by parameter.
    """

    run: str = ""  # the run's name; empty: its configuration names it
    number: int = 0  # rounds finished
    attempt: int = 0  # of every round from here on; a run resumed with fresh noise must not reuse a secret order
    weights: dict[str, int] = {}  # of enrolled clients: sample counts, or 1 each
    agreed: tuple[str, str] = ("", "")  # what all clients said first: digest of the first model, proof of their keys
    root: int = 0  # index of the root from which the clients derived this run's keys
    proofs: dict[str, dict[str, bytes]] = {}  # each client's proofs of its weight, by recipient
    seen: dict[str, int] = {}  # the last round each client has applied
    history: list[Aggregate] = []  # stored apart from the rest of the state, see encode_state
    lines: int = 0  # round records written so far
    pending: RoundRecord | None = None  # the last round's record, which still lacks its metrics
    stopped: str = ""  # why the run ends before its last round; once set, no further round begins
    ended: list[str] = []  # clients that ended the run, because a check of what the server passed on failed
    change: bytes = b""
    opening: tuple[int, int] = (0, 0)  # the last round and attempt for which share sums were requested
    version: int = 0  # of the protocol when it was stored

    @property
    def late(self) -> list[str]:
        """Clients that have not applied all finished rounds."""
        behind = [client for client, applied in self.seen.items() if applied < self.number]
        return [client for client in behind if client not in self.ended]


def encode_state(state: ServerState) -> bytes:
    """A server's state as bytes, without its aggregates, which are large and do not change."""
    return msgspec.msgpack.encode(msgspec.structs.replace(state, history=[], version=VERSION))


def decode_state(data: bytes) -> ServerState:
    """The state that `encode_state` encoded; refused if clients still lack a sum that another version made."""
    try:
        state = msgspec.msgpack.decode(data, type=ServerState)
    except msgspec.DecodeError as error:
        raise RunError(f"the server's state is damaged: {error}") from error
    if state.version != VERSION and state.late:
        raise RunError(
            f"a sum of this run was made by another version of paraaegis (protocol {state.version or 'below 5'}, now "
            f"{VERSION}) and has yet to reach {plural(len(state.late), 'client')}, which would misread it; finish the "
            "run with that version, or start it again"
        )
    return state
