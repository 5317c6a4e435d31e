"""A chat request → what the engine's chat template is given. Pure; what messages may hold is the template's to say."""

from collections.abc import Sequence
from typing import Any

import msgspec

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.chat import ChatMessage, ChatRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_OWN_FIELDS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Plain dicts, without the fields that are null."""
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidParameterError(
                f"messages[{index}].role is {message.role!r:.50}; it must be one of {', '.join(ROLES)}",
                param=f"messages[{index}].role",
            )
    plain: list[dict[str, Any]] = msgspec.to_builtins(messages)
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


def template_options(request: ChatRequest) -> dict[str, Any]:
    """How the template is to be rendered."""
    options: dict[str, Any] = dict(request.chat_template_kwargs or {})
    if taken := [name for name in _OWN_FIELDS if name in options]:
        raise InvalidParameterError(
            f"chat_template_kwargs sets {taken[0]}, which is a field of the request itself",
            param="chat_template_kwargs",
        )
    if request.add_generation_prompt is not None:
        options["add_generation_prompt"] = request.add_generation_prompt
    if request.continue_final_message:
        options["continue_final_message"] = True
    return options


def refuse_unsupported(request: ChatRequest) -> None:
    """Tools, functions and other modalities, unless the request says not to use them."""
    if request.tools and request.tool_choice != "none":
        raise InvalidParameterError(
            "tools are not supported yet; leave them out, or use tool_choice none", param="tools"
        )
    if not request.tools and request.tool_choice not in (None, "none", "auto"):
        raise InvalidParameterError("tool_choice asks for a tool, but there are no tools", param="tool_choice")
    if request.functions and request.function_call != "none":
        raise InvalidParameterError("functions are not supported; leave them out", param="functions")
    if others := [kind for kind in request.modalities or () if kind != "text"]:
        raise InvalidParameterError(
            f"modalities contains {others[0]!r:.50}; this server makes text only", param="modalities"
        )


def text_size(messages: Sequence[dict[str, Any]]) -> int:
    """Characters of all contents."""
    return sum(_content_size(message.get("content")) for message in messages)


def _content_size(content: Any) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text") or "") for part in content or ())
