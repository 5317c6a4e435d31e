"""The requests of `/v1/responses` → chat requests. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.chat import (
    ChatMessage,
    ChatRequest,
    FunctionCall,
    FunctionDefinition,
    ToolCall,
    ToolDefinition,
)
from mini_vllm.server.protocol.common import GenerationRequest
from mini_vllm.server.protocol.responses import ResponseItem, ResponsesRequest, ResponseTool
from mini_vllm.server.translate.blocks import Block

LOGPROBS = "message.output_text.logprobs"
_TEXTS = ("input_text", "output_text", "text", "refusal")
_SHARED = tuple(
    name for name in GenerationRequest.__struct_fields__ if name not in ("n", "max_tokens", "response_format")
)


def chat_request(request: ResponsesRequest, earlier: Sequence[ChatMessage]) -> ChatRequest:
    """The same as a chat request; `earlier`: the conversation that it goes on with."""
    _refuse_unsupported(request)
    if request.max_output_tokens is not None and request.max_output_tokens < 1:
        raise InvalidParameterError(
            f"max_output_tokens is {request.max_output_tokens}; it must be at least 1", param="max_output_tokens"
        )
    shared = {name: getattr(request, name) for name in _SHARED}
    system = [] if request.instructions is None else [ChatMessage(role="system", content=request.instructions)]
    wants_logprobs = request.top_logprobs is not None or LOGPROBS in (request.include or ())
    return ChatRequest(
        **shared,
        messages=[*system, *earlier, *input_messages(request.input)],
        max_completion_tokens=request.max_output_tokens if request.max_tokens is None else request.max_tokens,
        response_format=request.response_format or _response_format(request),
        logprobs=wants_logprobs or None,
        top_logprobs=request.top_logprobs,
        tools=[_tool(index, tool) for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        chat_template_kwargs=request.chat_template_kwargs,
    )


def input_messages(given: str | Sequence[ResponseItem]) -> list[ChatMessage]:
    """The input as messages; calls of one turn are one message, thoughts of earlier turns are left out."""
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    messages: list[ChatMessage] = []
    for index, item in enumerate(given):
        message = _message(f"input[{index}]", item)
        if message is None:
            continue
        last = messages[-1] if messages else None
        if message.tool_calls and last is not None and last.role == "assistant":
            calls = [*(last.tool_calls or ()), *message.tool_calls]
            messages[-1] = ChatMessage(role="assistant", content=last.content, tool_calls=calls)
        else:
            messages.append(message)
    return messages


def _message(where: str, item: ResponseItem) -> ChatMessage | None:
    match item.type or "message":
        case "message":
            if item.role is None:
                raise InvalidParameterError(f"{where}.role is required", param=f"{where}.role")
            return ChatMessage(role=item.role, content=_text(f"{where}.content", item.content))
        case "function_call":
            call = FunctionCall(name=_given(where, "name", item.name), arguments=item.arguments or "{}")
            call_id = _given(where, "call_id", item.call_id)
            return ChatMessage(role="assistant", tool_calls=[ToolCall(id=call_id, function=call)])
        case "function_call_output":
            call_id = _given(where, "call_id", item.call_id)
            return ChatMessage(role="tool", tool_call_id=call_id, content=_text(f"{where}.output", item.output))
        case "reasoning":
            return None
        case kind:
            raise InvalidParameterError(
                f"{where}.type is {kind!r:.50}; it must be message, function_call, function_call_output or reasoning",
                param=f"{where}.type",
            )


def _given(where: str, name: str, value: str | None) -> str:
    if not value:
        raise InvalidParameterError(f"{where}.{name} is required", param=f"{where}.{name}")
    return value


def _text(where: str, content: str | Sequence[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, Mapping) else None
        if kind not in _TEXTS or not isinstance(text, str):
            raise InvalidParameterError(
                f"{where}[{index}] has type {kind!r:.50}; this server reads text only", param=f"{where}[{index}]"
            )
        texts.append(text)
    return "".join(texts)


def _tool(index: int, tool: ResponseTool) -> ToolDefinition:
    where = f"tools[{index}]"
    if tool.type != "function":
        raise InvalidParameterError(
            f"{where}.type is {tool.type!r:.50}; functions are the only tools here", param=f"{where}.type"
        )
    return ToolDefinition(
        function=FunctionDefinition(
            name=_given(where, "name", tool.name),
            description=tool.description,
            parameters=tool.parameters,
            strict=tool.strict,
        )
    )


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Here a function is named without the object around its name."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return choice
    listed = choice.get("tools")
    tools = [
        {"type": "function", "function": tool} if isinstance(tool, Mapping) and "function" not in tool else tool
        for tool in (listed if isinstance(listed, list) else ())
    ]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}


def _response_format(request: ResponsesRequest) -> dict[str, Any] | None:
    wanted = request.text.format if request.text is not None else None
    if wanted is None or wanted.get("type") != "json_schema":
        return wanted
    return {"type": "json_schema", "json_schema": {name: wanted[name] for name in wanted if name != "type"}}


def _refuse_unsupported(request: ResponsesRequest) -> None:
    if (request.n or 1) != 1:
        raise InvalidParameterError(f"n is {request.n}; a response has one answer, so leave it out", param="n")
    if request.truncation not in (None, "disabled"):
        raise InvalidParameterError(
            f"truncation is {request.truncation!r:.50}; inputs are never cut here, so it must be disabled",
            param="truncation",
        )
    if request.background:
        raise InvalidParameterError("background: responses are made while the client waits", param="background")


def answer_message(blocks: Sequence[Block]) -> ChatMessage:
    """What an answer adds to its conversation. Thoughts are not shown to the model again."""
    content = "".join(block.text for block in blocks if block.kind == "text")
    calls = [
        ToolCall(id=block.call_id, function=FunctionCall(name=block.name, arguments=block.text))
        for block in blocks
        if block.kind == "call"
    ]
    return ChatMessage(role="assistant", content=None if calls and not content else content, tool_calls=calls or None)
