"""POST /v1/embeddings."""

import asyncio
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response

from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.embeddings import EmbeddingRequest, EmbeddingResponse
from mini_vllm.server.protocol.fields import EMBEDDINGS_IGNORED, EMBEDDINGS_REJECTED
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.server.translate.answer import PreparedPrompt
from mini_vllm.server.translate.embeddings import embedding_response
from mini_vllm.types import Embedding

READER = BodyReader(EmbeddingRequest, ignored=EMBEDDINGS_IGNORED, rejected=EMBEDDINGS_REJECTED)
AT_ONCE = 32  # inputs of one request that the engine has at a time


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/v1/embeddings", **describe(EmbeddingRequest, EmbeddingResponse))
    async def embeddings(request: Request) -> Response:
        """Turn texts into vectors."""
        body = await read_json(request, READER)
        service.check_model(body.model)
        return await until_disconnect(request.receive, _answer(service, body, service.terms(request, body)))

    return routes


async def _answer(service: Service, body: EmbeddingRequest, terms: Terms) -> Response:
    prompts = await service.reader.read(body.input, n=1, name="input")
    with service.lifecycle.running(()):
        terms.charge(sum(len(prompt.token_ids) for prompt in prompts))
        found = await terms.in_time(_embed(service, body, prompts))
    write = partial(embedding_response, service.model_names[0], found, as_base64=body.encoding_format == "base64")
    return json_response(await service.reader.off_loop(write, size=sum(len(each.vector) for each in found)))


async def _embed(service: Service, body: EmbeddingRequest, prompts: Sequence[PreparedPrompt]) -> list[Embedding]:
    """All of them, or the first failure, which ends the others."""
    places = asyncio.Semaphore(AT_ONCE)

    async def embed(prompt: PreparedPrompt) -> Embedding:
        async with places:
            return await service.engine.embed(
                prompt.token_ids,
                pooling=body.pooling or "mean",
                dimensions=body.dimensions,
                normalize=body.normalize is not False,
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
            )

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(embed(prompt)) for prompt in prompts]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
