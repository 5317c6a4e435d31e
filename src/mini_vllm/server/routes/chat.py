"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from mini_vllm.server.chatting import Chat, start_chat
from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.chat import ChatRequest, ChatResponse
from mini_vllm.server.protocol.fields import CHAT_IGNORED, CHAT_REJECTED
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.server.sse import EventStream, encode_event

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
    chat = await start_chat(service, body, terms, prefix="chatcmpl-")
    if body.stream:
        return EventStream(_events(body, chat), request_id=chat.answer.head.id)
    await chat.read()
    return json_response(chat.answer.response())


async def _events(body: ChatRequest, chat: Chat) -> AsyncGenerator[bytes, None]:
    async with aclosing(chat.deltas):
        async for number, delta in chat.deltas:
            if chunks := chat.answer.chunks(number, delta, with_usage=body.repeats_usage):
                yield b"".join(map(encode_event, chunks))
        if body.includes_usage:
            yield encode_event(chat.answer.usage_chunk())
