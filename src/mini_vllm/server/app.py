"""The ASGI application: middleware, routes, and the engine's life inside it. Must not know sockets or signals."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from mini_vllm import __version__
from mini_vllm.config import ServerConfig
from mini_vllm.server import errors, openapi
from mini_vllm.server.access import KeyCheck, PlaceCheck, read_keys, split_list
from mini_vllm.server.door import TextEngine
from mini_vllm.server.lifecycle import Lifecycle
from mini_vllm.server.limits import RateLimits
from mini_vllm.server.middleware import BodyLimit, RateGate, RequestBoundary
from mini_vllm.server.prompts import PromptReader
from mini_vllm.server.routes import (
    benchmark,
    chat,
    completions,
    embeddings,
    generate,
    health,
    messages,
    models,
    page,
    responses,
    sockets,
    text,
)
from mini_vllm.server.routes import metrics as metrics_routes
from mini_vllm.server.routes import trace as trace_routes
from mini_vllm.server.service import Service
from mini_vllm.server.stats import StatsView, process_memory
from mini_vllm.server.watch import SECONDS_PER_OPERATION, SECONDS_PER_STEP, StallWatch
from mini_vllm.telemetry import Labels, LatencyRecorder, Metrics, Reading

logger = logging.getLogger(__name__)

ROUTES = (
    *(completions, chat, responses, messages, embeddings, generate),
    *(text, models, health, metrics_routes, trace_routes, benchmark, sockets),
)
SAMPLE_SECONDS = 1.0
SECONDS_FOR_LAST_STEP = 5.0  # at shutdown; then a hung step is left behind


def create_app(
    llm: TextEngine,
    config: ServerConfig | None = None,
    *,
    model_names: tuple[str, ...] = ("default",),
) -> FastAPI:
    """An application that serves one engine, started and shut down with it.

    Requests may name any of `model_names`; answers name the first. `app.state.service` is there for whoever runs it.
    """
    config = config or ServerConfig()
    keys = read_keys(config)
    rates = RateLimits(
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        clock=time.monotonic,
    )
    metrics = _metrics(llm, model_names[0])
    service = Service(
        engine=llm,
        model_names=model_names,
        lifecycle=Lifecycle(llm.abort),
        reader=PromptReader(llm),
        stats=StatsView(llm.stats, facts=llm.describe),
        metrics=metrics,
        rates=rates,
        request_timeout=config.request_timeout,
        stall_timeout=config.stall_timeout,
        simulations=Path(config.out_dir),
    )
    app = FastAPI(
        title="mini-vLLM",
        version=__version__,
        description="An OpenAI-compatible server.",
        lifespan=lambda _: _life(service),
        redirect_slashes=False,
        docs_url=None,  # ours takes nothing from the network
        redoc_url=None,
    )
    app.state.service = service
    errors.install(app)
    openapi.install(app)
    app.add_middleware(BodyLimit, max_body_bytes=config.max_body_bytes, seconds=config.body_timeout)
    app.add_middleware(RateGate, rates=rates)
    app.add_middleware(KeyCheck, keys=keys)
    _guard_places(app, config)
    app.add_middleware(RequestBoundary, count=metrics.count_answer)
    for module in ROUTES:
        app.include_router(module.router(service))
    app.include_router(page.router())
    return app


def _metrics(llm: TextEngine, model: str) -> Metrics:
    """All metrics of an engine, from now on."""
    latencies = LatencyRecorder()
    llm.observe(latencies)

    def read(answers: Mapping[Labels, int]) -> Reading:
        return Reading(
            stats=llm.stats(),
            latencies=latencies.read(),
            answers=answers,
            memory_bytes=process_memory(),
            version=__version__,
            model=model,
        )

    return Metrics(read)


def _guard_places(app: FastAPI, config: ServerConfig) -> None:
    """Which hosts and origins are served."""
    origins = split_list(config.cors_origins)
    app.add_middleware(
        PlaceCheck, host=config.host, allowed_hosts=split_list(config.allowed_hosts), origins=tuple(origins)
    )
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
            expose_headers=["x-request-id", "retry-after"],
        )


@asynccontextmanager
async def _life(service: Service) -> AsyncIterator[None]:
    await service.engine.start()
    sampler = asyncio.create_task(_sample(service))
    try:
        yield
    finally:
        sampler.cancel()
        service.lifecycle.cut()
        service.reader.close()
        await asyncio.to_thread(service.engine.shutdown, SECONDS_FOR_LAST_STEP)


async def _sample(service: Service) -> None:
    """Once a second: the rates of /stats, and whether the engine still moves."""
    engine = service.engine
    default = SECONDS_PER_OPERATION if engine.counts_operations else SECONDS_PER_STEP
    watch = StallWatch(engine.marker, limit=service.stall_timeout or default, clock=time.monotonic)
    while True:
        service.stats.sample()
        if engine.is_alive and watch.is_stalled():
            reason = f"the engine has hung: a step has made no progress for {watch.limit:g} s"
            logger.critical(reason)
            if not engine.give_up(reason):
                service.hung.set()
        await asyncio.sleep(SAMPLE_SECONDS)
