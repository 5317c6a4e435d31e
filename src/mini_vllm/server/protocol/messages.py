"""`/v1/messages`, in Anthropic's shape. Must not know the engine."""

from typing import Any, Literal, TypeAlias

import msgspec

from mini_vllm.server.protocol.common import GenerationRequest, RequestReport


class InputMessage(msgspec.Struct, kw_only=True, frozen=True):
    """A turn: text, or blocks of type text, tool_use, tool_result or thinking."""

    role: str
    content: str | list[dict[str, Any]]


class MessagesTool(msgspec.Struct, kw_only=True, frozen=True):
    """A tool that the model may use; `input_schema` is a JSON schema of an object."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesRequest(GenerationRequest, kw_only=True, frozen=True):
    """A conversation to answer."""

    messages: list[InputMessage]
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: dict[str, Any] | None = None  # type auto, any, none, or tool with a name
    thinking: dict[str, Any] | None = None  # type enabled with budget_tokens, or disabled
    chat_template_kwargs: dict[str, Any] | None = None


class CountRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A conversation whose tokens are to be counted."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class CountResponse(msgspec.Struct, kw_only=True, frozen=True):
    """How many there are."""

    input_tokens: int


class TextBlock(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="text"):
    """What the model said."""

    text: str


class ThinkingBlock(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="thinking"):
    """What it thought."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="tool_use"):
    """A tool that it uses."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens computed, found in the cache, and written."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class Message(msgspec.Struct, kw_only=True, frozen=True):
    """The answer."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET


class MessagesErrorDetail(msgspec.Struct, kw_only=True, frozen=True):
    """What went wrong."""

    type: str
    message: str


class MessagesError(msgspec.Struct, kw_only=True, frozen=True):
    """The body of an answer that is no success."""

    type: str = "error"
    error: MessagesErrorDetail
