"""All clients in one process: messages go to threads, states stay in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from paraaegis.engines.spool import spooled
from paraaegis.parallel import threads
from paraaegis.protocol import client
from paraaegis.protocol.client_context import Silo
from paraaegis.protocol.messages import Frames, pack, unpack
from paraaegis.protocol.round_server import Desk, Exchange, Reply
from paraaegis.protocol.server import drive, serve
from paraaegis.protocol.state import ClientState, Line, ServerState


class LocalEngine:
    """Runs silos in threads. Their results do not depend on how the threads are scheduled."""

    def __init__(
        self, silos: Mapping[str, Silo], states: Mapping[str, ClientState] | None = None, workers: int = 0
    ) -> None:
        self.silos = dict(silos)
        self.states = dict(states) if states else {name: client.start(silo) for name, silo in silos.items()}
        self.workers = threads(workers)

    def run(self, desk: Desk, on_line: Callable[[Line], None], on_state: Callable[[ServerState], None]) -> None:
        """Carry out a run, or what is left of it."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="client") as pool:
            try:
                drive(serve(desk), lambda exchange: self._carry(pool, exchange), on_line, on_state)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _carry(self, pool: ThreadPoolExecutor, exchange: Exchange) -> Iterator[Reply]:
        """Replies in the order in which they are ready. An error of a client is an error of the run."""
        asked: dict[Future[Frames], str] = {
            pool.submit(self._answer, name, frames): name for name, frames in exchange.messages.items()
        }
        for future in as_completed(list(asked)):
            yield Reply(asked.pop(future), future.result())

    def _answer(self, name: str, frames: Frames) -> Frames:
        def keep(state: ClientState) -> None:
            self.states[name] = state

        self.states[name], reply = client.step(self.silos[name], self.states[name], unpack(frames), keep)
        return spooled(pack(reply))
