"""Drafters without a model: what came after the same tokens before, here or in earlier outputs.

A drafter guesses the next tokens of a sequence. Guesses cost time when they are wrong and nothing else: the target
model verifies each one. Must not know plans, models or how guesses are verified.
"""

from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple, Protocol


class Guess(NamedTuple):
    """Tokens that may follow, and what speaks for them: an index of the drafter's `expected`."""

    kind: int
    token_ids: tuple[int, ...]


class TextDrafter(Protocol):
    """Guesses from token ids alone.

    `expected`: for each kind of evidence, weak ones first, the share of guesses that stand, before any was measured.
    """

    expected: tuple[float, ...]

    def propose(self, history: "History", most: int) -> Guess | None:
        """Up to `most` tokens that may follow; None where there is nothing to go by."""

    def end(self, history: "History") -> None:
        """A sequence is over."""


class History:
    """All tokens of one sequence, prompt and output, and how far drafters have learnt from them."""

    __slots__ = ("num_learned", "num_noted", "num_prompt", "places", "salt", "tokens")

    def __init__(self, prompt_token_ids: tuple[int, ...], salt: str = "") -> None:
        self.salt = salt
        self.tokens = list(prompt_token_ids)
        self.num_prompt = len(prompt_token_ids)
        self.num_learned = self.num_prompt  # output tokens before it are in a `SuffixDrafter`'s statistics
        self.num_noted = 0  # places before it are in `places`
        self.places: dict[tuple[int, ...], list[int]] = {}  # last tokens -> where they ended, of a `NgramDrafter`

    @property
    def length(self) -> int:
        """Of all tokens."""
        return len(self.tokens)

    def extend(self, token_ids: tuple[int, ...]) -> None:
        """Tokens that stand."""
        self.tokens += token_ids


class NgramDrafter:
    """Prompt lookup: the tokens after the latest earlier place with the longest match of what came last.

    Source: A. Saxena, "Prompt Lookup Decoding", 2023. A place counts when the last `least` tokens match; of the latest
    `_CANDIDATES` places the one with the longest match up to `longest` wins, the later one on a tie. A copy may run
    into what it writes itself, so that periodic text goes on.
    """

    expected: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    _KINDS = (3, 5, 8)  # matches of 2, 3-4, 5-7, 8 tokens and more
    _CANDIDATES = 32

    def __init__(self, *, least: int = 2, longest: int = 8) -> None:
        self._least = least
        self._longest = longest

    def propose(self, history: History, most: int) -> Guess | None:
        """See `TextDrafter.propose`."""
        tokens, least = history.tokens, self._least
        self._note(history)
        if most < 1 or (ends := history.places.get(tuple(tokens[-least:]))) is None:
            return None
        best, longest = ends[-1], 0
        for end in ends[: -self._CANDIDATES - 1 : -1]:
            length = self._match(tokens, end)
            if length > longest:
                best, longest = end, length
            if longest >= self._longest:
                break
        copied = tokens[best + 1 : best + 1 + most]
        period = len(tokens) - 1 - best
        while len(copied) < most:
            copied.append(copied[len(copied) - period])
        return Guess(bisect_right(self._KINDS, longest), tuple(copied))

    def _note(self, history: History) -> None:
        """All places but the last, which is where guesses begin."""
        tokens, least, places = history.tokens, self._least, history.places
        for end in range(max(history.num_noted, least - 1), len(tokens) - 1):
            places.setdefault(tuple(tokens[end + 1 - least : end + 1]), []).append(end)
        history.num_noted = len(tokens) - 1

    def _match(self, tokens: list[int], end: int) -> int:
        """How many tokens up to and with `end` equal the last ones; at most `longest`."""
        most, shift = min(self._longest, end + 1), len(tokens) - 1 - end
        length = self._least
        while length < most and tokens[end - length] == tokens[end - length + shift]:
            length += 1
        return length

    def end(self, history: History) -> None:
        """Nothing is kept between sequences."""


class SuffixDrafter:
    """What followed the same contexts in outputs, this one's so far and earlier ones': counts of next tokens.

    After G. Oliaro et al., "SuffixDecoding", 2024, with contexts of 2 to 5 tokens in a table instead of a suffix tree.
    Outputs of one salt are never used for another. At most `capacity` contexts are kept; those unused longest go first.
    """

    expected: tuple[float, ...] = (0.3, 0.45, 0.6, 0.75)  # by the length of the context
    _LONGEST, _SHORTEST = 5, 2
    _LEAST_SHARE = 0.5  # of a context's occurrences that the guess must have

    def __init__(self, *, capacity: int = 200_000) -> None:
        self._capacity = capacity
        self._counts: OrderedDict[tuple[str, tuple[int, ...]], dict[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def propose(self, history: History, most: int) -> Guess | None:
        """See `TextDrafter.propose`. Learns what the sequence has written since the last call."""
        self._learn(history)
        context = history.tokens[-self._LONGEST :]
        guesses: list[int] = []
        kind = 0
        while len(guesses) < most and (found := self._next(history.salt, context)) is not None:
            token, length = found
            kind = kind if guesses else length - self._SHORTEST
            guesses.append(token)
            context = [*context, token][-self._LONGEST :]
        return Guess(kind, tuple(guesses)) if guesses else None

    def end(self, history: History) -> None:
        """Its last tokens count too."""
        self._learn(history)

    def _next(self, salt: str, context: list[int]) -> tuple[int, int] | None:
        """The likeliest next token, and the length of the context that says so."""
        for length in range(min(self._LONGEST, len(context)), self._SHORTEST - 1, -1):
            key = (salt, tuple(context[-length:]))
            if (counts := self._counts.get(key)) is not None:
                self._counts.move_to_end(key)
                token, count = max(counts.items(), key=lambda item: (item[1], item[0]))
                return (token, length) if count >= self._LEAST_SHARE * sum(counts.values()) else None
        return None

    def _learn(self, history: History) -> None:
        if history.num_learned == history.length:
            return
        first = max(0, history.num_learned - self._LONGEST)
        tokens = history.tokens[first:]
        for at in range(history.num_learned - first, len(tokens)):
            for length in range(self._SHORTEST, min(self._LONGEST, at) + 1):
                key = (history.salt, tuple(tokens[at - length : at]))
                counts = self._counts.setdefault(key, {})
                counts[tokens[at]] = counts.get(tokens[at], 0) + 1
                self._counts.move_to_end(key)
        history.num_learned = history.length
        while len(self._counts) > self._capacity:
            self._counts.popitem(last=False)
