"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from mini_vllm.errors import MiniVLLMError
from mini_vllm.server.chatting import Chat, start_chat
from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.errors import error_response
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.fields import MESSAGES_IGNORED, MESSAGES_REJECTED
from mini_vllm.server.protocol.messages import CountRequest, CountResponse, Message, MessagesRequest
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.server.sse import EventStream, encode_named_event
from mini_vllm.server.translate.conversation import template_options
from mini_vllm.server.translate.message_events import MessageEvent, MessageWriter, message_error
from mini_vllm.server.translate.messages import chat_request, count_request
from mini_vllm.server.translate.tools import read_tools

READER = BodyReader(MessagesRequest, ignored=MESSAGES_IGNORED, rejected=MESSAGES_REJECTED)
COUNT = BodyReader(CountRequest, ignored=MESSAGES_IGNORED, rejected=MESSAGES_REJECTED)


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.post("/v1/messages", **describe(MessagesRequest, Message, streams=True))
    async def messages(request: Request) -> Response:
        """Answer a conversation."""
        return await _in_shape(_messages(service, request))

    @routes.post("/v1/messages/count_tokens", **describe(CountRequest, CountResponse))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has for the model."""
        return await _in_shape(_count(service, request))

    return routes


async def _in_shape(answer: Awaitable[Response]) -> Response:
    """The answer, or the failure in the words of this API."""
    try:
        return await answer
    except MiniVLLMError as error:
        response = error_response(error)
        response.body = msgspec.json.encode(message_error(error))
        response.headers["content-length"] = str(len(response.body))
        return response


async def _messages(service: Service, request: Request) -> Response:
    body = await read_json(request, READER)
    service.check_model(body.model)
    return await until_disconnect(request.receive, _answer(service, body, service.terms(request, body)))


async def _count(service: Service, request: Request) -> Response:
    body = await read_json(request, COUNT)
    service.check_model(body.model)
    chat = count_request(body)
    tools = read_tools(chat, service.engine.tool_format)
    prompt = await service.reader.read_chat(chat.messages, template_options(chat, tools))
    return json_response(CountResponse(input_tokens=len(prompt.token_ids)))


async def _answer(service: Service, body: MessagesRequest, terms: Terms) -> Response:
    chat = await start_chat(service, chat_request(body), terms, prefix="msg_")
    writer = MessageWriter(chat.answer.head)
    events = _events(chat, writer)
    if body.stream:
        return EventStream(_encoded(events), request_id=writer.head.id, end=b"", encode_error=_error)
    async with aclosing(events):
        async for _ in events:
            pass
    return json_response(writer.message(chat.answer.usage()))


async def _events(chat: Chat, writer: MessageWriter) -> AsyncGenerator[Sequence[MessageEvent], None]:
    has_started = False
    async with aclosing(chat.deltas):
        async for number, delta in chat.deltas:
            chunks = chat.answer.chunks(number, delta)
            events = [] if has_started else writer.start(chat.answer.usage())
            has_started = True
            for chunk in chunks:
                events += writer.push(chunk)
            if events:
                yield events
    yield writer.finish(chat.answer.usage())


async def _encoded(events: AsyncGenerator[Sequence[MessageEvent], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for each in events:
            yield b"".join(encode_named_event(event["type"], event) for event in each)


def _error(error: BaseException) -> bytes:
    return encode_named_event("error", message_error(error))
