"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request, Response

from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.generation import Numbered
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.chat import ChatRequest, ChatResponse
from mini_vllm.server.protocol.fields import CHAT_IGNORED, CHAT_REJECTED
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.server.sse import EventStream, encode_event
from mini_vllm.server.translate.chat import ChatAnswer
from mini_vllm.server.translate.conversation import (
    make_router,
    refuse_unsupported,
    show_markers,
    template_options,
)
from mini_vllm.server.translate.sampling import chat_params
from mini_vllm.server.translate.tools import read_tools

END_TOKENS = 16  # of a prompt, in which a thought may have been opened
READER = BodyReader(ChatRequest, ignored=CHAT_IGNORED, rejected=CHAT_REJECTED)


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", **describe(ChatRequest, ChatResponse, streams=True))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_json(request, READER)
        service.check_model(body.model)
        return await until_disconnect(request.receive, _answer(service, body, service.terms(request, body)))

    return routes


async def _answer(service: Service, body: ChatRequest, terms: Terms) -> Response:
    refuse_unsupported(body)
    engine = service.engine
    tools = read_tools(body, engine.tool_format)
    params = tools.constrain(chat_params(body, engine.default_sampling_params()))
    params = show_markers(params, tools, engine.tokenizer, thinks=engine.thinks)
    prompt = await service.reader.read_chat(body.messages, template_options(body, tools))
    end = prompt.token_ids[-END_TOKENS:] if engine.thinks else ()
    prompt_end = engine.tokenizer.decode(end, skip_special_tokens=False) if engine.thinks else None
    router = partial(make_router, body, tools, params=params, prompt_end=prompt_end)
    head = service.head("chatcmpl")
    answer = ChatAnswer(head, prompt, params, texts=service.texts(params), make_router=router)
    deltas = service.generate([service.job(head.id, prompt.token_ids, params, body)], terms)
    if body.stream:
        return EventStream(_events(body, answer, deltas), request_id=head.id)
    async with aclosing(deltas):
        async for number, delta in deltas:
            answer.add(number, delta)
    return json_response(answer.response())


async def _events(
    body: ChatRequest, answer: ChatAnswer, deltas: AsyncGenerator[Numbered, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(deltas):
        async for number, delta in deltas:
            if chunks := answer.chunks(number, delta, with_usage=body.repeats_usage):
                yield b"".join(map(encode_event, chunks))
        if body.includes_usage:
            yield encode_event(answer.usage_chunk())
