"""Log-probabilities beside the text that they belong to, in the shapes of both endpoints. Pure.

A token's entry leaves when all of its text has left. So text held back for a stop string holds its entries back, and
what a stop string cuts off takes its entries along: the entries' texts always join to the answer's text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.server.protocol.chat import ChoiceLogprobs, TokenLogprob, TopLogprob
from mini_vllm.server.protocol.completions import CompletionLogprobs
from mini_vllm.text import Detokenizer
from mini_vllm.types import TextDelta, TokenLogprobs

LOWEST_LOGPROB = -9999.0  # what JSON gets in place of minus infinity


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of an answer: the text that it adds (empty while a character is incomplete), and from where."""

    token_id: int
    text: str
    offset: int  # characters from the start of the choice's text
    logprobs: TokenLogprobs | None  # None: the first token of a prompt


class LogprobAligner:
    """Gives out the entries of one choice.

    `keeps_end`: the stop or EOS token that ended it has an entry too. `shows_end`: that token's text is shown.
    """

    def __init__(self, detokenizer: Detokenizer, *, keeps_end: bool, shows_end: bool) -> None:
        self._detokenizer = detokenizer
        self._keeps_end = keeps_end
        self._shows_end = shows_end
        self._held: list[Entry] = []
        self._num_chars = 0  # of all entries so far
        self._num_emitted = 0  # of the text that has left

    def push(self, delta: TextDelta) -> list[Entry]:
        """The entries whose text has now left completely; with the last delta, all that remain."""
        self._num_emitted += len(delta.text)
        ended_by_token = delta.finish_reason == "stop" and not isinstance(delta.stop_reason, str)
        unseen_end = bool(delta.logprobs) and ended_by_token and not self._shows_end
        for found in delta.logprobs[:-1] if unseen_end else delta.logprobs:
            self._hold(found, self._detokenizer.push([found.token_id]))
        if delta.finish_reason is not None:
            ready = self._finish(delta)
            if unseen_end and self._keeps_end:
                ready.append(Entry(delta.logprobs[-1].token_id, "", self._num_emitted, delta.logprobs[-1]))
            return ready
        count = 0
        for number, entry in enumerate(self._held, 1):
            if entry.text and _end(entry) <= self._num_emitted:
                count = number  # those without text before it hold the first bytes of its character
        ready, self._held = self._held[:count], self._held[count:]
        return ready

    def _hold(self, found: TokenLogprobs, text: str) -> None:
        self._held.append(Entry(found.token_id, text, self._num_chars, found))
        self._num_chars += len(text)

    def _finish(self, delta: TextDelta) -> list[Entry]:
        held, self._held = self._held, []
        if isinstance(delta.stop_reason, str):
            kept = [entry for entry in held if entry.offset < self._num_emitted]
            return [replace(entry, text=entry.text[: self._num_emitted - entry.offset]) for entry in kept]
        if held and (rest := self._detokenizer.flush()):
            held[-1] = replace(held[-1], text=held[-1].text + rest)
        return held


def prompt_entries(ids: Sequence[int], logprobs: Sequence[TokenLogprobs], detokenizer: Detokenizer) -> list[Entry]:
    """Entries of an echoed prompt; the first token has no logprobs, as nothing comes before it."""
    entries: list[Entry] = []
    offset = 0
    for position, token_id in enumerate(ids):
        text = detokenizer.push([token_id])
        if position == len(ids) - 1:
            text += detokenizer.flush()
        found = logprobs[position - 1] if 0 < position <= len(logprobs) else None
        entries.append(Entry(token_id, text, offset, found))
        offset += len(text)
    return entries


def completion_logprobs(
    entries: Sequence[Entry], *, count: int, token_text: Callable[[int], str], shift: int
) -> CompletionLogprobs:
    """Four parallel lists. `count` alternatives per token plus the chosen one; offsets move by `shift` characters."""
    return CompletionLogprobs(
        tokens=[entry.text for entry in entries],
        token_logprobs=[None if entry.logprobs is None else _finite(entry.logprobs.logprob) for entry in entries],
        top_logprobs=[_top_dict(entry, count, token_text) for entry in entries],
        text_offset=[entry.offset + shift for entry in entries],
    )


def chat_logprobs(entries: Sequence[Entry], token_bytes: Callable[[int], bytes], *, count: int) -> ChoiceLogprobs:
    """Token strings are decoded alone, so an incomplete character shows as U+FFFD there; `bytes` are exact."""
    content = []
    for entry in entries:
        assert entry.logprobs is not None, "only prompts have entries without logprobs"
        chosen = token_bytes(entry.token_id)
        content.append(
            TokenLogprob(
                token=chosen.decode("utf-8", "replace"),
                bytes=list(chosen),
                logprob=_finite(entry.logprobs.logprob),
                top_logprobs=[_top(token_bytes(i), value) for i, value in entry.logprobs.top[:count]],
            )
        )
    return ChoiceLogprobs(content=content)


def _top_dict(entry: Entry, count: int, token_text: Callable[[int], str]) -> dict[str, float] | None:
    if entry.logprobs is None:
        return None
    top: dict[str, Any] = {}
    for token_id, value in entry.logprobs.top[:count]:
        # Tokens with equal text share a key; the likeliest comes first and stays.
        top.setdefault(entry.text if token_id == entry.token_id else token_text(token_id), _finite(value))
    if all(token_id != entry.token_id for token_id, _ in entry.logprobs.top[:count]):
        top.setdefault(entry.text, _finite(entry.logprobs.logprob))
    return top


def _top(text: bytes, value: float) -> TopLogprob:
    return TopLogprob(token=text.decode("utf-8", "replace"), bytes=list(text), logprob=_finite(value))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST_LOGPROB


def _end(entry: Entry) -> int:
    return entry.offset + len(entry.text)
