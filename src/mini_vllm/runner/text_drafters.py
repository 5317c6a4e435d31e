"""Drafters without a model: what came after the same tokens before, here or in earlier outputs.

A drafter guesses the next tokens of a sequence. Guesses cost time when they are wrong and nothing else: the target
model verifies each one. Must not know plans, models or how guesses are verified.
"""

from collections import OrderedDict
from typing import Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


class TextDrafter(Protocol):
    """Guesses from token ids alone."""

    def propose(self, history: "History", most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow; none where there is nothing to go by."""

    def end(self, history: "History") -> None:
        """A sequence is over."""


class History:
    """All tokens of one sequence, prompt and output, in an array that grows by doubling."""

    def __init__(self, prompt_token_ids: tuple[int, ...], salt: str = "") -> None:
        self.salt = salt
        self.num_prompt = self.length = len(prompt_token_ids)
        self._buffer: Tokens = np.empty(max(64, 2 * self.length), dtype=np.int32)
        self._buffer[: self.length] = prompt_token_ids
        self.num_learned = self.length  # output tokens before it are in a `SuffixDrafter`'s statistics

    @property
    def tokens(self) -> Tokens:
        """[length], a view."""
        return self._buffer[: self.length]

    def extend(self, token_ids: tuple[int, ...]) -> None:
        """Tokens that stand."""
        end = self.length + len(token_ids)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(end, dtype=np.int32)])
        self._buffer[self.length : end] = token_ids
        self.length = end


class NgramDrafter:
    """Prompt lookup: the tokens after the latest earlier place with the longest match of what came last.

    Source: A. Saxena, "Prompt Lookup Decoding", 2023. A place counts when the last `least` tokens match; of the latest
    `_CANDIDATES` places the one with the longest match up to `longest` wins, the later one on a tie. A copy may run
    into what it writes itself, so that periodic text goes on.
    """

    _CANDIDATES = 32

    def __init__(self, *, least: int = 2, longest: int = 8) -> None:
        self._least = least
        self._longest = longest

    def propose(self, history: History, most: int) -> tuple[int, ...]:
        """See `TextDrafter.propose`."""
        tokens, least = history.tokens, self._least
        if most < 1 or len(tokens) <= least:
            return ()
        ends = np.flatnonzero(tokens[least - 1 : -1] == tokens[-1]) + least - 1  # where an earlier match could end
        for back in range(1, least):
            ends = ends[tokens[ends - back] == tokens[-1 - back]]
        if not ends.size:
            return ()
        recent = ends[-self._CANDIDATES :][::-1].tolist()
        best, longest = recent[0], 0
        last = tokens[-self._longest :].tolist()[::-1]
        for end in recent:
            length = self._match(tokens, end, last)
            if length > longest:
                best, longest = end, length
            if longest >= len(last):
                break
        copied: list[int] = tokens[best + 1 : best + 1 + most].tolist()
        period = len(tokens) - 1 - best
        while len(copied) < most:
            copied.append(copied[len(copied) - period])
        return tuple(copied)

    @staticmethod
    def _match(tokens: Tokens, end: int, last: list[int]) -> int:
        """How many tokens up to and with `end` equal the last ones."""
        before = tokens[max(0, end - len(last) + 1) : end + 1].tolist()[::-1]
        return next((i for i, (a, b) in enumerate(zip(before, last)) if a != b), min(len(before), len(last)))

    def end(self, history: History) -> None:
        """Nothing is kept between sequences."""


class SuffixDrafter:
    """What followed the same contexts in outputs, this one's so far and earlier ones': counts of next tokens.

    After G. Oliaro et al., "SuffixDecoding", 2024, with contexts of 2 to 5 tokens in a table instead of a suffix tree.
    Outputs of one salt are never used for another. At most `capacity` contexts are kept; those unused longest go first.
    """

    _LONGEST, _SHORTEST = 5, 2
    _LEAST_SHARE = 0.5  # of a context's occurrences that the guess must have

    def __init__(self, *, capacity: int = 200_000) -> None:
        self._capacity = capacity
        self._counts: OrderedDict[tuple[str, tuple[int, ...]], dict[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def propose(self, history: History, most: int) -> tuple[int, ...]:
        """See `TextDrafter.propose`. Learns what the sequence has written since the last call."""
        self._learn(history)
        context = history.tokens[-self._LONGEST :].tolist()
        guesses: list[int] = []
        while len(guesses) < most:
            token = self._next(history.salt, context)
            if token is None:
                break
            guesses.append(token)
            context = [*context, token][-self._LONGEST :]
        return tuple(guesses)

    def end(self, history: History) -> None:
        """Its last tokens count too."""
        self._learn(history)

    def _next(self, salt: str, context: list[int]) -> int | None:
        for length in range(min(self._LONGEST, len(context)), self._SHORTEST - 1, -1):
            key = (salt, tuple(context[-length:]))
            if (counts := self._counts.get(key)) is not None:
                self._counts.move_to_end(key)
                token, count = max(counts.items(), key=lambda item: (item[1], item[0]))
                return token if count >= self._LEAST_SHARE * sum(counts.values()) else None
        return None

    def _learn(self, history: History) -> None:
        if history.num_learned == history.length:
            return
        first = max(0, history.num_learned - self._LONGEST)
        tokens = history.tokens[first:].tolist()
        for at in range(history.num_learned - first, len(tokens)):
            for length in range(self._SHORTEST, min(self._LONGEST, at) + 1):
                key = (history.salt, tuple(tokens[at - length : at]))
                counts = self._counts.setdefault(key, {})
                counts[tokens[at]] = counts.get(tokens[at], 0) + 1
                self._counts.move_to_end(key)
        history.num_learned = history.length
        while len(self._counts) > self._capacity:
            self._counts.popitem(last=False)
