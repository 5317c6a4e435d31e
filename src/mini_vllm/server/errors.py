"""Every failure in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, with the status that SDKs expect.

Bad input is 400, never 422; nothing is ever HTML. Must not know the routes.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from mini_vllm.errors import (
    ContextLengthError,
    EngineBusyError,
    EngineDeadError,
    MiniVLLMError,
    ModelNotFoundError,
    UserError,
)
from mini_vllm.server.protocol.common import ErrorDetail, ErrorResponse

logger = logging.getLogger(__name__)

BUSY_SECONDS, DEAD_SECONDS = "1", "2"  # when to come back: to a full queue, to an engine that is being replaced
CLIENT_CLOSED = 499  # logged only: nobody is there to read it
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large", 415: "unsupported_media_type"}


class RequestRefused(MiniVLLMError):
    """A request refused for its HTTP form: size, type, pace."""

    def __init__(self, status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


class ServerStoppingError(EngineDeadError):
    """The server is shutting down."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; send the request again when it is back")


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


def status_of(error: BaseException) -> int:
    """The HTTP status that says what this error is."""
    match error:
        case RequestRefused():
            return error.status
        case HTTPException():
            return error.status_code
        case ModelNotFoundError():
            return 404
        case UserError():
            return 400
        case EngineBusyError():
            return 429
        case EngineDeadError():
            return 503
        case ClientGoneError() | ClientDisconnect():
            return CLIENT_CLOSED
        case _:
            return 500


def error_body(error: BaseException) -> ErrorResponse:
    """The error as OpenAI writes it. Says nothing of the inside when the fault is ours."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code: Any = getattr(error, "code", None) or _CODES.get(status)
    param = error.param if isinstance(error, UserError) else None
    return ErrorResponse(ErrorDetail(message=_message(error, status), type=kind, param=param, code=code))


def error_response(error: BaseException) -> Response:
    """The error as a plain HTTP answer."""
    status = status_of(error)
    headers = dict(getattr(error, "headers", None) or {})
    if isinstance(error, EngineBusyError | EngineDeadError):
        headers["retry-after"] = BUSY_SECONDS if isinstance(error, EngineBusyError) else DEAD_SECONDS
    body = msgspec.json.encode(error_body(error))
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Answer errors raised in routes; what is not foreseen here is answered by the outermost middleware."""
    for kind in (MiniVLLMError, HTTPException, ClientGoneError, ClientDisconnect):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    if status_of(error) >= 500:
        logger.error("%s %r: %s", request.method, request.url.path, error)
    return error_response(error)


def _message(error: BaseException, status: int) -> str:
    if isinstance(error, HTTPException):
        return _http_message(error)
    if isinstance(error, ContextLengthError) and "maximum context length" not in str(error):
        return f"{error} (maximum context length exceeded)"  # clients look for these words
    if status >= 500 and not isinstance(error, MiniVLLMError):
        return "the server failed while answering this request; its log says why"
    return str(error)


def _http_message(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "no such URL; see /docs for what there is"
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            return f"this URL does not take that method; use {allowed}"
        case _:
            return str(error.detail)
