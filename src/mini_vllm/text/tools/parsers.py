"""Parsers of answers that may hold tool calls, one for each way of marking them.

A parser keeps the text that it cannot judge yet in a buffer and works on it state by state; a state looks at the
buffer's beginning only, so that chunks make no difference. White space around calls is layout and not content.
"""

from collections.abc import Callable, Collection

from mini_vllm.text.tools.call_reader import WHITESPACE, CallReader
from mini_vllm.text.tools.events import CallEnd, CallStart, Content, Event


class ToolParser:
    """The machine that all formats share: a buffer, a state, events.

    Attributes:
        num_complete: calls that have ended.
    """

    def __init__(self, names: Collection[str]) -> None:
        """`names`: of the tools that the model was given."""
        self.num_complete = 0
        self._names = frozenset(names)
        self._buffer = ""
        self._is_over = False
        self._events: list[Event] = []
        self._num_calls = 0
        self._reader: CallReader | None = None
        self._skipped = ""  # taken from the buffer, and content after all if no call comes of it
        self._state: Callable[[], bool] = self._begin  # does one thing; whether it could

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._num_calls > self.num_complete

    def push(self, text: str) -> list[Event]:
        """What the new text settles."""
        self._buffer += text
        self._work()
        return self._drain()

    def finish(self) -> list[Event]:
        """What is left, now that nothing follows. A call that is not complete stays as it is."""
        self._is_over = True
        self._work()
        reader, self._reader = self._reader, None
        held = self._skipped
        if reader is not None and not reader.is_begun:
            held += reader.raw
        rest = held + self._buffer
        self._skipped = self._buffer = ""
        if rest.strip() or not self._num_calls:
            self._say(rest)
        return self._drain()

    def _begin(self) -> bool:
        raise NotImplementedError

    def _after_call(self) -> bool:
        raise NotImplementedError

    def _work(self) -> None:
        while self._state():
            pass

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _plain(self) -> bool:
        """What follows is content."""
        self._say(self._buffer)
        self._buffer = ""
        return False

    def _read_call(self, *, known: Collection[str] | None) -> bool:
        """Read the object at the beginning of the buffer."""
        if self._reader is None:
            self._reader = CallReader(self._num_calls, known=known)
        reader = self._reader
        self._buffer = self._buffer[reader.read(self._buffer) :]
        self._pass_on(reader.events)
        reader.events = []
        if reader.is_begun:
            self._skipped = ""
        if reader.is_done:
            self._reader, self._state = None, self._after_call
        elif reader.is_broken:
            self._reader, self._state = None, self._plain
            if not reader.is_begun:
                self._say(self._skipped + reader.raw)
                self._skipped = ""
        return self._reader is None

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            self._num_calls += isinstance(event, CallStart)
            self.num_complete += isinstance(event, CallEnd)
        self._events += events

    def _skip(self, characters: str) -> bool:
        """Drop these from the beginning of the buffer; whether something else follows."""
        self._buffer = self._buffer.lstrip(characters)
        return bool(self._buffer)

    def _say_until(self, marker: str) -> bool:
        """Content up to a marker, which is skipped with the white space before it; whether it is there.

        What may be the beginning of the marker is held, and white space that may turn out to stand before one.
        """
        start = self._buffer.find(marker)
        if start >= 0:
            told = self._buffer[:start].rstrip(WHITESPACE)
            self._say(told)
            self._skipped = self._buffer[len(told) : start + len(marker)]
            self._buffer = self._buffer[start + len(marker) :]
            return True
        most = min(len(marker) - 1, len(self._buffer))
        held = next(count for count in range(most, -1, -1) if self._buffer.endswith(marker[:count]))
        told = self._buffer[: len(self._buffer) - held].rstrip(WHITESPACE)
        self._say(told)
        self._buffer = self._buffer[len(told) :]
        return False


class TaggedParser(ToolParser):
    """`text <tool_call>{"name": …, "arguments": {…}}</tool_call> …`: each call between tags, any text around them."""

    opening, closing = "<tool_call>", "</tool_call>"

    def _begin(self) -> bool:
        if not self._say_until(self.opening):
            return False
        self._state = self._call
        return True

    def _call(self) -> bool:
        return self._read_call(known=None)

    def _after_call(self) -> bool:
        if not self._skip(WHITESPACE):
            return False
        if self.closing.startswith(self._buffer) and self._buffer != self.closing:  # a part of it, or all that came
            self._buffer = "" if self._is_over else self._buffer
            return False
        self._buffer = self._buffer.removeprefix(self.closing)
        self._state = self._begin
        return True

    def _plain(self) -> bool:
        """What follows a call that is broken, or was none, is text in which others may be."""
        self._state = self._begin
        return True


class BareParser(ToolParser):
    """`{"name": …, "parameters": {…}}; {…}`, or a list of them: the whole answer is calls, or else it is content."""

    opening = "<|python_tag|>"
    separators = WHITESPACE + ";,"

    def _begin(self) -> bool:
        """Take what may stand before the first call: white space, the marker, a bracket."""
        text = self._buffer.lstrip(WHITESPACE)
        if self.opening.startswith(text) and not self._is_over:
            return False
        text = text.removeprefix(self.opening).lstrip(WHITESPACE).removeprefix("[").lstrip(WHITESPACE)
        if not text and not self._is_over:
            return False
        self._state = self._plain
        if text[:1] == "{":
            self._skipped = self._buffer[: len(self._buffer) - len(text)]
            self._buffer = text
            self._state = self._call
        return True

    def _call(self) -> bool:
        return self._read_call(known=self._names)

    def _after_call(self) -> bool:
        if not self._skip(self.separators):
            return False
        if self._buffer[0] == "]":
            self._buffer = self._buffer[1:].lstrip(WHITESPACE)
            self._state = self._after_list
        else:
            self._state = self._call if self._buffer[0] == "{" else self._plain
        return True

    def _after_list(self) -> bool:
        if not self._skip(WHITESPACE):
            return False
        self._state = self._plain
        return True


class MarkedParser(ToolParser):
    """`text [TOOL_CALLS][{…}, {…}]`, or in newer models `text [TOOL_CALLS]name[ARGS]{…}[TOOL_CALLS]name[ARGS]{…}`."""

    opening, arguments = "[TOOL_CALLS]", "[ARGS]"

    def _begin(self) -> bool:
        if not self._say_until(self.opening):
            return False
        self._state = self._list_or_name
        return True

    def _list_or_name(self) -> bool:
        text = self._buffer.lstrip(WHITESPACE)
        if text[:1] == "[":
            text = text[1:].lstrip(WHITESPACE)
            if text:
                self._skipped += self._buffer[: len(self._buffer) - len(text)]
                self._buffer = text
                self._state = self._call
            return bool(text)
        start = text.find("{")
        if start < 0:
            return False
        name = text[:start].rstrip(WHITESPACE).removesuffix(self.arguments).strip(WHITESPACE)
        if name in self._names:
            self._buffer, self._skipped = text[start:], ""
            self._reader = CallReader(self._num_calls, name=name)
            self._state = self._call
        else:
            self._say(self._skipped)
            self._skipped = ""
            self._state = self._begin
        return True

    def _call(self) -> bool:
        return self._read_call(known=None)

    def _after_call(self) -> bool:
        if not self._skip(WHITESPACE + ","):
            return False
        self._state = self._call if self._buffer[0] == "{" else self._begin
        self._buffer = self._buffer.removeprefix("]")
        return True

    def _plain(self) -> bool:
        """What follows a call that is broken, or was none, is text in which others may be."""
        self._state = self._begin
        return True
