"""All clients in one process: each message is handled in a thread, and states stay in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from paraaegis.engines.spool import spooled
from paraaegis.parallel import threads
from paraaegis.protocol.client import start, step
from paraaegis.protocol.client_context import ClientContext
from paraaegis.protocol.messages import Frames, pack, unpack
from paraaegis.protocol.round_server import Exchange, Reply, RoundServer
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ClientState, RoundRecord, ServerState


class LocalEngine:
    """Runs clients in threads. Results do not depend on how the threads are scheduled."""

    def __init__(
        self, clients: Mapping[str, ClientContext], states: Mapping[str, ClientState] | None = None, workers: int = 0
    ) -> None:
        self.clients = dict(clients)
        self.states = dict(states) if states else {name: start(client) for name, client in clients.items()}
        self.workers = threads(workers)

    def run(
        self, server: RoundServer, on_record: Callable[[RoundRecord], None], on_state: Callable[[ServerState], None]
    ) -> None:
        """Carry out a run, or the rest of a resumed one."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="client") as pool:
            try:
                drive(serve(server), lambda exchange: self._carry(pool, exchange), on_record, on_state)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _carry(self, pool: ThreadPoolExecutor, exchange: Exchange) -> Iterator[Reply]:
        """Yield replies as they become ready. A client's error fails the run."""
        futures: dict[Future[Frames], str] = {
            pool.submit(self._answer, name, frames): name for name, frames in exchange.messages.items()
        }
        for future in as_completed(list(futures)):
            yield Reply(futures.pop(future), future.result())

    def _answer(self, name: str, frames: Frames) -> Frames:
        def keep(state: ClientState) -> None:
            self.states[name] = state

        self.states[name], reply = step(self.clients[name], self.states[name], unpack(frames), keep)
        return spooled(pack(reply))
