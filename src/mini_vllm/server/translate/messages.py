"""The requests of `/v1/messages` → chat requests. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

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
from mini_vllm.server.protocol.messages import CountRequest, InputMessage, MessagesRequest, MessagesTool

_SHARED = tuple(
    name
    for name in GenerationRequest.__struct_fields__
    if name not in ("n", "max_tokens", "stop", "thinking_token_budget")
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_request(request: MessagesRequest) -> ChatRequest:
    """The same as a chat request."""
    if request.max_tokens is None:
        raise InvalidParameterError("max_tokens is required", param="max_tokens")
    if request.max_tokens < 1:
        raise InvalidParameterError(f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens")
    if (request.n or 1) != 1:
        raise InvalidParameterError(f"n is {request.n}; a message is one answer, so leave it out", param="n")
    choice = request.tool_choice or {}
    messages = chat_messages(request)
    return ChatRequest(
        **{name: getattr(request, name) for name in _SHARED},
        messages=messages,
        continue_final_message=_is_begun(messages),
        max_completion_tokens=request.max_tokens,
        stop=request.stop_sequences or request.stop,
        tools=_tools(request.tools),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") is True else None,
        thinking_token_budget=_budget(request.thinking) or request.thinking_token_budget,
        chat_template_kwargs=request.chat_template_kwargs,
    )


def count_request(request: CountRequest) -> ChatRequest:
    """As much of a chat request as decides its prompt."""
    messages = chat_messages(request)
    return ChatRequest(
        model=request.model,
        messages=messages,
        continue_final_message=_is_begun(messages),
        tools=_tools(request.tools),
        tool_choice=_tool_choice(request.tool_choice or {}),
    )


def _is_begun(messages: Sequence[ChatMessage]) -> bool | None:
    """Whether a text of the assistant stands last: in this API it is the start of the answer, which goes on with it."""
    last = messages[-1] if messages else None
    return (last is not None and last.role == "assistant" and bool(last.content) and not last.tool_calls) or None


def chat_messages(request: MessagesRequest | CountRequest) -> list[ChatMessage]:
    """The system prompt and all turns; the results of tools are messages of their own."""
    messages: list[ChatMessage] = []
    if request.system:
        messages.append(ChatMessage(role="system", content=_text("system", request.system)))
    for index, message in enumerate(request.messages):
        messages += _turn(f"messages[{index}]", message)
    return messages


def _turn(where: str, message: InputMessage) -> list[ChatMessage]:
    if message.role not in ("user", "assistant", "system"):
        raise InvalidParameterError(
            f"{where}.role is {message.role!r:.50}; it must be user or assistant", param=f"{where}.role"
        )
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results: list[ChatMessage] = []
    calls: list[ToolCall] = []
    texts: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        place = f"{where}.content[{index}]"
        match block.get("type"):
            case "text":
                texts.append(block)
            case "tool_use":
                calls.append(_call(place, block))
            case "tool_result":
                content = _text(f"{place}.content", block.get("content") or "")
                results.append(
                    ChatMessage(role="tool", tool_call_id=_field(place, block, "tool_use_id"), content=content)
                )
            case "thinking" | "redacted_thinking":
                pass  # thoughts are not shown to the model again
            case kind:
                raise InvalidParameterError(
                    f"{place}.type is {kind!r:.50}; this server reads text, tool_use, tool_result and thinking",
                    param=f"{place}.type",
                )
    text = _text(where, texts)
    if not text and not calls and results:
        return results
    return [
        *results,
        ChatMessage(role=message.role, content=None if calls and not text else text, tool_calls=calls or None),
    ]


def _call(where: str, block: Mapping[str, Any]) -> ToolCall:
    arguments = msgspec.json.encode(block.get("input") or {}).decode()
    function = FunctionCall(name=_field(where, block, "name"), arguments=arguments)
    return ToolCall(id=_field(where, block, "id"), function=function)


def _field(where: str, block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidParameterError(f"{where}.{name} is required", param=f"{where}.{name}")
    return value


def _text(where: str, content: Any) -> str:
    """A text, or the texts of blocks of that type."""
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        text = block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidParameterError(
                f"{where}[{index}] is no text block; this server reads text only", param=f"{where}[{index}]"
            )
        texts.append(text)
    return "\n".join(texts)


def _tools(tools: Sequence[MessagesTool] | None) -> list[ToolDefinition] | None:
    found = []
    for index, tool in enumerate(tools or ()):
        if tool.type not in (None, "custom"):
            raise InvalidParameterError(
                f"tools[{index}].type is {tool.type!r:.50}; tools of one's own are the only ones here",
                param=f"tools[{index}].type",
            )
        function = FunctionDefinition(
            name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
        )
        found.append(ToolDefinition(function=function))
    return found or None


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type", "auto")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES:
        raise InvalidParameterError(
            f"tool_choice has type {kind!r:.50}; it must be auto, any, tool or none", param="tool_choice"
        )
    return _CHOICES[kind]


def _budget(thinking: Mapping[str, Any] | None) -> int | None:
    """Of thoughts, in tokens."""
    budget = (thinking or {}).get("budget_tokens")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise InvalidParameterError(
            f"thinking.budget_tokens is {budget!r:.50}; it must be a number of tokens", param="thinking"
        )
    return budget
