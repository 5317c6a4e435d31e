"""What the routes share: the engine, its names, and how a body is read. Built once per application."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.requests import HTTPConnection

from mini_vllm.errors import ModelNotFoundError
from mini_vllm.server.door import TextEngine
from mini_vllm.server.errors import RequestRefused
from mini_vllm.server.generation import Job, Numbered, generate
from mini_vllm.server.lifecycle import Lifecycle
from mini_vllm.server.limits import RateLimits, Terms, first_deadline
from mini_vllm.server.prompts import PromptReader
from mini_vllm.server.protocol.common import GenerationRequest
from mini_vllm.server.protocol.embeddings import EmbeddingRequest
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.stats import StatsView
from mini_vllm.server.translate.answer import Head, TokenTexts
from mini_vllm.telemetry import Metrics
from mini_vllm.types import SamplingParams

R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One served model."""

    engine: TextEngine
    model_names: tuple[str, ...]  # accepted in requests; the first is shown
    lifecycle: Lifecycle
    reader: PromptReader
    stats: StatsView
    metrics: Metrics
    rates: RateLimits
    simulations: Path  # where `mini-vllm simulate` leaves its records
    request_timeout: float | None = None  # seconds from the arrival of a request to its end
    stall_timeout: float | None = None  # seconds without progress in a step that are a hang; None: as suits the engine
    hung: asyncio.Event = field(default_factory=asyncio.Event)  # set when the engine was given up; nothing can free it
    created: int = field(default_factory=lambda: int(time.time()))
    wall_clock: Callable[[], float] = time.time

    def check_model(self, name: str | None) -> None:
        """Names are compared with the served ones and never with files; no name means the served model."""
        if name is not None and name not in self.model_names:
            raise ModelNotFoundError(
                f"the model {name!r:.100} does not exist here; this server has {self.model_names[0]!r}", param="model"
            )

    def head(self, prefix: str) -> Head:
        """Id, time and model of a new answer; `prefix`: how its id begins, as `cmpl-`."""
        return Head(f"{prefix}{secrets.token_hex(12)}", int(self.wall_clock()), self.model_names[0])

    def terms(
        self, connection: HTTPConnection, body: GenerationRequest | EmbeddingRequest, *, arrival: float | None = None
    ) -> Terms:
        """What a request of this connection is held to. It has arrived with the connection, unless told otherwise."""
        state = connection.state
        return Terms(
            deadline=first_deadline(
                state.arrival if arrival is None else arrival,
                deadline_ms=body.deadline_ms,
                timeout=self.request_timeout,
            ),
            charge=partial(self.rates.charge, state.client),
            client=state.client,
        )

    def job(self, request_id: str, token_ids: Sequence[int], params: SamplingParams, body: GenerationRequest) -> Job:
        """One prompt of a request, for the engine."""
        return Job(
            request_id=request_id,
            token_ids=tuple(token_ids),
            params=params,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
        )

    def generate(self, jobs: Sequence[Job], terms: Terms) -> AsyncGenerator[Numbered, None]:
        """The deltas of a request."""
        return generate(self.engine, self.lifecycle, jobs, terms=terms)

    def texts(self, params: SamplingParams) -> TokenTexts:
        """The tokenizer as one request wants it."""
        return TokenTexts(self.engine.tokenizer, params.skip_special_tokens)


async def read_json(request: Request, reader: BodyReader[R]) -> R:
    """The request in a body that says it is JSON, or does not say what it is."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise RequestRefused(415, f"content-type is {content_type!r:.100}; send application/json")
    return reader.decode(await request.body())


def json_response(payload: Any) -> Response:
    """A struct as strict JSON."""
    return Response(msgspec.json.encode(payload), media_type="application/json")
