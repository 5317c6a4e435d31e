"""`/generate` and `/ws/generate`: a prompt in, small events out. Must not know the engine."""

from typing import Literal, TypeAlias

import msgspec

from mini_vllm.server.protocol.common import GenerationRequest, RequestReport, Usage


class GenerateRequest(GenerationRequest, kw_only=True, frozen=True):
    """A prompt to continue, with all sampling fields of the other endpoints; temperature is 0.8 and top_p 0.9."""

    prompt: str | list[int]
    max_new_tokens: int | None = None  # 200


class GenerateMessage(GenerateRequest, kw_only=True, frozen=True):
    """A request on a WebSocket. Events carry its `request_id`; without one, the server chooses."""

    type: Literal["generate"] = "generate"
    request_id: str | None = None


class CancelMessage(msgspec.Struct, kw_only=True, frozen=True):
    """End a request of the same WebSocket."""

    type: Literal["cancel"]
    request_id: str


class StartEvent(msgspec.Struct, kw_only=True, frozen=True):
    """The first event of a request."""

    type: Literal["start"] = "start"
    request_id: str


class TokenEvent(msgspec.Struct, kw_only=True, frozen=True):
    """New text. Events on a WebSocket say whose."""

    type: Literal["token"] = "token"
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    text: str


class DoneEvent(msgspec.Struct, kw_only=True, frozen=True):
    """The last event of a request that did not fail."""

    type: Literal["done"] = "done"
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str
    usage: Usage
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET


class ErrorEvent(msgspec.Struct, kw_only=True, frozen=True):
    """The last event of a request that failed, or on a WebSocket what was wrong with a message."""

    type: Literal["error"] = "error"
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    message: str
    code: str | None = None


Event: TypeAlias = StartEvent | TokenEvent | DoneEvent | ErrorEvent
EVENTS = (StartEvent, TokenEvent, DoneEvent, ErrorEvent)
