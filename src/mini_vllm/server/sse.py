"""Server-sent events: each is `data: <one line of JSON>`, a stream ends with `data: [DONE]`.

Nothing is sent before the first event exists, so what fails until then is an ordinary HTTP error. What fails later is
an event with an `error`, after which the stream closes. Must not know what the events say.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.errors import MiniVLLMError
from mini_vllm.server.disconnect import until_disconnect
from mini_vllm.server.errors import ClientGoneError, error_body, status_of

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()
# Line separators that JSON allows inside strings, but at which some clients split lines.
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def encode_event(payload: Any) -> bytes:
    """One event. The JSON is strict and has no line breaks of any kind."""
    line = _encoder.encode(payload)
    if not line.isascii():
        for character, escape in _SEPARATORS:
            line = line.replace(character, escape)
    return b"data: " + line + b"\n\n"


def encode_named_event(name: str, payload: Any) -> bytes:
    """One event that says its name on a line of its own."""
    return b"event: " + name.encode() + b"\n" + encode_event(payload)


class EventStream(Response):
    """Sends events as they come and stops their source when the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        request_id: str,
        end: bytes = DONE,
        encode_error: Callable[[BaseException], bytes] | None = None,
    ) -> None:
        """`end` follows the last event; `encode_error` makes the event of a failure, OpenAI's if it is not given."""
        self.status_code = 200
        self.background = None
        self._events = events
        self._request_id = request_id
        self._end = end
        self._encode_error = encode_error or (lambda error: encode_event(error_body(error)))
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        started = _Started(send)
        try:
            await until_disconnect(receive, self._send_all(started))
        except ClientGoneError:
            if not started:
                raise
        finally:
            await self._events.aclose()

    async def _send_all(self, send: "_Started") -> None:
        first = await anext(self._events)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            last = self._end
        except Exception as error:
            logger.log(
                logging.ERROR if status_of(error) >= 500 else logging.INFO,
                "request %s failed in mid-stream: %s",
                self._request_id,
                error,
                exc_info=None if isinstance(error, MiniVLLMError) else error,
            )
            last = self._encode_error(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


class _Started:
    """A send channel that knows whether it was used."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_started = False

    def __bool__(self) -> bool:
        return self._is_started

    async def __call__(self, message: Any) -> None:
        self._is_started = True
        await self._send(message)
