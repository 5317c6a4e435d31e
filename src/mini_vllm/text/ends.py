"""Which tokens end a generation: the union of all places where a model says so.

Must not know requests; `ignore_eos` and stop tokens of a request are somebody else's.
"""

from collections.abc import Mapping, Set
from typing import Any, Protocol

from mini_vllm.errors import ChatTemplateError, WeightsError
from mini_vllm.text.chat import ChatTemplate

_PROBE = "probe-answer"


class Ending(Protocol):
    """What this module asks of a tokenizer."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What the tokenizer's files call the end."""

    @property
    def special_ids(self) -> Set[int]:
        """Ids of special tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids."""


def eos_token_ids(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer: Ending,
    chat_template: ChatTemplate | None = None,
) -> tuple[int, ...]:
    """Ids that end a generation, sorted: config.json, generation_config.json, tokenizer, chat template.

    GGUF's eos, eot and eom ids arrive through the tokenizer. Of the chat template, the special token that it writes
    right after an assistant's text counts. Raises `WeightsError` when a file's entry is no token id.
    """
    found = set(tokenizer.eos_token_ids)
    text_config = config.get("text_config")
    for place, source in (("config", config), ("config", text_config), ("generation_config", generation_config)):
        if isinstance(source, Mapping):
            found.update(_ids(place, source.get("eos_token_id")))
    if chat_template and (end := end_of_turn_id(tokenizer, chat_template)) is not None:
        found.add(end)
    return tuple(sorted(found))


def end_of_turn_id(tokenizer: Ending, chat_template: ChatTemplate) -> int | None:
    """The special token that the template writes right after an assistant's text, or None."""
    messages = [{"role": "user", "content": "probe question"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = chat_template.render(messages, add_generation_prompt=False)
    except ChatTemplateError:
        return None
    _, shown, after = text.rpartition(_PROBE)
    ids = tokenizer.encode(after, add_special_tokens=False) if shown else []
    return ids[0] if ids and ids[0] in tokenizer.special_ids else None


def _ids(place: str, value: Any) -> list[int]:
    if value is None:
        return []
    ids = list(value) if isinstance(value, list | tuple) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise WeightsError(f"eos_token_id in {place} is {value!r}; it must be a token id or a list of them")
    return [token_id for token_id in ids if token_id >= 0]
