"""Prompts of `mini-vllm batch`, out of a file.

A `.json` file holds a list, or an object with `prompts` or `requests`; a `.jsonl` file one entry a line; any other
file one prompt a line. An entry is a text, a list of token ids, or an object with `prompt` or `messages` (OpenAI's
batch lines with `body` too), an optional `id`, and sampling parameters of its own. Times of arrival are ignored: a
batch runs as fast as it can. Must not know engines.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mini_vllm.errors import InvalidParameterError, UserError
from mini_vllm.types import SamplingParams

_ALIASES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens"}
_SAMPLING = frozenset(entry.name for entry in fields(SamplingParams))
_CONTENT = frozenset({"prompt", "messages", "text", "prompt_token_ids"})
_KNOWN = _CONTENT | {"id", "custom_id", "request_id", "body", "method", "url", "model", "stream", "name"}


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One prompt: text, token ids or messages, and what differs from the command's sampling parameters."""

    id: str
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The prompt in one short line."""
        shown = self.messages[-1].get("content") if self.messages else self.prompt
        text = " ".join(str(shown).split())
        return text if len(text) <= 60 else text[:59] + "~"


def read_batch(source: str, text: str) -> list[BatchItem]:
    """The items of a file's text; `source` is its name. `InvalidParameterError` names the entry at fault."""
    suffix = Path(source).suffix.lower()
    if suffix == ".json" or (suffix not in (".jsonl", ".ndjson", ".txt") and text.lstrip()[:1] == "["):
        entries = _json_entries(source, text)
    elif suffix in (".jsonl", ".ndjson") or text.lstrip()[:1] == "{":
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        entries = [_json(f"{source} line {number}", line) for number, line in lines]
    else:
        entries = [line for line in text.splitlines() if line.strip()]
    if not entries:
        raise InvalidParameterError(f"{source} has no prompts", param="input")
    return [_item(index, entry) for index, entry in enumerate(entries)]


def _json_entries(source: str, text: str) -> list[Any]:
    content = _json(source, text)
    if isinstance(content, Mapping):
        content = next((content[key] for key in ("prompts", "requests") if key in content), [content])
    if not isinstance(content, list):
        raise InvalidParameterError(f"{source} holds {type(content).__name__}; it must be a list", param="input")
    return content


def _json(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(f"{place} is not JSON: {error}", param="input") from None


def _item(index: int, entry: Any) -> BatchItem:
    if isinstance(entry, str | list):
        return BatchItem(str(index), _prompt(index, entry))
    if not isinstance(entry, Mapping):
        raise InvalidParameterError(
            f"entry {index} is {type(entry).__name__}; write a text, token ids or an object", param="input"
        )
    body = entry["body"] if isinstance(entry.get("body"), Mapping) else entry
    name = next((entry[key] for key in ("id", "custom_id", "request_id") if entry.get(key) is not None), index)
    sampling = _own_sampling(index, body)
    if isinstance(messages := body.get("messages"), list):
        return BatchItem(str(name), messages=messages, sampling=sampling)
    prompt = next((body[key] for key in ("prompt", "text", "prompt_token_ids") if body.get(key) is not None), None)
    return BatchItem(str(name), _prompt(index, prompt), sampling=sampling)


def _prompt(index: int, value: Any) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token_id) is int for token_id in value):
        return value
    raise InvalidParameterError(
        f"entry {index} has no prompt: write a text, a list of token ids, or an object with prompt or messages",
        param="input",
    )


def _own_sampling(index: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters of this entry, checked; a name that nearly is one is refused rather than ignored."""
    found = {}
    for key, value in body.items():
        name = _ALIASES.get(key, key)
        if name in _SAMPLING:
            if value is not None:
                found[name] = value
        elif key not in _KNOWN and (near := difflib.get_close_matches(key, _SAMPLING, n=1, cutoff=0.85)):
            raise InvalidParameterError(f"entry {index} has {key!r}; did you mean {near[0]}?", param="input")
    try:
        SamplingParams(**found)
    except (UserError, TypeError) as error:
        raise InvalidParameterError(f"entry {index}: {error}", param="input") from None
    return found
