"""All that decides which tokens of a sequence may come next: its grammar, its bad words, the budget of its thoughts.

Like a cursor's, its state is a pure function of the tokens that it has accepted. Must not know logits or sampling.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from mini_vllm.grammar.cursor import Cursor, Mask
from mini_vllm.grammar.thoughts import ThoughtBudget, ThoughtState
from mini_vllm.grammar.words import BannedWords, TokenIndex

_ALL = np.uint32(0xFFFFFFFF)


class Guide:
    """Of one sequence. What the grammar needs goes before what the words forbid, the end of a thought before both."""

    def __init__(
        self, index: TokenIndex, *, cursor: Cursor | None, words: BannedWords | None, thoughts: ThoughtBudget | None
    ) -> None:
        self.num_words = cursor.num_words if cursor is not None else index.num_words
        self._index = index
        self._cursor = cursor
        self._words = words
        self._thoughts = thoughts
        self._state = b"", None if thoughts is None else thoughts.start

    @property
    def error(self) -> str | None:
        """Why it cannot go on."""
        return None if self._cursor is None else self._cursor.error

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._cursor is not None and self._cursor.is_complete

    def fill(self, masks: Mask, *, drafts: Sequence[int] = ()) -> None:
        """Write to masks [len(drafts) + 1, words] what may follow after none, one, … all of the drafts."""
        if self._cursor is None:
            masks[:] = _ALL
        else:
            self._cursor.fill(masks, drafts=drafts)
        state = self._state
        for number, mask in enumerate(masks):
            self._restrict(mask, state)
            if number < len(drafts):
                state = self._after(state, drafts[number])

    def accept(self, token_ids: Iterable[int]) -> int:
        """Move past these tokens, until nothing may follow; how many of them belong to the text."""
        listed = list(token_ids)
        count = len(listed) if self._cursor is None else self._cursor.accept(listed)
        for token_id in listed[:count]:
            self._state = self._after(self._state, token_id)
        return count

    def _after(self, state: "tuple[bytes, ThoughtState | None]", token_id: int) -> "tuple[bytes, ThoughtState | None]":
        text, thought = state
        if self._words is not None:
            text = self._words.after(text, token_id)
        if self._thoughts is not None and thought is not None:
            thought = self._thoughts.after(thought, self._index.token_bytes(token_id))
        return text, thought

    def _restrict(self, mask: Mask, state: "tuple[bytes, ThoughtState | None]") -> None:
        text, thought = state
        forced = None
        if self._thoughts is not None and thought is not None:
            forced = self._thoughts.forced(thought)
        if forced is not None:
            mask[:] = 0
            mask[forced >> 5] = np.uint32(1 << (forced & 31))
        elif self._words is not None:
            banned = self._words.banned(text)
            kept = mask[: banned.size] & ~banned
            if kept.any():
                mask[: banned.size] = kept
