"""The engine's heart: plan, run, commit, and what happens when one of them fails.

Single-threaded: whoever owns an `EngineCore` calls it from one thread (`engine.loop` gives it its own, `engine.llm`
uses the caller's). It must not know about text, asyncio or HTTP.
"""

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any, Protocol

from mini_vllm.errors import EngineDeadError
from mini_vllm.types import EngineStats, FinishReason, Request, StepPlan, StepResult, TokenDelta

logger = logging.getLogger(__name__)

GAUGES = frozenset(
    {"running", "waiting", "blocks_used", "blocks_cached", "blocks_total", "last_step", "uptime_seconds"}
)


class Executor(Protocol):
    """Computes plans: local, fake, simulated. One step at a time."""

    def run(self, plan: StepPlan) -> StepResult:
        """Do exactly what the plan says."""

    def reset(self) -> None:
        """Forget every sequence, as after construction."""


class Scheduler(Protocol):
    """What the engine needs of `scheduling.Scheduler`."""

    def add(self, request: Request) -> None:
        """Queue; `EngineBusyError` when the queue is full, `ContextLengthError` when it can never fit."""

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request at the top of the next plan; unknown ids are ignored."""

    def plan(self) -> StepPlan:
        """Decide one step."""

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Book what the executor did."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def stats(self) -> EngineStats:
        """State and counters."""


class EngineCore:
    """Steps a scheduler and an executor, and survives their failures.

    A failing step ends every request in flight with finish_reason "error", drops the scheduler (its blocks may hold
    half a step) for a fresh one and resets the executor: the next request works. If that fails too, the engine is
    dead: `death` holds the cause and every call raises `EngineDeadError`.
    """

    def __init__(self, make_scheduler: Callable[[], Scheduler], executor: Executor) -> None:
        self.scheduler = make_scheduler()
        self.executor = executor
        self.death: EngineDeadError | None = None
        self._make_scheduler = make_scheduler
        self._live: dict[str, None] = {}  # ids in flight, in order of arrival
        self._past = EngineStats()  # counters of schedulers that were dropped
        self._final: EngineStats | None = None  # once closed

    def step(self) -> list[TokenDelta]:
        """One step of every running sequence; whatever fails is raised."""
        plan = self.scheduler.plan()
        result = self.executor.run(plan)
        return self.scheduler.commit(plan, result)

    def advance(self) -> list[TokenDelta]:
        """One step; a failure becomes the last delta of every request in flight. Raises only `EngineDeadError`."""
        self._check_alive()
        try:
            deltas = self.step()
        except Exception as error:
            logger.exception("a step failed; %d requests in flight are lost", len(self._live))
            return self.reset(f"the engine failed while computing this request ({_describe(error)}); send it again")
        for delta in deltas:
            if delta.finish_reason is not None:
                self._live.pop(delta.request_id, None)
        return deltas

    def add(self, request: Request) -> None:
        """Queue a request; raises `EngineBusyError`, `ContextLengthError` or `EngineDeadError`."""
        self._check_alive()
        self.scheduler.add(request)
        self._live[request.request_id] = None

    def abort(self, request_id: str, *, reason: FinishReason = "abort") -> None:
        """End a request in the next step (reason "stop": its text is complete); ids not in flight are ignored."""
        if self.death is None and request_id in self._live:
            self.scheduler.abort(request_id, reason=reason)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.death is None and self.scheduler.has_work()

    def reset(self, error: str) -> list[TokenDelta]:
        """Start afresh; the last deltas of the requests in flight. `EngineDeadError` if even that fails."""
        lost, self._live = list(self._live), {}
        try:
            past = end_as_errors(self.stats())
            self.executor.reset()
            self.scheduler, self._past = self._make_scheduler(), past
        except Exception as cause:
            self.kill(cause)
        return [TokenDelta(request_id=request_id, finish_reason="error", error=error) for request_id in lost]

    def kill(self, cause: BaseException) -> None:
        """Declare the engine dead: raises `EngineDeadError`, now and in every later call."""
        self.death = EngineDeadError(f"the engine has failed and cannot go on ({_describe(cause)}); restart it")
        self.death.__cause__ = cause
        raise self.death

    def close(self) -> None:
        """Let go of the executor and all it holds. Every later call raises `EngineDeadError`. Idempotent."""
        if self._final is None:
            self._final = self.stats()
            self.death = self.death or EngineDeadError("the engine was closed; make a new one")
            del self.executor, self.scheduler

    def stats(self) -> EngineStats:
        """State now, counters since construction; once closed, as they were then."""
        if self._final is not None:
            return self._final
        return add_counters(self._past, self.scheduler.stats())

    def _check_alive(self) -> None:
        if self.death is not None:
            raise EngineDeadError(str(self.death)) from self.death.__cause__


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def add_counters(past: EngineStats, now: EngineStats) -> EngineStats:
    """`now` with the counters of `past` added; gauges stay."""
    counters = [field.name for field in fields(EngineStats) if field.name not in GAUGES]
    return replace(now, **{name: _add(getattr(past, name), getattr(now, name)) for name in counters})


def _add(past: Any, now: Any) -> Any:
    """Numbers, or tuples of them place by place."""
    if isinstance(now, tuple):
        return tuple(a + b for a, b in zip_longest(past, now, fillvalue=0))
    return past + now


def end_as_errors(stats: EngineStats) -> EngineStats:
    """The counters to keep of a scheduler that is dropped: what it held ends as errors."""
    return replace(stats, finished_error=stats.finished_error + stats.running + stats.waiting)
