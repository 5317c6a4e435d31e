"""Pure ASGI middleware: an id for every request, a bound on every body, an answer to every failure.

Of this kind only: the decorator kind of the framework hides disconnects and buffers streams.
Must not know the routes.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.server.errors import ClientGoneError, RequestRefused, error_response
from mini_vllm.server.limits import RateLimits

logger = logging.getLogger(__name__)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
DRAIN_SECONDS = 2.0  # how long a refused body is still read, so that its sender sees the answer


class RequestBoundary:
    """Outermost. Gives the request its id (`scope["state"]["request_id"]`, header x-request-id) and answers what
    nobody foresaw with a 500 in OpenAI's shape, logged with that id. `count` is told of every answer: method, route,
    status."""

    def __init__(self, app: ASGIApp, *, count: Callable[[str, str, int], object]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "websocket":
            scope.setdefault("state", {})["arrival"] = asyncio.get_running_loop().time()
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = "req_" + secrets.token_hex(12)
        scope.setdefault("state", {}).update(request_id=request_id, arrival=asyncio.get_running_loop().time())
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                MutableHeaders(raw=message["headers"])["x-request-id"] = request_id
                self._count(*_method_and_route(scope), message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGoneError:
            pass
        except Exception as error:
            logger.exception("request %s (%s %r) failed", request_id, scope["method"], scope["path"])
            if not is_started:
                await error_response(error)(scope, receive, send_with_id)


def _method_and_route(scope: Scope) -> tuple[str, str]:
    """As few values as there are methods and routes, whatever is sent."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    return method, getattr(scope.get("route"), "path", "other")


class BodyLimit:
    """Refuses bodies that are too large (413), declared or not, too slow (408), or compressed (415)."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, seconds: float) -> None:
        self._app = app
        self._max = max_body_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "identity").lower() != "identity":
            refusal = RequestRefused(415, "compressed bodies are not supported; send the JSON as it is")
            await _refuse(refusal, scope, receive, send)
        elif int(headers.get("content-length", "0")) > self._max:
            await _refuse(self._too_large(), scope, receive, send)
        else:
            await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        num_bytes = 0
        is_complete = False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def limited() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise RequestRefused(
                    408, f"the request body took longer than {self._seconds:g} s", headers={"connection": "close"}
                ) from None
            num_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if num_bytes > self._max:
                await _discard(receive, is_complete=is_complete)
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> RequestRefused:
        return RequestRefused(
            413, f"the request body is larger than {self._max} bytes; send less", headers={"connection": "close"}
        )


class RateGate:
    """Counts the POSTs of each client against its rate; what is over it gets a 429. Comes after `KeyCheck`."""

    def __init__(self, app: ASGIApp, *, rates: RateLimits) -> None:
        self._app = app
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http" and scope["method"] == "POST":
            try:
                self._rates.admit(scope["state"]["client"])
            except RequestRefused as refusal:
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _refuse(refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, and read on for a while: a connection closed under a sender takes the answer with it."""
    response = error_response(refusal)
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    await _discard(receive, is_complete=False)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive, *, is_complete: bool) -> None:
    """Read and forget the rest of a body, for `DRAIN_SECONDS` at most."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while not is_complete:
                message = await receive()
                is_complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
    except TimeoutError:
        pass
