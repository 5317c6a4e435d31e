"""Which generations run, whether new ones may start, and how they end when the server stops.

Must not know HTTP or signals.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mini_vllm.errors import EngineDeadError
from mini_vllm.server.errors import ServerStoppingError


class Lifecycle:
    """Three states, in this order: open, draining (nothing new starts), cut (what runs is ended)."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self.is_draining = False
        self.is_cut = False
        self._abort = abort
        self._running: set[str] = set()

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

    def drain(self) -> None:
        """From now on, refuse new generations."""
        self.is_draining = True

    def cut(self) -> None:
        """End what runs: each generation gets a finish_reason "abort" within a step."""
        self.is_draining = self.is_cut = True
        for request_id in tuple(self._running):
            self._abort(request_id)
