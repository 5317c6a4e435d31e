"""POST /generate: always a stream, of data lines only, without a [DONE]."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.errors import error_body
from mini_vllm.server.generation import Numbered
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.fields import SHARED_IGNORED, SHARED_REJECTED
from mini_vllm.server.protocol.generate import ErrorEvent, GenerateRequest
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, read_json
from mini_vllm.server.sse import EventStream, encode_event
from mini_vllm.server.translate.generate import GenerateAnswer, generate_params

READER = BodyReader(GenerateRequest, ignored=SHARED_IGNORED, rejected=SHARED_REJECTED)


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/generate", **describe(GenerateRequest, None, streams=True))
    async def generate(request: Request) -> Response:
        """Continue a prompt as a stream of events: start, token …, done or error."""
        body = await read_json(request, READER)
        service.check_model(body.model)
        return await until_disconnect(request.receive, _answer(service, body, service.terms(request, body)))

    return routes


async def _answer(service: Service, body: GenerateRequest, terms: Terms) -> Response:
    params = generate_params(body)
    [prompt] = await service.reader.read(body.prompt, n=1)
    head = service.head("gen-")
    answer = GenerateAnswer(head.id, prompt, params, service.texts(params))
    deltas = service.generate([service.job(head.id, prompt.token_ids, params, body)], terms)
    return EventStream(_events(answer, deltas), request_id=head.id, end=b"", encode_error=_error)


async def _events(answer: GenerateAnswer, deltas: AsyncGenerator[Numbered, None]) -> AsyncGenerator[bytes, None]:
    has_started = False
    async with aclosing(deltas):
        async for _, delta in deltas:
            if not has_started:  # what refuses the request came before any delta
                has_started = True
                yield encode_event(answer.start())
            if events := answer.events(delta):
                yield b"".join(map(encode_event, events))


def _error(error: BaseException) -> bytes:
    detail = error_body(error).error
    return encode_event(ErrorEvent(message=detail.message, code=detail.code))
