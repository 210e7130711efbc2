"""What carries a run's messages: clients in this process (local.py), or nodes of a Flower federation (flower/)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeAlias

from paraaegis.protocol.round_server import Exchange, Reply
from paraaegis.protocol.state import ClientState
from paraaegis.types import Arrays, Vector

States: TypeAlias = Mapping[str, tuple[ClientState, Arrays]]  # of clients and of their learners, by client


class Transport(Protocol):
    """An open connection to a run's clients."""

    @property
    def weights(self) -> Vector | None:
        """The model, if this process has it."""

    @property
    def remote(self) -> bool:
        """Whether the clients outlive this process, so that it must not forget what it told them."""

    def carry(self, exchange: Exchange) -> Iterator[Reply]:
        """Send messages; replies as they arrive."""

    def checkpoint(self) -> States:
        """What a checkpoint must hold of the clients; empty if they keep their own states."""
