"""A compiled grammar, shared, and the cursors in it, one per sequence.

A cursor's state is a pure function of the tokens that it has accepted, so preemption and what else is in the batch
cannot change it. Must not know logits, sampling or the scheduler.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mini_vllm.grammar.sources import one_line

if TYPE_CHECKING:
    from llguidance import LLMatcher

Mask = npt.NDArray[np.uint32]  # [words]: bit i % 32 of word i // 32 says whether token i may come next


class Grammar:
    """A grammar compiled for one vocabulary. Threads may share it."""

    def __init__(self, matcher: "LLMatcher", *, num_words: int) -> None:
        self.num_words = num_words  # of a mask
        self._matcher = matcher
        self._lock = threading.Lock()

    def start(self) -> "Cursor":
        """A cursor at the beginning, independent of all others."""
        with self._lock:
            return Cursor(self._matcher.deep_copy(), num_words=self.num_words)


class Cursor:
    """Where one sequence is in its grammar.

    Attributes:
        error: why it cannot go on (the grammar became too complex, or a token was accepted that does not fit), or None.
    """

    def __init__(self, matcher: "LLMatcher", *, num_words: int) -> None:
        self.num_words = num_words
        self.error: str | None = None
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete and nothing may follow it."""
        return self.error is None and self._matcher.is_stopped()

    def fill(self, masks: Mask, *, drafts: Sequence[int] = ()) -> None:
        """Write to masks [len(drafts) + 1, words] what may follow after none, one, … all of the drafts.

        Behind a draft that does not fit the masks are empty; the cursor stays where it was.
        """
        num_taken = 0
        for number, mask in enumerate(masks):
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if number == len(drafts):
                break
            if not allows(mask, drafts[number]) or self._matcher.is_stopped():
                masks[number + 1 :] = 0
                break
            self._matcher.consume_token(drafts[number])
            num_taken += 1
        if num_taken:
            self._matcher.rollback(num_taken)
        self._check()

    def accept(self, token_ids: Iterable[int]) -> int:
        """Move past these tokens, until the text is complete; how many of them belong to it.

        One that the grammar does not allow sets `error`.
        """
        num_taken = 0
        for token_id in token_ids:
            if self.is_complete:
                break
            num_taken += 1
            if self.error is None and not self._matcher.consume_token(token_id):
                self.error = one_line(self._matcher.get_error()) or f"token {token_id} does not fit the grammar"
        self._check()
        return num_taken

    def _check(self) -> None:
        if self.error is None and self._matcher.is_error():
            self.error = one_line(self._matcher.get_error()) or "the grammar failed"


def allows(mask: Mask, token_id: int) -> bool:
    """Whether a token's bit is set."""
    return bool(int(mask[token_id >> 5]) >> (token_id & 31) & 1)
