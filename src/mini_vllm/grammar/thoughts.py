"""Ends thoughts that are too long. Must not know logits, sampling or chat templates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mini_vllm.types.params import THINK, THOUGHT

_THINK, _THOUGHT = THINK.encode(), THOUGHT.encode()
_WHITESPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class ThoughtState:
    """How far a sequence has come."""

    phase: Literal["opening", "thinking", "closing", "over"]
    text: bytes = b""  # of which a tag may be a part
    count: int = 0  # tokens of the thought, or of its end


class ThoughtBudget:
    """Of one sequence: after so many tokens between the tags, the closing tag is all that may follow."""

    def __init__(self, budget: int, *, closing_ids: Sequence[int], prompt_end: bytes) -> None:
        """`prompt_end`: the end of the prompt's text, in which a thought may have begun."""
        self._budget = budget
        self._closing_ids = closing_ids
        is_begun = prompt_end.rstrip(_WHITESPACE).endswith(_THINK)
        self.start = self._checked(ThoughtState("thinking")) if is_begun else ThoughtState("opening")

    def after(self, state: ThoughtState, text: bytes) -> ThoughtState:
        """The state behind one more token of this text."""
        match state.phase:
            case "opening":
                text = (state.text + text).lstrip(_WHITESPACE)
                if text.startswith(_THINK):
                    return self._checked(ThoughtState("thinking", text[len(_THINK) :]))
                return ThoughtState("opening", text) if _THINK.startswith(text) else ThoughtState("over")
            case "thinking":
                text = state.text[-len(_THOUGHT) :] + text
                return self._checked(ThoughtState("thinking", text, state.count + 1))
            case "closing":
                is_done = state.count + 1 == len(self._closing_ids)
                return ThoughtState("over") if is_done else replace(state, count=state.count + 1)
            case _:
                return state

    def forced(self, state: ThoughtState) -> int | None:
        """The only token that may come next; None: any may."""
        return self._closing_ids[state.count] if state.phase == "closing" else None

    def _checked(self, state: ThoughtState) -> ThoughtState:
        if _THOUGHT in state.text:
            return ThoughtState("over")
        return ThoughtState("closing") if state.count >= self._budget and self._closing_ids else state
