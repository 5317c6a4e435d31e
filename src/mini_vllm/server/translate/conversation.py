"""A chat request → what the engine's chat template is given. Pure; what messages may hold is the template's to say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mini_vllm.engine.choice import Vocabulary
from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.protocol.chat import ChatMessage, ChatRequest
from mini_vllm.server.translate.tools import ToolUse
from mini_vllm.text.router import OutputRouter, Thinking
from mini_vllm.types import SamplingParams
from mini_vllm.types.params import THINK, THOUGHT

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


def template_options(request: ChatRequest, tools: ToolUse) -> dict[str, Any]:
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
    if tools.offered:
        options["tools"] = tools.offered
    return options


def make_router(
    request: ChatRequest, tools: ToolUse, *, params: SamplingParams, prompt_end: str | None
) -> OutputRouter | None:
    """What sorts one answer's text; None if all of it is content.

    `prompt_end`: the end of the prompt's text, for a model that thinks, else None. What must fit a grammar does so from
    its first token, so such answers hold no thoughts.
    """
    thinking: Thinking = "never"
    if prompt_end is not None and params.structured_outputs is None:
        is_begun = prompt_end.rstrip().endswith(THINK)
        thinking = "begun" if is_begun else "never" if request.continue_final_message else "maybe"
    parser = tools.parser()
    if parser is None and thinking == "never":
        return None
    return OutputRouter(tools=parser, thinking=thinking, at_most=tools.at_most)


def show_markers(params: SamplingParams, tools: ToolUse, tokenizer: Vocabulary, *, thinks: bool) -> SamplingParams:
    """The parameters, such that what marks calls and thoughts is in the text where the model has special tokens for it.

    Other special tokens are then in the text too.
    """
    markers = [tools.tool_format.marker] if tools.tool_format is not None and tools.offered else []
    markers += [THINK, THOUGHT] if thinks else []
    ids = [tokenizer.id_of(marker) for marker in markers if marker is not None]
    return replace(params, skip_special_tokens=False) if tokenizer.special_ids & {*ids} else params


def refuse_unsupported(request: ChatRequest) -> None:
    """Old functions and other modalities, unless the request says not to use them."""
    if request.functions and request.function_call != "none":
        raise InvalidParameterError("functions are not supported; send them as tools", param="functions")
    if others := [kind for kind in request.modalities or () if kind != "text"]:
        raise InvalidParameterError(
            f"modalities contains {others[0]!r:.50}; this server makes text only", param="modalities"
        )


def text_size(messages: Sequence[dict[str, Any]]) -> int:
    """Characters of all contents."""
    return sum(_content_size(message.get("content")) for message in messages)


def _content_size(content: Any) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text") or "") for part in content or ())
