"""Runs an `EngineCore` on a thread of its own: commands in, deltas out, asleep when idle.

Must not know who submits or who listens; what happens leaves through callbacks.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from mini_vllm.engine.core import EngineCore
from mini_vllm.errors import EngineDeadError
from mini_vllm.types import EngineStats, FinishReason, Request, TokenDelta

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The requests of one submission are in the scheduler's queue."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """None of the requests of one submission runs; why."""

    request_ids: tuple[str, ...]
    error: Exception


@dataclass(frozen=True, slots=True)
class Abort:
    """End one request."""

    request_id: str
    reason: FinishReason


Event = TokenDelta | Accepted | Refused
Command = tuple[Request, ...] | Abort | None  # a submission, an abort, or: wake up, there is something to see


class EngineLoop:
    """The thread between commands and deltas.

    `submit` and `abort` may be called from any thread, even from a finaliser; they take effect between two steps.
    `deliver` is called on the loop's thread, with all the deltas of a step at once; it must not block. When the
    engine dies or is stopped, `on_death` is called last; twice if a step returns after all that was given up.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        deliver: Callable[[list[Event]], None],
        on_death: Callable[[EngineDeadError], None],
    ) -> None:
        self._core = core
        self._deliver = deliver
        self._on_death = on_death
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._stopping = False
        self._death: EngineDeadError | None = None
        self._stats = core.stats()
        self._num_begun = 0
        self._is_stepping = False
        self._thread = threading.Thread(target=self._main, name="mini-vllm-engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that are accepted or refused together. `EngineDeadError` when there is no engine."""
        if self._death is not None or self._stopping:
            raise EngineDeadError(str(self._death or "the engine was shut down")) from self._death
        self._commands.put(tuple(requests))

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request in the next step; unknown ids and a dead engine are ignored."""
        self._commands.put(Abort(request_id, reason))

    def stats(self) -> EngineStats:
        """As of the end of the last step."""
        return self._stats

    @property
    def is_alive(self) -> bool:
        """Whether a request submitted now would be answered."""
        return self._death is None and not self._stopping and self._thread.is_alive()

    @property
    def counts_operations(self) -> bool:
        """Whether `marker` moves within a step too."""
        return hasattr(self._core.executor, "progress")

    def marker(self) -> Hashable | None:
        """Changes with every step, and with every operation where the executor counts them; None between steps."""
        return self.progress() if self._is_stepping else None

    def progress(self) -> tuple[int, int | None]:
        """Steps begun, and operations done where the executor counts them."""
        progress = getattr(self._core.executor, "progress", None)
        return self._num_begun, None if progress is None else progress()

    def give_up(self, death: EngineDeadError) -> bool:
        """Declare a hung engine dead, from another thread. Its own can only be left behind, without another."""
        self._death = self._death or death
        self._stopping = True
        self._on_death(self._death)
        return False

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread after the step in flight; what is still running gets `EngineDeadError`. Whether it ended."""
        self._stopping = True
        self._commands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self._death = self._death or EngineDeadError("the engine was shut down before this request was finished")
        except EngineDeadError as error:
            self._death = error
        except BaseException as error:  # a fault of this file or of a callback: nothing may die in silence
            logger.exception("the engine's loop failed")
            self._death = EngineDeadError(f"the engine's loop failed ({type(error).__name__}: {error}); restart it")
            self._death.__cause__ = error
        self._on_death(self._death)

    def _turn(self) -> None:
        """Commands, then at most one step. Sleeps while there are neither."""
        admitted: list[Event] = []
        for command in self._take():
            if isinstance(command, tuple):
                admitted.append(self._admit(command))
            elif command is not None:
                self._core.abort(command.request_id, reason=command.reason)
        if admitted:
            self._stats = self._core.stats()
            self._deliver(admitted)
        if self._core.has_work() and not self._stopping:
            deltas = self._step()
            self._stats = self._core.stats()
            if deltas:
                self._deliver([*deltas])

    def _step(self) -> list[TokenDelta]:
        self._num_begun += 1
        self._is_stepping = True
        try:
            return self._core.advance()
        finally:
            self._is_stepping = False

    def _take(self) -> list[Command]:
        """The waiting commands, in order."""
        commands: list[Command] = []
        wait = not self._core.has_work()
        while True:
            try:
                command = self._commands.get(block=wait)
            except Empty:
                return commands
            wait = False
            commands.append(command)

    def _admit(self, requests: tuple[Request, ...]) -> Event:
        request_ids = tuple(request.request_id for request in requests)
        for index, request in enumerate(requests):
            try:
                self._core.add(request)
            except EngineDeadError:
                raise
            except Exception as error:
                for request_id in request_ids[:index]:
                    self._core.abort(request_id)
                return Refused(request_ids, error)
        return Accepted(request_ids)
