"""What the front doors see of an engine: submit requests, iterate over their tokens, abort them.

`EngineClient` is the protocol; `ThreadClient` is an engine on a thread of this process, `process.ProcessClient` one in
a process of its own. Must not know about text.
"""

import abc
import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from typing import Protocol

from msgspec.structs import replace

from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.loop import Accepted, EngineLoop, Event, Refused
from mini_vllm.errors import EngineDeadError, InvalidParameterError
from mini_vllm.types import EngineStats, FinishReason, Request, TokenDelta

Observer = Callable[[Sequence[TokenDelta]], object]

MAX_PENDING = 64  # deltas that a stream holds apart; a reader slower than that gets them joined


class TokenStream(Protocol):
    """The token deltas of one submission, of all its requests interleaved. Ends after the last final delta.

    Leaving early (`aclose`, or a cancelled `__anext__`) aborts what is still running.
    """

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Itself."""

    async def __anext__(self) -> TokenDelta:
        """The next delta; raises what refused the submission, or `EngineDeadError`."""

    async def accepted(self) -> None:
        """Wait until the engine has queued the submission; raises what refused it."""

    async def aclose(self) -> None:
        """Abort what is still running."""


class EngineClient(Protocol):
    """One engine, wherever it runs: a thread, a process, several replicas behind a router."""

    def submit(self, *requests: Request) -> TokenStream:
        """Queue requests that are accepted or refused together; at once, before any iteration."""

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request within a step; its stream ends with this finish_reason. Unknown ids are ignored.

        Reason "stop": a stop string was found, which the engine counts as such.
        """

    def snapshot(self) -> EngineStats:
        """State and counters as of the last step."""


class Driver(Protocol):
    """What runs an engine between commands and deltas: `EngineLoop` here, `EngineProcess` elsewhere."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that are accepted or refused together. `EngineDeadError` when there is no engine."""

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request in the next step; unknown ids and a dead engine are ignored."""

    def stats(self) -> EngineStats:
        """As of the end of the last step."""

    @property
    def is_alive(self) -> bool:
        """Whether a request submitted now would be answered."""

    @property
    def counts_operations(self) -> bool:
        """Whether `marker` moves within a step too."""

    def marker(self) -> Hashable | None:
        """Changes with any progress; None while nothing is being computed."""

    def give_up(self, death: EngineDeadError) -> bool:
        """Declare a hung engine dead; whether another takes its place."""

    def stop(self, timeout: float | None = None) -> bool:
        """Stop after the step in flight, `timeout` seconds at most; whether it has ended."""


class LocalClient(abc.ABC):
    """An engine on this machine, behind a driver.

    A step's deltas cross into each asyncio loop with one wake-up, not one per token. A stream's queue is bounded:
    past `MAX_PENDING` deltas the newest are joined to one another, so a slow reader loses nothing and stalls nobody.
    """

    def __init__(self, *, observers: Sequence[Observer] = ()) -> None:
        """`observers` are called on the driver's thread with the deltas of every step, before anybody waits for them;
        they must be quick."""
        # By request id, weak: a stream that its reader drops must not live on here. Single dict operations are
        # atomic, and no lock is held, because finalisers come here too.
        self._streams: dict[str, weakref.ref[_Stream]] = {}
        self._observers = observers
        self._loop = self._drive()

    @abc.abstractmethod
    def _drive(self) -> Driver:
        """Start what calls `_deliver` and `_die`."""

    def submit(self, *requests: Request) -> "_Stream":
        """Queue requests that are accepted or refused together. Call it inside a running asyncio loop."""
        stream = _Stream(self, asyncio.get_running_loop())
        for request in requests:
            if self._streams.setdefault(request.request_id, stream.reference) is not stream.reference:
                stream.withdraw()
                raise InvalidParameterError(
                    f"request_id {request.parent_id!r} is in use by a running request; choose another",
                    param="request_id",
                )
            stream.open_ids.append(request.request_id)
        try:
            self._loop.submit(requests)
        except EngineDeadError:
            stream.withdraw()
            raise
        return stream

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request within a step; its stream ends with this finish_reason."""
        self._loop.abort(request_id, reason=reason)

    def snapshot(self) -> EngineStats:
        """State and counters as of the last step."""
        return self._loop.stats()

    @property
    def counts_operations(self) -> bool:
        """Whether `marker` moves within a step too."""
        return self._loop.counts_operations

    def marker(self) -> Hashable | None:
        """Changes with any progress; None while nothing is being computed."""
        return self._loop.marker()

    def give_up(self, reason: str) -> bool:
        """Declare a hung engine dead: unfinished streams raise `EngineDeadError`. Whether another takes its place."""
        return self._loop.give_up(EngineDeadError(reason))

    @property
    def is_alive(self) -> bool:
        """Whether a request submitted now would be answered."""
        return self._loop.is_alive

    def shutdown(self, timeout: float | None = None) -> bool:
        """Stop after the step in flight; unfinished streams raise `EngineDeadError`.

        Blocks until the engine has ended, `timeout` seconds at most; whether it has.
        """
        return self._loop.stop(timeout)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop what may still arrive for these requests."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    def _deliver(self, events: list[Event]) -> None:
        """On the engine's thread: sort a step's events by asyncio loop and wake each loop once."""
        for observe in self._observers:
            observe([event for event in events if isinstance(event, TokenDelta)])
        batches: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, Event]]] = {}
        for event in events:
            request_id = event.request_id if isinstance(event, TokenDelta) else event.request_ids[0]
            reference = self._streams.get(request_id)
            stream = None if reference is None else reference()
            if stream is None:
                continue
            if isinstance(event, TokenDelta) and event.finish_reason is not None:
                self._streams.pop(request_id, None)
            batches.setdefault(stream.loop, []).append((stream, event))
        for loop, batch in batches.items():
            self._wake(loop, batch)

    def _wake(self, loop: asyncio.AbstractEventLoop, batch: "list[tuple[_Stream, Event]]") -> None:
        try:
            loop.call_soon_threadsafe(_hand_over, batch)
        except RuntimeError:  # the loop is closed: nobody will read these
            for stream, _ in batch:
                stream.abandon()

    def _die(self, death: EngineDeadError) -> None:
        references = dict.fromkeys(list(self._streams.values()))
        self._streams.clear()
        for reference in references:
            if (stream := reference()) is not None:
                error = EngineDeadError(str(death))
                error.__cause__ = death
                self._wake(stream.loop, [(stream, Refused(tuple(stream.open_ids), error))])


