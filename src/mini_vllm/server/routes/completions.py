"""POST /v1/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request, Response

from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.generation import Numbered
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.completions import CompletionRequest, CompletionResponse
from mini_vllm.server.protocol.fields import COMPLETIONS_IGNORED, COMPLETIONS_REJECTED
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.server.sse import EventStream, encode_event
from mini_vllm.server.translate.completions import CompletionAnswer
from mini_vllm.server.translate.sampling import completion_params
from mini_vllm.types import TextDelta

READER = BodyReader(CompletionRequest, ignored=COMPLETIONS_IGNORED, rejected=COMPLETIONS_REJECTED)


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/v1/completions", **describe(CompletionRequest, CompletionResponse, streams=True))
    async def completions(request: Request) -> Response:
        """Continue a prompt, or several."""
        body = await read_json(request, READER)
        service.check_model(body.model)
        return await until_disconnect(request.receive, _answer(service, body, service.terms(request, body)))

    return routes


async def _answer(service: Service, body: CompletionRequest, terms: Terms) -> Response:
    params = completion_params(body, service.engine.default_sampling_params())
    prompts = await service.reader.read(body.prompt, n=params.n)
    head = service.head("cmpl-")
    answer = CompletionAnswer(head, prompts, params, texts=service.texts(params), echo=bool(body.echo))
    jobs = [service.job(f"{head.id}-{number}", prompt.token_ids, params, body) for number, prompt in enumerate(prompts)]
    deltas = service.generate(jobs, terms)
    if body.stream:
        return EventStream(_events(service, body, answer, deltas), request_id=head.id)
    async with aclosing(deltas):
        async for number, delta in deltas:
            await service.reader.off_loop(partial(answer.add, number, delta), size=_size(delta))
    return json_response(answer.response())


async def _events(
    service: Service, body: CompletionRequest, answer: CompletionAnswer, deltas: AsyncGenerator[Numbered, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(deltas):
        async for number, delta in deltas:
            write = partial(answer.chunks, number, delta, with_usage=body.repeats_usage)
            if chunks := await service.reader.off_loop(write, size=_size(delta)):
                yield b"".join(map(encode_event, chunks))
        if body.includes_usage:
            yield encode_event(answer.usage_chunk())


def _size(delta: TextDelta) -> int:
    """Characters whose handling costs about what this delta's does: a long prompt's log-probabilities are work."""
    return sum(10 + 10 * len(found.top) for found in delta.prompt_logprobs)
