"""Sorts an answer's text as it comes: what the model thinks, what it says, which tools it calls.

A pure state machine over text. Must not know tokens, requests or HTTP.
"""

from collections.abc import Iterable
from typing import Literal

from mini_vllm.text.tools.call_reader import WHITESPACE
from mini_vllm.text.tools.events import CallStart, Content, Event, Reasoning
from mini_vllm.text.tools.parsers import ToolParser
from mini_vllm.types.params import THINK, THOUGHT

Thinking = Literal["never", "maybe", "begun"]


class OutputRouter:
    """The events of one answer. However its text is cut, the same text comes out under each heading.

    White space around thoughts and calls is layout and belongs to neither. A thought that never ends is one to the end.
    """

    def __init__(
        self, *, tools: ToolParser | None = None, thinking: Thinking = "never", at_most: int | None = None
    ) -> None:
        """`thinking`: whether thoughts may come first, or have begun in the prompt. `at_most`: calls to let through."""
        self._tools = tools
        self._at_most = at_most
        self._state: Literal["opening", "thinking", "answer"] = "answer"
        self._buffer = ""
        self._at_start = False  # white space is dropped until something follows it
        self._num_calls = 0
        if thinking == "begun":
            self._state, self._at_start = "thinking", True
        elif thinking == "maybe":
            self._state = "opening"

    @property
    def called(self) -> bool:
        """Whether there were calls, all of them complete."""
        return self._tools is not None and self._num_calls > 0 and not self._is_cut

    @property
    def reads_calls(self) -> bool:
        """Whether there may be calls at all."""
        return self._tools is not None

    def push(self, text: str) -> list[Event]:
        """What the new text settles."""
        if self._state == "answer" and not self._buffer and not self._at_start:
            return self._answer(text)
        self._buffer += text
        return self._work(is_over=False)

    def finish(self) -> list[Event]:
        """What is left, now that nothing follows."""
        events = self._work(is_over=True)
        if self._tools is not None:
            events += self._limited(self._tools.finish())
        return events

    @property
    def _is_cut(self) -> bool:
        assert self._tools is not None
        return self._tools.is_open and self._tools.num_complete < self._num_calls

    def _work(self, *, is_over: bool) -> list[Event]:
        events: list[Event] = []
        if self._state == "opening":
            self._open(is_over=is_over)
        if self._state == "thinking":
            events += self._think(is_over=is_over)
        if self._state == "answer":
            text = self._buffer.lstrip(WHITESPACE) if self._at_start else self._buffer
            self._at_start = self._at_start and not text
            self._buffer = ""
            events += self._answer(text)
        return events

    def _open(self, *, is_over: bool) -> None:
        text = self._buffer.lstrip(WHITESPACE)
        if text.startswith(THINK):
            self._buffer = text[len(THINK) :]
            self._state, self._at_start = "thinking", True
        elif is_over or not THINK.startswith(text):
            self._state = "answer"

    def _think(self, *, is_over: bool) -> list[Event]:
        if self._at_start:
            self._buffer = self._buffer.lstrip(WHITESPACE)
            self._at_start = not self._buffer
        end = self._buffer.find(THOUGHT)
        if end >= 0:
            thought = self._buffer[:end].rstrip(WHITESPACE)
            self._buffer = self._buffer[end + len(THOUGHT) :]
            self._state, self._at_start = "answer", True
        else:
            most = 0 if is_over else min(len(THOUGHT) - 1, len(self._buffer))
            held = next(count for count in range(most, -1, -1) if self._buffer.endswith(THOUGHT[:count]))
            thought = self._buffer[: len(self._buffer) - held].rstrip(WHITESPACE)
            self._buffer = "" if is_over else self._buffer[len(thought) :]
        return [Reasoning(thought)] if thought else []

    def _answer(self, text: str) -> list[Event]:
        if self._tools is not None:
            return self._limited(self._tools.push(text))
        return [Content(text)] if text else []

    def _limited(self, events: Iterable[Event]) -> list[Event]:
        """Without the calls that are too many, and what is said after them."""
        kept: list[Event] = []
        for event in events:
            if self._at_most is not None and self._num_calls >= self._at_most and not self._belongs(event):
                continue
            self._num_calls += isinstance(event, CallStart)
            kept.append(event)
        return kept

    def _belongs(self, event: Event) -> bool:
        """Whether an event is part of a call that was let through."""
        return not isinstance(event, CallStart | Content | Reasoning) and event.index < self._num_calls
