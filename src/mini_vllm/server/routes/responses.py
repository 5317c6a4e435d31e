"""POST /v1/responses."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from mini_vllm.server.chatting import Chat, start_chat
from mini_vllm.server.conversations import Conversations
from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.limits import Terms
from mini_vllm.server.openapi import describe
from mini_vllm.server.protocol.fields import RESPONSES_IGNORED, RESPONSES_REJECTED
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.protocol.responses import ResponseObject, ResponsesRequest
from mini_vllm.server.service import Service, json_response, read_json
from mini_vllm.server.sse import EventStream, encode_named_event
from mini_vllm.server.translate.response_events import ResponseEvent, ResponseWriter
from mini_vllm.server.translate.responses import answer_message, chat_request, input_messages

READER = BodyReader(ResponsesRequest, ignored=RESPONSES_IGNORED, rejected=RESPONSES_REJECTED)


def router(service: Service) -> APIRouter:
    """The route."""
    routes = APIRouter()
    conversations = Conversations()

    @routes.post("/v1/responses", **describe(ResponsesRequest, ResponseObject, streams=True))
    async def responses(request: Request) -> Response:
        """Answer a conversation, or go on with an earlier one."""
        body = await read_json(request, READER)
        service.check_model(body.model)
        thread = _Thread(conversations, request.state.client, body)
        return await until_disconnect(request.receive, _answer(service, thread, service.terms(request, body)))

    return routes


class _Thread:
    """The conversation of one request: what came before, and where it is kept."""

    def __init__(self, conversations: Conversations, client: str, body: ResponsesRequest) -> None:
        previous = body.previous_response_id
        self.body = body
        self.earlier = () if previous is None else conversations.find(client, previous)
        self._conversations = conversations
        self._client = client

    def keep(self, writer: ResponseWriter) -> None:
        """Remember it with its answer, unless the client does not want that."""
        if self.body.store is not False:
            messages = [*self.earlier, *input_messages(self.body.input), answer_message(writer.content.blocks)]
            self._conversations.keep(self._client, writer.head.id, messages)


async def _answer(service: Service, thread: _Thread, terms: Terms) -> Response:
    chat = await start_chat(service, chat_request(thread.body, thread.earlier), terms, prefix="resp_")
    writer = ResponseWriter(chat.answer.head, thread.body)
    events = _events(chat, writer, thread)
    if thread.body.stream:
        return EventStream(
            _encoded(events), request_id=writer.head.id, end=b"", encode_error=lambda error: _encode(writer.fail(error))
        )
    async with aclosing(events):
        async for _ in events:
            pass
    return json_response(writer.response(writer.status))


async def _events(chat: Chat, writer: ResponseWriter, thread: _Thread) -> AsyncGenerator[Sequence[ResponseEvent], None]:
    has_started = False
    async with aclosing(chat.deltas):
        async for number, delta in chat.deltas:
            events = [] if has_started else writer.start()  # what refuses the request came before any delta
            has_started = True
            for chunk in chat.answer.chunks(number, delta):
                events += writer.push(chunk)
            if events:
                yield events
    last = writer.finish(chat.answer.usage())
    thread.keep(writer)
    yield last


async def _encoded(events: AsyncGenerator[Sequence[ResponseEvent], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for each in events:
            yield _encode(each)


def _encode(events: Sequence[ResponseEvent]) -> bytes:
    return b"".join(encode_named_event(event["type"], event) for event in events)
