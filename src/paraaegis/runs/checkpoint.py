"""A run's checkpoint: the server's state and, of a run in one process, each client's with its learner's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np

from paraaegis.engines.transport import States
from paraaegis.errors import RunError
from paraaegis.files import write_whole
from paraaegis.protocol.state import ClientState, ServerState, decode_state, encode_state
from paraaegis.types import Arrays, Vector


@dataclass(frozen=True)
class Stored:
    """A checkpoint as it was read, without the best model."""

    server: ServerState
    history: list[str]  # names of the files of its aggregates
    clients: States
    spent: bytes  # size and digest of the ledger


class Checkpoint:
    """The file at `path`. It refers to the ledger: one that lacks what it contained then is refused."""

    def __init__(self, path: Path, ledger: Path) -> None:
        self.path, self._ledger = path, ledger

    def write(
        self,
        server: ServerState,
        history: Sequence[str],
        clients: States,
        best: Vector | None = None,
    ) -> None:
        """Write it; `history` names the files of the server's aggregates, and `best` is the best model."""
        written = self._spent()
        arrays: Arrays = {
            "server": np.frombuffer(encode_state(server), dtype=np.uint8),
            "history": np.frombuffer(msgspec.json.encode(history), dtype=np.uint8),
            "ledger": np.frombuffer(len(written).to_bytes(8, "little") + sha256(written).digest(), dtype=np.uint8),
            # Stored once for all clients with the same model. A federation's server has none.
            "weights": next((state.weights for state, _ in clients.values()), np.empty(0, np.float32)),
        }
        if best is not None:
            arrays["best"] = np.empty(0, np.float32) if np.array_equal(best, arrays["weights"]) else best
        for name, (state, learner) in clients.items():
            own = state.to_arrays()
            if np.array_equal(own["weights"], arrays["weights"]):
                del own["weights"]
            arrays |= {f"{name}/state/{key}": value for key, value in own.items()}
            arrays |= {f"{name}/learner/{key}": value for key, value in learner.items()}
        write_whole(self.path, lambda file: np.savez(file, allow_pickle=False, **arrays), mode=0o600)

    def read(self) -> Stored:
        """What was written."""
        clients: dict[str, dict[str, Arrays]] = {}
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                server = decode_state(stored["server"].tobytes())
                kept, spent, weights = stored["history"].tobytes(), stored["ledger"].tobytes(), stored["weights"]
                for key in stored.files:
                    if "/" in key:
                        client, part, name = key.split("/", 2)
                        parts = clients.setdefault(client, {"state": {"weights": weights}, "learner": {}})
                        parts[part][name] = stored[key]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise RunError(f"{self.path} is damaged and cannot be read") from error
        states = {c: (ClientState.from_arrays(parts["state"]), parts["learner"]) for c, parts in clients.items()}
        return Stored(server, msgspec.json.decode(kept, type=list[str]), states, spent)

    def best(self) -> Vector | None:
        """The best model, if it has one."""
        with self.path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if "best" not in stored.files:
                return None
            best: Vector = stored["best"]
            return best if best.size else stored["weights"]

    def check_ledger(self, stored: Stored) -> None:
        """Refuse a ledger that lacks what it contained when the checkpoint was written."""
        length, written = int.from_bytes(stored.spent[:8], "little"), self._spent()
        if sha256(written[:length]).digest() != stored.spent[8:] or len(written) < length:
            raise RunError(
                f"{self._ledger} is missing or was changed, so the privacy spent is unknown and the run cannot "
                "continue; restore the file"
            )

    def _spent(self) -> bytes:
        return self._ledger.read_bytes() if self._ledger.exists() else b""
