"""How much one client may ask for, and for how long one request may run. Must not know HTTP or the engine."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from mini_vllm.server.errors import RequestRefused
from mini_vllm.types import Standing

R = TypeVar("R")

MAX_CLIENTS = 10_000  # remembered; the longest idle is forgotten first
RETRY_SECONDS = 0.05  # a request whose time is up is aborted again until it has ended


class DeadlineError(RequestRefused):
    """The time of a request is up. Trying again would only add to the load, so clients are told not to."""

    def __init__(self, seconds: float, name: str) -> None:
        super().__init__(
            504,
            f"the request was not finished within its {name} of {seconds:g} s; ask for fewer tokens or give it longer",
            code="deadline_exceeded",
            headers={"x-should-retry": "false"},
        )


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must have ended, on the event loop's clock."""

    time: float
    seconds: float  # how long that was from the request's arrival
    name: str  # who says so

    @property
    def error(self) -> DeadlineError:
        """What a request that has not ended gets."""
        return DeadlineError(self.seconds, self.name)


def first_deadline(arrival: float, *, deadline_ms: float | None, timeout: float | None) -> Deadline | None:
    """The earlier of what the request asks for and what the server grants."""
    given = []
    if deadline_ms is not None:
        given.append(Deadline(arrival + deadline_ms / 1e3, deadline_ms / 1e3, "deadline_ms"))
    if timeout is not None:
        given.append(Deadline(arrival + timeout, timeout, "time limit"))
    return min(given, key=lambda deadline: deadline.time, default=None)


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for one request."""

    deadline: Deadline | None = None
    charge: Callable[[int], object] = lambda num_tokens: None  # told of every token, read or written
    client: str = ""  # whose key or address it came with

    @property
    def standing(self) -> Standing:
        """What scheduling policies may go by. The event loop's clock is the engine's."""
        return Standing(key=self.client, deadline=None if self.deadline is None else self.deadline.time)

    async def in_time(self, work: Awaitable[R]) -> R:
        """The result of `work`, which is cancelled when the time is up."""
        if self.deadline is None:
            return await work
        try:
            async with asyncio.timeout_at(self.deadline.time) as limit:
                return await work
        except TimeoutError:
            raise self.deadline.error if limit.expired() else TimeoutError from None

    @contextmanager
    def enforced(self, abort: Callable[[], None]) -> Iterator["Watch"]:
        """Call `abort` when the time is up, and again until this is left. Raises at once if it is up already."""
        watch = Watch(self.deadline, abort)
        try:
            yield watch
        finally:
            watch.stop()


class Watch:
    """Waits for a deadline."""

    def __init__(self, deadline: Deadline | None, abort: Callable[[], None]) -> None:
        self.is_over = False
        self._abort = abort
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            if deadline.time <= self._loop.time():
                raise deadline.error
            self._timer = self._loop.call_at(deadline.time, self._expire)

    def check(self) -> None:
        """Raise if the time is up."""
        if self.is_over and self._deadline is not None:
            raise self._deadline.error

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self.is_over = True
        self._abort()
        self._timer = self._loop.call_later(RETRY_SECONDS, self._expire)


class RateLimits:
    """Requests and tokens per minute of each client, as buckets that fill steadily and hold a minute's worth.

    Tokens are charged as they are read and written, so a bucket may fall below zero; its client waits that off.
    """

    def __init__(
        self, *, requests_per_minute: int | None, tokens_per_minute: int | None, clock: Callable[[], float]
    ) -> None:
        self._requests = _Buckets("requests", requests_per_minute, clock)
        self._tokens = _Buckets("tokens", tokens_per_minute, clock)

    def admit(self, client: str) -> None:
        """Take one request from a client's bucket; a 429 that says when to come back if there is none."""
        self._tokens.check(client)
        self._requests.check(client)
        self._requests.take(client, 1)

    def charge(self, client: str, num_tokens: int) -> None:
        """Take tokens from a client's bucket."""
        self._tokens.take(client, num_tokens)


class _Buckets:
    """One bucket per client; without a limit, none."""

    def __init__(self, what: str, per_minute: int | None, clock: Callable[[], float]) -> None:
        self._what = what
        self._limit = per_minute
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # client -> (level, when), longest idle first

    def check(self, client: str) -> None:
        """Refuse a client whose bucket is empty."""
        if self._limit is None:
            return
        level, least = self._level(client), 1.0
        if level < least:
            wait = (least - level) * 60 / self._limit
            raise RequestRefused(
                429,
                f"the limit of {self._limit} {self._what} per minute is reached; try again in {wait:.1f} s",
                code="rate_limit_exceeded",
                headers={"retry-after": str(math.ceil(wait))},
            )

    def take(self, client: str, amount: float) -> None:
        """Lower a client's bucket."""
        if self._limit is not None:
            self._levels[client] = (self._level(client) - amount, self._clock())
            self._levels.move_to_end(client)
            if len(self._levels) > MAX_CLIENTS:
                self._levels.popitem(last=False)

    def _level(self, client: str) -> float:
        assert self._limit is not None
        if client not in self._levels:
            return float(self._limit)
        level, when = self._levels[client]
        return min(float(self._limit), level + (self._clock() - when) * self._limit / 60)
