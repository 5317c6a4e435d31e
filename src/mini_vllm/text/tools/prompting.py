"""Tools for models whose chat template knows none: described in the system message, and in the conversation as text.

Pure. Must not know templates.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mini_vllm.text.tools.formats import Tool, ToolFormat

_EXAMPLE = ("NAME", '{"ARGUMENT": VALUE}')


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """The conversation with tools in words.

    The first system message gets a description of the tools behind its text, or becomes one. Calls of the assistant
    are written into its content, and results of tools become messages of the user, in `<tool_response>` tags.
    """
    plain = list(_as_text(messages, tool_format))
    if not tools:
        return plain
    words = describe(tools, tool_format)
    if plain and plain[0].get("role") in ("system", "developer"):
        plain[0] = {**plain[0], "content": _joined(_text_of(plain[0].get("content")), words)}
    else:
        plain.insert(0, {"role": "system", "content": words})
    return plain


def describe(tools: Sequence[Tool], tool_format: ToolFormat) -> str:
    """What a model is told about its tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You have these tools, one JSON description a line:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To use a tool, answer with nothing but a call, in exactly this form:\n"
        f"{tool_format.write([_EXAMPLE])}\n"
        "Its result is given to you in <tool_response> tags. If no tool helps, answer in words."
    )


def _as_text(messages: Sequence[Mapping[str, Any]], tool_format: ToolFormat) -> Iterator[dict[str, Any]]:
    results: list[str] = []
    for message in messages:
        if message.get("role") in ("tool", "function"):
            results.append(f"<tool_response>\n{_text_of(message.get('content'))}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        if calls := message.get("tool_calls"):
            written = tool_format.write([_call(call) for call in calls])
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            yield {**rest, "content": _joined(_text_of(message.get("content")), written)}
        else:
            yield dict(message)
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _call(call: Any) -> tuple[str, str]:
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    arguments = function.get("arguments") or "{}"
    return str(function.get("name")), arguments if isinstance(arguments, str) else json.dumps(
        dict(arguments), ensure_ascii=False
    )


def _text_of(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(str(part.get("text") or "") if isinstance(part, Mapping) else str(part) for part in content)


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
