"""`/v1/responses`. Must not know the engine."""

from typing import Any, TypeAlias

import msgspec

from mini_vllm.server.protocol.chat import TokenLogprob
from mini_vllm.server.protocol.common import GenerationRequest, RequestReport


class ResponseItem(msgspec.Struct, kw_only=True, frozen=True):
    """An entry of the input: a message, a call that the model made, what a call gave, or what the model thought."""

    type: str | None = None  # message (also if absent), function_call, function_call_output, reasoning
    role: str | None = None
    content: str | list[Any] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Any] | None = None


class ResponseTool(msgspec.Struct, kw_only=True, frozen=True):
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What the text must look like."""

    format: dict[str, Any] | None = None  # type text, json_object, or json_schema with name, schema and strict


class ResponsesRequest(GenerationRequest, kw_only=True, frozen=True):
    """A conversation to go on with, by itself or after an earlier response."""

    input: str | list[ResponseItem]
    instructions: str | None = None  # a system message in front, for this response only
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None  # keep this response to go on from, unless false
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    background: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OutputText(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    role: str = "assistant"
    status: str
    content: list[OutputText]


class OutputCall(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="function_call"):
    """A function that it called."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


class ReasoningText(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="reasoning_text"):
    """A thought."""

    text: str


class OutputReasoning(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="reasoning"):
    """What the model thought."""

    id: str
    summary: list[Any] = []
    content: list[ReasoningText]
    status: str


OutputItem: TypeAlias = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Where input tokens came from."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """What output tokens were for; thoughts are not counted apart."""

    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens read and written."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response ends early."""

    reason: str


class ResponseFailure(msgspec.Struct, kw_only=True, frozen=True):
    """Why there is none."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True, frozen=True):
    """The answer, as far as it has come."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    parallel_tool_calls: bool = True
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[ResponseTool] = []
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any]
    metadata: dict[str, Any] = {}
    truncation: str = "disabled"
    store: bool = True
    background: bool = False
    usage: ResponsesUsage | None = None
    mini_vllm: RequestReport | msgspec.UnsetType = msgspec.UNSET
