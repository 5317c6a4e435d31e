"""WebSocket /ws/stats, the statistics once a second, and /ws/generate, many requests over one connection."""

import asyncio
import logging
from contextlib import aclosing, suppress

import msgspec
from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from mini_vllm.errors import InvalidParameterError, MiniVLLMError
from mini_vllm.server.access import WS_PROTOCOL, offered_protocols
from mini_vllm.server.errors import RequestRefused, error_body, status_of
from mini_vllm.server.protocol.common import PromptTokensDetails, Usage
from mini_vllm.server.protocol.fields import SHARED_IGNORED, SHARED_REJECTED
from mini_vllm.server.protocol.generate import CancelMessage, DoneEvent, ErrorEvent, Event, GenerateMessage
from mini_vllm.server.protocol.reading import BodyReader
from mini_vllm.server.service import Service
from mini_vllm.server.translate.generate import GenerateAnswer, generate_params

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_STATS = 1.0
GOING_AWAY = 1001  # why a connection is closed
MAX_REQUESTS = 64  # running at once on one connection
GENERATE = BodyReader(GenerateMessage, ignored=SHARED_IGNORED, rejected=SHARED_REJECTED)
CANCEL = BodyReader(CancelMessage, ignored={}, rejected={})


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.websocket("/ws/stats")
    async def stats(socket: WebSocket) -> None:
        """What /stats says, now and once a second."""
        await _accept(socket)
        with service.lifecycle.socket(), suppress(WebSocketDisconnect):
            await _show_stats(service, socket)

    @routes.websocket("/ws/generate")
    async def generate(socket: WebSocket) -> None:
        """Requests in, events of all of them out, until the client closes."""
        await _accept(socket)
        with service.lifecycle.socket():
            await _Session(service, socket).run()

    return routes


async def _show_stats(service: Service, socket: WebSocket) -> None:
    """Until the client closes, or the server stops: then once more, and goodbye."""
    reader = asyncio.create_task(_until_closed(socket))
    stopping = asyncio.create_task(service.lifecycle.draining.wait())
    try:
        while not reader.done():
            is_last = stopping.done()
            await socket.send_text(msgspec.json.encode(service.stats.read()).decode())
            if is_last:
                await socket.close(GOING_AWAY, "the server is shutting down")
                return
            await asyncio.wait({reader, stopping}, timeout=SECONDS_BETWEEN_STATS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        reader.cancel()
        stopping.cancel()


class _Session:
    """One connection and the requests that run on it."""

    def __init__(self, service: Service, socket: WebSocket) -> None:
        self._service = service
        self._socket = socket
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()
        self._is_open = True

    async def run(self) -> None:
        """Take messages until the connection ends; what runs then is aborted."""
        reading = asyncio.create_task(self._read())
        leaving = asyncio.create_task(self._leave())
        try:
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            self._is_open = False
            tasks = (reading, leaving, *self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        with suppress(WebSocketDisconnect):
            while (data := await _receive(self._socket)) is not None:
                try:
                    self._take(data)
                except MiniVLLMError as error:
                    await self._send(_error(error, _id_of(data)))
                await asyncio.sleep(0)  # a request must have begun before the next message can cancel it

    async def _leave(self) -> None:
        """When the server stops: once every request has had its last event, close."""
        await self._service.lifecycle.draining.wait()
        while self._tasks:
            await asyncio.wait(self._tasks.values())
            await asyncio.sleep(0)  # they leave `_tasks` now
        with suppress(WebSocketDisconnect):
            async with self._sending:
                await self._socket.close(GOING_AWAY, "the server is shutting down")

    def _take(self, data: bytes) -> None:
        """Begin or cancel a request."""
        if _type_of(data) == "cancel":
            task = self._tasks.get(CANCEL.decode(data).request_id)
            if task is not None:  # else it has ended meanwhile
                task.cancel()
            return
        message = GENERATE.decode(data)
        self._service.check_model(message.model)
        self._service.rates.admit(self._socket.state.client)
        head_id = self._service.head("gen-").id
        shown_id = message.request_id or head_id
        if shown_id in self._tasks:
            raise InvalidParameterError(f"request_id {shown_id!r:.100} is in use on this connection; choose another")
        if len(self._tasks) >= MAX_REQUESTS:
            raise RequestRefused(
                429, f"{MAX_REQUESTS} requests run on this connection, which is the limit; wait for one"
            )
        task = asyncio.create_task(self._answer(message, head_id, shown_id))
        self._tasks[shown_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(shown_id))

    async def _answer(self, message: GenerateMessage, head_id: str, shown_id: str) -> None:
        """Everything that one request gets: its events, of which the last is done or error."""
        terms = self._service.terms(self._socket, message, arrival=asyncio.get_running_loop().time())
        nothing = Usage(
            prompt_tokens=0, completion_tokens=0, total_tokens=0, prompt_tokens_details=PromptTokensDetails()
        )
        cancelled = DoneEvent(request_id=shown_id, finish_reason="abort", usage=nothing)
        try:
            answer = await self._prepare(message, head_id, shown_id)
            job = self._service.job(head_id, answer.prompt.token_ids, answer.params, message)
            await self._send(answer.start())
            async with aclosing(self._service.generate([job], terms)) as deltas:
                async for _, delta in deltas:
                    for event in answer.events(delta):
                        await self._send(event)
                    cancelled = answer.done("abort")
        except asyncio.CancelledError:
            if self._is_open:
                await self._send(cancelled)
        except Exception as error:
            if status_of(error) >= 500:
                logger.error("request %s failed: %s", head_id, error, exc_info=not isinstance(error, MiniVLLMError))
            await self._send(_error(error, shown_id))

    async def _prepare(self, message: GenerateMessage, head_id: str, shown_id: str) -> GenerateAnswer:
        params = generate_params(message)
        [prompt] = await self._service.reader.read(message.prompt, n=1)
        return GenerateAnswer(head_id, prompt, params, self._service.texts(params), shown_id)

    async def _send(self, event: Event) -> None:
        text = msgspec.json.encode(event).decode()
        with suppress(WebSocketDisconnect):  # whoever receives notices it too, and ends everything
            async with self._sending:
                await self._socket.send_text(text)


async def _accept(socket: WebSocket) -> None:
    offered = offered_protocols(socket.headers)
    await socket.accept(subprotocol=WS_PROTOCOL if WS_PROTOCOL in offered else None)


async def _receive(socket: WebSocket) -> bytes | None:
    """The next message; None at the end of the connection."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    return text.encode("utf-8", "surrogatepass") if text is not None else bytes(message.get("bytes") or b"")


async def _until_closed(socket: WebSocket) -> None:
    while await _receive(socket) is not None:
        pass


class _Envelope(msgspec.Struct):
    """What every message has."""

    type: str = "generate"
    request_id: str | None = None


def _type_of(data: bytes) -> str:
    try:
        kind = msgspec.json.decode(data, type=_Envelope).type
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "generate"  # whose reader says what is wrong
    if kind not in ("generate", "cancel"):
        raise InvalidParameterError(f"type is {kind!r:.50}; it must be generate or cancel", param="type")
    return kind


def _id_of(data: bytes) -> str | None:
    try:
        return msgspec.json.decode(data, type=_Envelope).request_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _error(error: BaseException, request_id: str | None) -> ErrorEvent:
    detail = error_body(error).error
    return ErrorEvent(
        request_id=msgspec.UNSET if request_id is None else request_id, message=detail.message, code=detail.code
    )
