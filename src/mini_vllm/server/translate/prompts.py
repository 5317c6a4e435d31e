"""The many shapes of a completion's prompt → a list of prompts. Pure."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mini_vllm.errors import InvalidParameterError

MAX_SEQUENCES = 4096  # prompts times choices of one request

Prompt: TypeAlias = str | tuple[int, ...]


def split_prompt(prompt: str | Sequence[Any] | None, *, n: int, name: str = "prompt") -> list[Prompt]:
    """One entry per prompt, each to be answered n times. Whether token ids exist is checked later.

    `name`: of the field that holds them.
    """
    if prompt is None:
        raise InvalidParameterError(f"{name} is required", param=name)
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidParameterError(f"{name} is empty; give at least one", param=name)
    kinds = {type(entry) for entry in prompt}
    if len(kinds) != 1:
        raise InvalidParameterError(f"{name} mixes kinds; it must be strings, token ids, or lists of ids", param=name)
    if kinds == {int}:
        return [tuple(int(token_id) for token_id in prompt)]
    if len(prompt) * n > MAX_SEQUENCES:
        raise InvalidParameterError(
            f"{len(prompt)} prompts with n {n} are {len(prompt) * n} choices; at most {MAX_SEQUENCES} are allowed",
            param=name,
        )
    return [entry if isinstance(entry, str) else tuple(entry) for entry in prompt]


def prompt_size(prompt: str | Sequence[Any] | None) -> int:
    """Characters and token ids in all, of whatever a request has as its prompt."""
    if prompt is None or isinstance(prompt, str):
        return len(prompt or "")
    return len(prompt) + sum(len(entry) for entry in prompt[:MAX_SEQUENCES] if not isinstance(entry, int))
