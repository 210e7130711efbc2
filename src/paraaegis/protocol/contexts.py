"""What a client's half of a method is given to make an upload, or to read an aggregate, and what it returns to send."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from paraaegis.crypto.shamir import Shares
from paraaegis.protocol.messages import RoundId
from paraaegis.protocol.partition import Partition
from paraaegis.types import Payload

# Who opens a sum with the clients' sums of shares; nobody, if it needs none.
Opener: TypeAlias = Literal["nobody", "clients", "server"]


@dataclass(frozen=True)
class RevealContext:
    """What is needed to read an aggregate: its round, the most clients in a sum, the heaviest n_i/W, the partition.

    `counted` is how many clients are in this sum.
    """

    round_id: RoundId
    step: bytes = field(repr=False)  # the clients' key of this round and attempt
    clients: int
    heaviest: float
    partition: Partition | None
    counted: int = 0


@dataclass(frozen=True)
class UploadContext(RevealContext):
    """What is needed to make an upload as well: this client's n_i/W, its noise and, for shares, who gets one.

    `ahead` is what its half precomputes during training. Until that is done, nothing else may draw from `rng`.
    """

    weight: float = field(kw_only=True)
    rng: np.random.Generator = field(kw_only=True)
    name: str = field(kw_only=True)
    members: tuple[str, ...] = field(kw_only=True)
    ahead: Future[Any] | None = field(default=None, kw_only=True)

    def prepared(self) -> Any:
        """What was precomputed; None if nothing was."""
        return None if self.ahead is None else self.ahead.result()


class Packed(NamedTuple):
    """Values as they are sent. `shares`, by member, are shares of the secret that masks them."""

    payload: Payload
    shares: Mapping[str, Shares] = {}
