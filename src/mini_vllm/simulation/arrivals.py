"""One request of a traffic, before it becomes an engine's request.

This module must not know files, generators or engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Segments = tuple[tuple[int, int], ...]  # (first token id, how many): the ids count up from the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that comes at a time. Its prompt is text, a conversation, or segments of made-up token ids.

    Made-up ids may exceed any vocabulary: a virtual executor does not mind, and a real replay folds them into its own.
    """

    at: float  # seconds from the beginning
    name: str = ""
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    segments: Segments = ()
    answer_base: int = 0  # a virtual executor answers with ids that count up from here
    max_tokens: int = 16
    sampling: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    key: str = ""
    deadline: float | None = None  # seconds after its arrival

    @property
    def num_prompt(self) -> int:
        """Prompt tokens, of segments."""
        return sum(length for _, length in self.segments)


def token_ids(segments: Segments) -> tuple[int, ...]:
    """The ids of segments, one after the other."""
    if len(segments) == 1:
        first, length = segments[0]
        return tuple(range(first, first + length))
    return tuple([token_id for first, length in segments for token_id in range(first, first + length)])
