"""`/v1/chat/completions`. Must not know the engine."""

from typing import Any

import msgspec

from mini_vllm.server.protocol.common import GenerationRequest, RequestReport, Usage


class ContentPart(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True, frozen=True):
    """A function that the assistant called; `arguments` is JSON in a string."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, kw_only=True, frozen=True):
    """A tool that the assistant called."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct, kw_only=True, frozen=True):
    """One turn of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest, kw_only=True, frozen=True):
    """A conversation to answer."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TopLogprob(msgspec.Struct, kw_only=True, frozen=True):
    """A token that could have stood here."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, kw_only=True, frozen=True):
    """A token of the answer and its most likely rivals."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, kw_only=True, frozen=True):
    """Log-probabilities of the tokens whose text is in the content beside it."""

    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct, kw_only=True, frozen=True):
    """The answer's text."""

    role: str = "assistant"
    content: str | None
    refusal: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True, frozen=True):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None


class ChatResponse(msgspec.Struct, kw_only=True, frozen=True):
    """The whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, kw_only=True, frozen=True):
    """What is new of an answer; `role` is in the first of a choice only."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str


class ChatChunkChoice(msgspec.Struct, kw_only=True, frozen=True):
    """What is new of one choice."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True, frozen=True):
    """One event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str | None = None
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET
