"""A one-way key ratchet: whoever steals a client's current keys cannot open earlier rounds.

    root n ──▶ root n + 1 ──▶ …                     one step per run; roots are kept in the key folder
       └──▶ round 1 ──▶ round 2 ──▶ …               one step per round; kept in the run's state
               └──▶ attempt 0 ──▶ attempt 1 ──▶ …   one step per attempt

Each arrow is HKDF-SHA256 and cannot be inverted. A client erases keys it no longer needs: a root when its run begins,
a round's keys when its outcome is applied. All keys of a round (order of the vote, CKKS, MAC, sealing) derive from the
key of its attempt. A client that missed some rounds catches up by itself.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Self

from paraaegis.crypto.kdf import KEY_BYTES, derive
from paraaegis.errors import ProtocolError

MOST_STEPS = 200_000  # taken at once: two seconds of work, and more than any run needs


@dataclass(frozen=True)
class Root:
    """The secret from which the next run's keys derive. `line` identifies one sequence of roots; it is public."""

    secret: bytes = field(repr=False)
    line: bytes
    index: int = 0

    @classmethod
    def new(cls) -> Self:
        """The first root of a new line."""
        return cls(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(16))

    def forward(self, index: int) -> Root:
        """The root with this index, which must not be lower than the current one."""
        _check_steps(index - self.index, f"keys of run {index}", f"run {self.index}")
        secret = self.secret
        for _ in range(index - self.index):
            secret = derive(secret, "next root")
        return Root(secret, self.line, index)

    def begin(self, run: str) -> Ratchet:
        """The keys of a run, at its first round."""
        return Ratchet.of_round(1, derive(self.secret, "run", run))


@dataclass(frozen=True)
class Ratchet:
    """A client's keys in a run: `step` for one attempt of a round, and `ahead` to derive the next round's."""

    number: int
    attempt: int
    step: bytes = field(repr=False)
    ahead: bytes = field(repr=False)

    @classmethod
    def of_round(cls, number: int, secret: bytes) -> Ratchet:
        """The keys of a round's first attempt."""
        return cls(number, 0, derive(secret, "attempt"), derive(secret, "next round"))

    def at(self, number: int, attempt: int) -> Ratchet:
        """The keys of this round and attempt; refused if they have been erased."""
        if (number, attempt) < (self.number, self.attempt):
            raise ProtocolError(
                f"the keys of round {number}, attempt {attempt} have been erased; only those from round {self.number}, "
                f"attempt {self.attempt} on are left"
            )
        _check_steps(number - self.number, f"keys of round {number}", f"round {self.number}")
        ratchet = self
        while ratchet.number < number:
            ratchet = Ratchet.of_round(ratchet.number + 1, ratchet.ahead)
        _check_steps(attempt - ratchet.attempt, f"keys of attempt {attempt}", f"attempt {ratchet.attempt}")
        step = ratchet.step
        for _ in range(attempt - ratchet.attempt):
            step = derive(step, "next attempt")
        return Ratchet(number, attempt, step, ratchet.ahead)

    def encoded(self) -> str:
        """These keys as text, for `decoded`."""
        return f"{self.number} {self.attempt} {self.step.hex()} {self.ahead.hex()}"

    @classmethod
    def decoded(cls, text: str) -> Ratchet:
        """The keys from text written by `encoded`; raises ValueError for any other text."""
        number, attempt, step, ahead = text.split(" ")
        ratchet = cls(int(number), int(attempt), bytes.fromhex(step), bytes.fromhex(ahead))
        if not (ratchet.number >= 1 and ratchet.attempt >= 0 and len(ratchet.step) == len(ratchet.ahead) == KEY_BYTES):
            raise ValueError("not the keys of a round")
        return ratchet


def _check_steps(count: int, wanted: str, held: str) -> None:
    if not 0 <= count <= MOST_STEPS:
        raise ProtocolError(f"{wanted} cannot be derived from those of {held}: 0 to {MOST_STEPS} steps are allowed")
