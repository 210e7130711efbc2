"""Keys that only move on: whoever steals what a client holds now cannot open what came before.

    root n ──▶ root n + 1 ──▶ …                     a step per run; the roots are in the key folder
       └──▶ round 1 ──▶ round 2 ──▶ …               a step per round; these are in the run's state
               └──▶ attempt 0 ──▶ attempt 1 ──▶ …   a step per attempt

Each arrow is HKDF-SHA256 and cannot be followed back. What a client no longer needs is erased: a root when its run
begins, a round when its outcome is applied. All keys of a round (order of the vote, CKKS, MAC, sealing) derive from the
key of its attempt. A client that was away moves on by itself, to where the others are.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Self

from paraaegis.crypto.kdf import KEY_BYTES, derive
from paraaegis.errors import ProtocolError

MOST_STEPS = 200_000  # that a client takes at once: two seconds of work, and more than any run needs


@dataclass(frozen=True)
class Root:
    """Where the keys of the next run come from. `line` names the roots that follow from each other; it is public."""

    secret: bytes = field(repr=False)
    line: bytes
    index: int = 0

    @classmethod
    def new(cls) -> Self:
        """The first of a new line."""
        return cls(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(16))

    def forward(self, index: int) -> Root:
        """The root of this index, which must not lie behind."""
        _check_steps(index - self.index, f"keys of run {index}", f"run {self.index}")
        secret = self.secret
        for _ in range(index - self.index):
            secret = derive(secret, "next root")
        return Root(secret, self.line, index)

    def begin(self, run: str) -> Ratchet:
        """The keys of a run, before its first round."""
        return Ratchet.of_round(1, derive(self.secret, "run", run))


@dataclass(frozen=True)
class Ratchet:
    """A client's keys in a run: that of one attempt of a round, and what the next round's follow from."""

    number: int
    attempt: int
    step: bytes = field(repr=False)
    ahead: bytes = field(repr=False)

    @classmethod
    def of_round(cls, number: int, secret: bytes) -> Ratchet:
        """The first attempt of a round."""
        return cls(number, 0, derive(secret, "attempt"), derive(secret, "next round"))

    def at(self, number: int, attempt: int) -> Ratchet:
        """The keys of this round and attempt; refused if they are erased."""
        if (number, attempt) < (self.number, self.attempt):
            raise ProtocolError(
                f"the keys of round {number}, attempt {attempt} are erased; those of round {self.number}, attempt "
                f"{self.attempt} and later ones are left"
            )
        _check_steps(number - self.number, f"keys of round {number}", f"round {self.number}")
        found = self
        while found.number < number:
            found = Ratchet.of_round(found.number + 1, found.ahead)
        _check_steps(attempt - found.attempt, f"keys of attempt {attempt}", f"attempt {found.attempt}")
        step = found.step
        for _ in range(attempt - found.attempt):
            step = derive(step, "next attempt")
        return Ratchet(number, attempt, step, found.ahead)

    def encoded(self) -> str:
        """As text, for `decoded`."""
        return f"{self.number} {self.attempt} {self.step.hex()} {self.ahead.hex()}"

    @classmethod
    def decoded(cls, text: str) -> Ratchet:
        """The keys that `encoded` wrote; a ValueError if it did not."""
        number, attempt, step, ahead = text.split(" ")
        found = cls(int(number), int(attempt), bytes.fromhex(step), bytes.fromhex(ahead))
        if not (found.number >= 1 and found.attempt >= 0 and len(found.step) == len(found.ahead) == KEY_BYTES):
            raise ValueError("not the keys of a round")
        return found


def _check_steps(count: int, wanted: str, held: str) -> None:
    if not 0 <= count <= MOST_STEPS:
        raise ProtocolError(f"{wanted} cannot be derived from those of {held}: 0 to {MOST_STEPS} steps are allowed")
