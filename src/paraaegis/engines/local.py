"""All clients in one process: each message is handled in a thread, and states stay in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Self

from paraaegis.engines.spool import spooled
from paraaegis.engines.transport import States
from paraaegis.parallel import threads
from paraaegis.protocol.client import start, step
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Frames, pack, unpack
from paraaegis.protocol.records import RoundRecord
from paraaegis.protocol.round_server import Exchange, Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ClientState, ServerState
from paraaegis.types import Vector


class LocalTransport:
    """Clients in threads of this process. Results do not depend on how the threads are scheduled."""

    remote = False

    def __init__(
        self, clients: Mapping[str, ClientContext], states: Mapping[str, ClientState] | None = None, workers: int = 0
    ) -> None:
        self.clients = dict(clients)
        self.states = dict(states) if states else {name: start(client) for name, client in clients.items()}
        self.workers = threads(workers)

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="client")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(
        self, server: RoundServer, on_record: Callable[[RoundRecord], None], on_state: Callable[[ServerState], None]
    ) -> None:
        """Carry out a run, or what is left of it, that is kept nowhere else."""
        with self:
            drive(serve(server), self.carry, on_record, on_state)

    def checkpoint(self) -> States:
        """See Transport."""
        return {name: (self.states[name], client.learner.state()) for name, client in self.clients.items()}

    @property
    def weights(self) -> Vector:
        """See Transport."""
        return self.states[next(iter(self.clients))].weights

    def carry(self, exchange: Exchange) -> Iterator[Reply]:
        """See Transport. Yield replies as they become ready. A client's error fails the run."""
        futures: dict[Future[Frames], str] = {
            self._pool.submit(self._answer, name, frames): name for name, frames in exchange.messages.items()
        }
        for future in as_completed(list(futures)):
            yield Reply(futures.pop(future), future.result())

    def _answer(self, name: str, frames: Frames) -> Frames:
        def keep(state: ClientState) -> None:
            self.states[name] = state

        self.states[name], reply = step(self.clients[name], self.states[name], unpack(frames), keep)
        return spooled(pack(reply))
