"""Typed access to GGUF metadata: each read says what it expects, and what is wrong names the key.

Knows nothing of any architecture; `gguf_config` does.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.errors import UnsupportedModelError, WeightsError
from mini_vllm.weights.gguf import MetadataArray

_NULL_TOKEN = 2**32 - 1  # how some writers say "no such token"


class Fields:
    """Reads keys such as `llama.block_count` by their part after the architecture."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], architecture: str) -> None:
        self.path = path
        self._metadata = metadata
        self._prefix = architecture + "."

    def has(self, key: str) -> bool:
        """Whether the file gives this key."""
        return self._prefix + key in self._metadata

    def integer(self, key: str, *, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        """An integer in [low, high]; without a default it must be there. An array must repeat one value."""
        value = self._uniform(key)
        if value is None:
            if default is None:
                raise WeightsError(f"{self.path}: metadata has no {self._prefix}{key}; the file is incomplete")
            return default
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, value, f"an integer from {low} to {high}")
        return value

    def real(self, key: str, *, default: float | None = None, low: float = 0.0) -> float:
        """A finite number above `low`; without a default it must be there."""
        value = self._uniform(key)
        if value is None:
            if default is None:
                raise WeightsError(f"{self.path}: metadata has no {self._prefix}{key}; the file is incomplete")
            return default
        if type(value) not in (int, float) or not math.isfinite(value) or value <= low:
            raise self._wrong(key, value, f"a finite number above {low}")
        return float(value)

    def text(self, key: str, *, default: str) -> str:
        """A string."""
        value = self._metadata.get(self._prefix + key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def flags(self, key: str) -> list[bool] | int | None:
        """A list of booleans, or the integer that some writers put in its place; None if absent."""
        value = self._metadata.get(self._prefix + key)
        if isinstance(value, MetadataArray) and value.element_type not in ("string", "f32", "f64"):
            return [bool(item) for item in value.values]
        if value is None or (type(value) is int and value > 0):
            return value
        raise self._wrong(key, value, "an array of booleans or a positive integer")

    def _uniform(self, key: str) -> Any:
        value = self._metadata.get(self._prefix + key)
        if not isinstance(value, MetadataArray):
            return value
        distinct = list(dict.fromkeys(value.values if isinstance(value.values, list) else value.values.tolist()))
        if len(distinct) != 1:
            raise UnsupportedModelError(
                f"{self.path}: {self._prefix}{key} varies from layer to layer ({distinct[:4]} …), which is not "
                "supported; models with equal layers are"
            )
        return distinct[0]

    def _wrong(self, key: str, value: Any, expected: str) -> WeightsError:
        shown = f"an array of {len(value)}" if isinstance(value, MetadataArray) else repr(value)[:80]
        return WeightsError(f"{self.path}: {self._prefix}{key} is {shown}; it must be {expected}")


def read_tokenizer(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """All `tokenizer.…` entries as plain values (lists, strings, numbers), checked; None if the file has none.

    Checked: tokens and merges are strings, tokens are distinct, scores are float32 and token types integers of the
    same length, and special ids lie inside the vocabulary (an id that means "none" is left out).
    """
    found = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    if "tokenizer.ggml.tokens" not in found:
        return None
    tokens = _checked_array(path, found, "tokenizer.ggml.tokens", ("string",))
    if len(set(tokens.values)) != len(tokens):
        seen: set[str] = set()
        repeated = next(token for token in tokens.values if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise WeightsError(f"{path}: tokenizer.ggml.tokens lists {repeated!r} twice; the file is broken")
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"):
        if not isinstance(found.get(key, ""), str):
            raise WeightsError(f"{path}: {key} is {found[key]!r:.80}; it must be a string")
    for key, types in _ARRAY_TYPES.items():
        if key in found:
            length = None if key.endswith("merges") else len(tokens)
            _checked_array(path, found, key, types, length=length)
    return {key: _plain(value) for key, value in found.items() if _is_kept(path, key, value, len(tokens))}


_ARRAY_TYPES = {
    "tokenizer.ggml.scores": ("f32",),
    "tokenizer.ggml.token_type": ("i32", "u32"),
    "tokenizer.ggml.merges": ("string",),
}


def _checked_array(
    path: Path, found: Mapping[str, Any], key: str, types: tuple[str, ...], *, length: int | None = None
) -> MetadataArray:
    value = found[key]
    if not isinstance(value, MetadataArray):
        raise WeightsError(f"{path}: {key} is {value!r:.80}; it must be an array of {types[0]}")
    if value.element_type not in types:
        raise WeightsError(f"{path}: {key} is an array of {value.element_type}; it must be one of {types[0]}")
    if length is not None and len(value) != length:
        raise WeightsError(f"{path}: {key} has {len(value)} entries but there are {length} tokens")
    return value


def _is_kept(path: Path, key: str, value: Any, num_tokens: int) -> bool:
    if not key.startswith("tokenizer.ggml.") or not key.endswith("_token_id") or value in (_NULL_TOKEN, -1):
        return not key.endswith("_token_id")
    if type(value) is not int or not 0 <= value < num_tokens:
        raise WeightsError(f"{path}: {key} is {value!r:.80}; the vocabulary has the ids 0 to {num_tokens - 1}")
    return True


def _plain(value: Any) -> Any:
    if not isinstance(value, MetadataArray):
        return value
    return value.values if isinstance(value.values, list) else value.values.tolist()
