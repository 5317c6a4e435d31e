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


class FunctionDefinition(msgspec.Struct, kw_only=True, frozen=True):
    """A function that the assistant may call; `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True, frozen=True):
    """A tool; functions are the only kind."""

    function: FunctionDefinition
    type: str = "function"


class ChatMessage(msgspec.Struct, kw_only=True, frozen=True):
    """One turn of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(GenerationRequest, kw_only=True, frozen=True):
    """A conversation to answer."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None  # the same as max_tokens, and goes before it
    logprobs: bool | None = None
    top_logprobs: int | None = None  # 0 to 20, with logprobs
    tools: list[ToolDefinition] | None = None  # functions, 128 at most
    tool_choice: str | dict[str, Any] | None = None  # none, auto, required, or {"type": "function", "function": …}
    parallel_tool_calls: bool | None = None  # false: one call at most
    functions: list[Any] | None = None  # only with function_call none: send tools instead
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None  # only text
    add_generation_prompt: bool | None = None  # begin the assistant's turn, unless false
    continue_final_message: bool | None = None  # go on with the last message instead of answering it
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the template


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
    """The answer: its text, what the model thought before it, and the tools that it calls."""

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


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


class FunctionDelta(msgspec.Struct, kw_only=True, frozen=True):
    """The name in the first delta of a call, then more and more of the arguments' JSON."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, kw_only=True, frozen=True):
    """What is new of one call; `id` and `type` are in its first only."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True, frozen=True):
    """What is new of an answer; `role` is in the first of a choice only."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET


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