class ThreadClient(LocalClient):
    """An engine on a thread of this process."""

    def __init__(self, core: EngineCore, *, observers: Sequence[Observer] = ()) -> None:
        self._core = core
        super().__init__(observers=observers)

    def _drive(self) -> Driver:
        return EngineLoop(self._core, deliver=self._deliver, on_death=self._die)


def _hand_over(batch: "list[tuple[_Stream, Event]]") -> None:
    for stream, event in batch:
        stream.put(event)


class _Stream:
    """A `TokenStream`. All but `abandon` runs on its asyncio loop."""

    def __init__(self, client: LocalClient, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.open_ids: list[str] = []  # requests that are not finished yet
        self.reference = weakref.ref(self)
        self._client = client
        self._pending: deque[TokenDelta] = deque()
        self._error: Exception | None = None
        self._is_accepted = False
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        """Take one event of the engine."""
        if isinstance(event, Accepted):
            self._is_accepted = True
        elif isinstance(event, Refused):
            self._error = event.error
            self.withdraw()
        elif self._error is None:  # what was accepted of a refused submission still gives a last delta
            self._queue(event)
        self._news.set()

    def withdraw(self) -> list[str]:
        """Expect nothing more; the requests that were not finished. From any thread, more than once."""
        unfinished, self.open_ids = self.open_ids, []
        self._client.forget(unfinished)
        return unfinished

    def abandon(self) -> None:
        """Expect nothing more and abort what is still running. From any thread, more than once."""
        for request_id in self.withdraw():
            self._client.abort(request_id)

    async def accepted(self) -> None:
        """Wait until the engine has queued the submission; raises what refused it."""
        while not self._is_accepted and self._error is None and not self._pending:
            await self._wait()
        if self._error is not None:
            raise self._error

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> TokenDelta:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self.open_ids:
                raise StopAsyncIteration
            await self._wait()
        return self._pending.popleft()

    async def aclose(self) -> None:
        """Abort what is still running."""
        self._pending.clear()
        self.abandon()
        self._news.set()

    def __del__(self) -> None:
        self.abandon()

    async def _wait(self) -> None:
        try:
            self._news.clear()
            await self._news.wait()
        except BaseException:  # cancelled: the reader is gone
            self.abandon()
            raise

    def _queue(self, delta: TokenDelta) -> None:
        if delta.finish_reason is not None and delta.request_id in self.open_ids:
            self.open_ids.remove(delta.request_id)
        if len(self._pending) >= MAX_PENDING:
            for index in range(len(self._pending) - 1, -1, -1):  # the newest of this request, to keep the order
                if self._pending[index].request_id == delta.request_id:
                    self._pending[index] = _join(self._pending[index], delta)
                    return
        self._pending.append(delta)


def _join(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    """Two deltas of one request as one."""
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
        num_cached_tokens=max(first.num_cached_tokens, second.num_cached_tokens),
        metrics=second.metrics or first.metrics,
    )
