"""The many shapes of a completion's prompt → a list of prompts. Pure."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mini_vllm.errors import InvalidParameterError

MAX_PROMPTS = 2048

Prompt: TypeAlias = str | tuple[int, ...]


def split_prompt(prompt: str | Sequence[Any] | None) -> list[Prompt]:
    """One entry per prompt: a string, token ids, or a list of either. Whether the ids exist is checked later."""
    if prompt is None:
        raise InvalidParameterError("prompt is required", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidParameterError("prompt is empty; give at least one", param="prompt")
    kinds = {type(entry) for entry in prompt}
    if len(kinds) != 1:
        raise InvalidParameterError(
            "prompt mixes kinds; it must be strings, token ids, or lists of ids", param="prompt"
        )
    if kinds == {int}:
        return [tuple(int(token_id) for token_id in prompt)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidParameterError(
            f"prompt has {len(prompt)} entries; at most {MAX_PROMPTS} are allowed", param="prompt"
        )
    return [entry if isinstance(entry, str) else tuple(entry) for entry in prompt]
