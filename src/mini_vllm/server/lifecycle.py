"""Which generations run, whether new ones may start, and how they and their sockets end when the server stops.

Must not know HTTP or signals.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mini_vllm.errors import EngineDeadError
from mini_vllm.server.errors import ServerStoppingError


class Lifecycle:
    """Three states, in this order: open, draining (nothing new starts), cut (what runs is ended)."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self.draining = asyncio.Event()
        self.is_cut = False
        self._abort = abort
        self._running: set[str] = set()
        self._num_sockets = 0
        self._no_sockets = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether nothing new may start."""
        return self.draining.is_set()

    @property
    def num_running(self) -> int:
        """Generations that have not ended."""
        return len(self._running)

    @contextmanager
    def running(self, request_ids: Sequence[str]) -> Iterator[None]:
        """Hold while these generations run. However it is left, the engine is told to drop what has not ended.

        What a dead engine leaves unfinished after the cut has ended for that reason.
        """
        if self.is_draining:
            raise ServerStoppingError
        self._running.update(request_ids)
        try:
            yield
        except EngineDeadError as error:
            raise (ServerStoppingError() if self.is_cut else error) from error.__cause__
        finally:
            self._running.difference_update(request_ids)
            for request_id in request_ids:
                self._abort(request_id)

    @contextmanager
    def socket(self) -> Iterator[None]:
        """Hold while a WebSocket is open; it is to close itself once `draining` is set and it has said all."""
        self._num_sockets += 1
        self._no_sockets.clear()
        try:
            yield
        finally:
            self._num_sockets -= 1
            if not self._num_sockets:
                self._no_sockets.set()

    async def sockets_closed(self) -> None:
        """Wait until no WebSocket is open."""
        if self._num_sockets:
            await self._no_sockets.wait()

    def drain(self) -> None:
        """From now on, refuse new generations."""
        self.draining.set()

    def cut(self) -> None:
        """End what runs: each generation gets a finish_reason "abort" within a step."""
        self.draining.set()
        self.is_cut = True
        for request_id in tuple(self._running):
            self._abort(request_id)
