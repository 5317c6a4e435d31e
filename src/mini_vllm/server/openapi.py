"""The OpenAPI page from the structs of `protocol`. Must not know the routes' code."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from mini_vllm.server.protocol.benchmark import BenchmarkRequest, BenchmarkResponse, RecordFiles
from mini_vllm.server.protocol.chat import ChatRequest, ChatResponse
from mini_vllm.server.protocol.common import ErrorResponse
from mini_vllm.server.protocol.completions import CompletionRequest, CompletionResponse
from mini_vllm.server.protocol.embeddings import EmbeddingRequest, EmbeddingResponse
from mini_vllm.server.protocol.generate import EVENTS, GenerateRequest
from mini_vllm.server.protocol.messages import CountRequest, CountResponse, Message, MessagesRequest
from mini_vllm.server.protocol.models import Health, MetricsPage, ModelCard, ModelList, Stats, Version
from mini_vllm.server.protocol.responses import ResponseObject, ResponsesRequest
from mini_vllm.server.protocol.text import (
    ApplyTemplateRequest,
    ApplyTemplateResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
)

_TYPES = (
    ApplyTemplateRequest,
    ApplyTemplateResponse,
    BenchmarkRequest,
    BenchmarkResponse,
    ChatRequest,
    ChatResponse,
    CompletionRequest,
    CompletionResponse,
    CountRequest,
    CountResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    ErrorResponse,
    GenerateRequest,
    *EVENTS,
    Health,
    Message,
    MessagesRequest,
    MetricsPage,
    ModelCard,
    ModelList,
    RecordFiles,
    ResponseObject,
    ResponsesRequest,
    Stats,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
    Version,
)
_REFERENCE = "#/components/schemas/{name}"
_FAILURES = {
    400: "The request is wrong; the message says how.",
    401: "There is no valid API key.",
    403: "This host or origin may not ask.",
    404: "There is no such model or URL.",
    405: "The URL does not take this method.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests wait; try again later.",
    500: "The server failed.",
    504: "The time of the request is up.",
    503: "The server cannot answer now.",
}


def describe(
    request: type | None, response: type | None, *, streams: bool = False, also: str | None = None
) -> dict[str, Any]:
    """Keyword arguments of a route: what it reads, what it answers (`also`: or text of this kind), how it fails."""
    content: dict[str, Any] = {} if response is None else {"application/json": {"schema": _schema(response)}}
    for kind in (*(("text/event-stream",) if streams else ()), *((also,) if also else ())):
        content[kind] = {"schema": {"type": "string"}}
    extra: dict[str, Any] = {"responses": {"200": {"description": "The answer.", "content": content}}}
    for status, text in _FAILURES.items():
        if request is not None or status in (400, 401, 403, 404, 405, 500, 503):
            failure = Health if response is Health and status == 503 else ErrorResponse
            extra["responses"][str(status)] = {
                "description": text,
                "content": {"application/json": {"schema": _schema(failure)}},
            }
    if request is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": _schema(request)}}}
    return {"response_model": None, "openapi_extra": extra}


def install(app: FastAPI) -> None:
    """Serve the page with our schemas, and without the framework's own error shape."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            page = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, schemas = msgspec.json.schema_components(_TYPES, ref_template=_REFERENCE)
            _complete(schemas)
            page["components"] = {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
            page["security"] = [{}, {"key": []}]  # a key, if the server has any
            for operations in page["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            app.openapi_schema = page
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(node: Any) -> None:
    """Say of lists of anything that they are: generators of clients want to read it."""
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _complete(inner)
    if isinstance(node, dict) and node.get("type") == "array" and "prefixItems" not in node:
        node.setdefault("items", {})


def _schema(kind: type) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}
