"""The deltas of a request's prompts as one stream. Must not know HTTP, nor what the deltas become."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from mini_vllm.errors import EngineStepError, InvalidParameterError
from mini_vllm.server.door import TextEngine
from mini_vllm.server.errors import ServerStoppingError
from mini_vllm.server.lifecycle import Lifecycle
from mini_vllm.server.limits import Terms
from mini_vllm.types import SamplingParams, Standing, TextDelta

MAX_BUFFERED = 64  # deltas of a list of prompts that may wait for a slow reader

Numbered: TypeAlias = tuple[int, TextDelta]  # which prompt, and what is new of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that the engine must be told about one prompt."""

    request_id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""


async def generate(
    engine: TextEngine, lifecycle: Lifecycle, jobs: Sequence[Job], *, terms: Terms | None = None
) -> AsyncGenerator[Numbered, None]:
    """Deltas of all jobs as they come, none of them failed: a failure raises. Closing it ends the work."""
    terms = terms or Terms()
    request_ids = [job.request_id for job in jobs]

    def abort() -> None:
        for request_id in request_ids:
            engine.abort(request_id)

    with lifecycle.running(request_ids), terms.enforced(abort) as watch:
        terms.charge(sum(len(job.token_ids) for job in jobs))
        standing = terms.standing
        source = _number(engine, 0, jobs[0], standing) if len(jobs) == 1 else _merge(engine, jobs, standing)
        async with aclosing(source):
            async for number, delta in source:
                if delta.finish_reason == "error":
                    raise _failure(delta)
                if delta.finish_reason == "abort":
                    watch.check()
                    raise ServerStoppingError if lifecycle.is_cut else EngineStepError("the request was aborted")
                terms.charge(len(delta.token_ids))
                yield number, delta


def _failure(delta: TextDelta) -> Exception:
    """Of a choice that ended with an error: the caller's, or ours."""
    if delta.refused:
        return InvalidParameterError(
            f"what the request demands of its output leaves no token that could follow: {delta.error}",
            param="structured_outputs",
        )
    return EngineStepError(delta.error or "the engine failed while computing this request")


async def _number(engine: TextEngine, number: int, job: Job, standing: Standing) -> AsyncGenerator[Numbered, None]:
    stream = engine.stream(
        job.token_ids,
        job.params,
        request_id=job.request_id,
        priority=job.priority,
        cache_salt=job.cache_salt,
        standing=standing,
    )
    async with aclosing(stream):
        async for delta in stream:
            yield number, delta


async def _merge(engine: TextEngine, jobs: Sequence[Job], standing: Standing) -> AsyncGenerator[Numbered, None]:
    """All jobs at once; the first failure ends them all."""
    queue: asyncio.Queue[Numbered | None] = asyncio.Queue(MAX_BUFFERED)

    async def pump(number: int, job: Job) -> None:
        async with aclosing(_number(engine, number, job, standing)) as deltas:
            async for numbered in deltas:
                await queue.put(numbered)

    async def pump_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number, job in enumerate(jobs):
                    group.create_task(pump(number, job))
        finally:
            await queue.put(None)

    pumps = asyncio.create_task(pump_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await _raise_first(pumps)
    finally:
        pumps.cancel()
        await asyncio.gather(pumps, return_exceptions=True)


async def _raise_first(pumps: "asyncio.Task[None]") -> None:
    try:
        await pumps
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
