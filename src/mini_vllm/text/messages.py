"""Chat messages as clients send them, made into what templates expect.

OpenAI clients send text as a string, as parts, or as null; tool arguments as a JSON string. Templates want strings
(or parts), never None, and arguments as a mapping (or a string). Must not know Jinja or tokenizers.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import ChatTemplateError

_TEXT_TYPES = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MAY_BE_EMPTY = frozenset({"assistant", "tool", "function"})


class ToolArguments(dict[str, Any]):
    """Arguments of a tool call that are a mapping and, printed or added to text, their JSON.

    So templates of both kinds work: `arguments | tojson`, `arguments.items()`, and `'…' + arguments`.
    """

    def __init__(self, values: Mapping[str, Any], *, text: str | None = None) -> None:
        super().__init__(values)
        self._text = json.dumps(dict(values), ensure_ascii=False) if text is None else text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> str:
        return self._text + str(other)

    def __radd__(self, other: Any) -> str:
        return str(other) + self._text


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a template can take."""

    parts: bool = False  # it walks over content parts and cannot take text
    null: bool = False  # it asks itself whether the content is none
    developer: bool = False  # it knows the role


def prepare_messages(messages: Iterable[Mapping[str, Any]], wishes: Wishes = Wishes()) -> list[dict[str, Any]]:
    """Copies of the messages for a template (`ChatTemplateError` names the message at fault).

    Null content becomes empty text for assistant and tool messages (it stays null beside tool calls for a template
    that looks for that) and is refused for others. Text parts are joined by newlines, unless the template itself walks
    over parts. Keys whose value is null are left out. A `developer` message becomes a `system` one, unless the template
    knows the role.
    """
    prepared = [_prepare(index, message, wishes) for index, message in enumerate(messages)]
    if not prepared:
        raise ChatTemplateError("messages is empty; send at least one message", param="messages")
    for message in prepared:
        if message["role"] == "developer" and not wishes.developer:
            message["role"] = "system"
    return prepared


def _prepare(index: int, message: Mapping[str, Any], wishes: Wishes) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _fault(index, f"is {type(message).__name__}; it must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _fault(index, f"has role {role!r}; it must be text such as user, assistant, system or tool")
    prepared = {key: value for key, value in message.items() if value is not None}
    text = _text(index, role, message.get("content"))
    prepared["content"] = [{"type": "text", "text": text}] if wishes.parts else text
    if wishes.null and not text and prepared.get("tool_calls"):
        prepared["content"] = None
    if "tool_calls" in prepared:
        prepared["tool_calls"] = _tool_calls(index, prepared["tool_calls"])
    return prepared


def _text(index: int, role: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role in _MAY_BE_EMPTY:
            return ""
        raise _fault(index, f"({role}) has no content; send text")
    if not isinstance(content, list | tuple):
        raise _fault(index, f"has content of type {type(content).__name__}; send text or a list of text parts")
    return "\n".join(_part(index, part) for part in content)


def _part(index: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    field = _TEXT_TYPES.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise _fault(index, f"has a content part of type {kind!r}; this engine reads text parts only")
    text = part.get(field)
    if not isinstance(text, str):
        raise _fault(index, f"has a {kind} part whose {field} is {type(text).__name__}; it must be text")
    return text


def _tool_calls(index: int, calls: Any) -> list[Any]:
    if not isinstance(calls, list | tuple):
        raise _fault(index, f"has tool_calls of type {type(calls).__name__}; it must be a list")
    return [_tool_call(index, call) for call in calls]


def _tool_call(index: int, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise _fault(index, f"has a tool call of type {type(call).__name__}; it must be an object")
    prepared = dict(call)
    if isinstance(function := prepared.get("function"), Mapping):
        prepared["function"] = {**function, "arguments": _arguments(function.get("arguments"))}
    elif "arguments" in prepared:
        prepared["arguments"] = _arguments(prepared["arguments"])
    return prepared


def _arguments(value: Any) -> Any:
    """A mapping that also acts as text; text that is no JSON object stays as it is."""
    if value is None or value == "":
        return ToolArguments({})
    if isinstance(value, Mapping):
        return ToolArguments(value)
    if isinstance(value, str):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value
        if isinstance(decoded, dict):
            return ToolArguments(decoded, text=value)
    return value


def _fault(index: int, what: str) -> ChatTemplateError:
    return ChatTemplateError(f"messages[{index}] {what}", param="messages")
