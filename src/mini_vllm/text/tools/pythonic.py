"""Calls written as Python: `[get_weather(city="Oslo"), add(numbers=[1, 2])]`, the whole answer. Arguments become JSON.

Each argument leaves when it is complete. What is no Python literal is passed on as a string of its text.
"""

import ast
import json
import re
from collections.abc import Collection
from typing import Any

from mini_vllm.text.tools.call_reader import WHITESPACE
from mini_vllm.text.tools.events import CallArguments, CallEnd, CallStart, Event
from mini_vllm.text.tools.parsers import ToolParser

_NAME = re.compile(r"[\w.\-]*\Z")
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")
_OPEN, _CLOSE = "([{", ")]}"


class PythonicParser(ToolParser):
    """The answer is a list of calls, or else it is content."""

    openings = ("<|python_start|>", "<|python_tag|>")
    closing = "<|python_end|>"

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._name = ""
        self._num_arguments = 0
        self._scanner = _Scanner()

    def finish(self) -> list[Event]:
        """What is left. Of a call that is not complete, the argument that was being written is dropped."""
        if self.is_open:
            self._buffer = ""
        return super().finish()

    def _begin(self) -> bool:
        text = self._buffer.lstrip(WHITESPACE)
        if any(opening.startswith(text) for opening in self.openings) and not self._is_over:
            return False
        for opening in self.openings:
            text = text.removeprefix(opening)
        text = text.lstrip(WHITESPACE)
        if not text and not self._is_over:
            return False
        self._state = self._plain
        if text[:1] == "[":
            self._take(len(self._buffer) - len(text) + 1)
            self._state = self._read_name
        return True

    def _read_name(self) -> bool:
        text = self._buffer.lstrip(WHITESPACE)
        end = text.find("(")
        if end < 0 and _NAME.match(text):
            return False
        name = text[:end].strip(WHITESPACE) if end >= 0 else ""
        if name not in self._names:
            return self._give_up()
        self._name, self._num_arguments = name, 0
        self._take(len(self._buffer) - len(text) + end + 1)
        self._state = self._read_argument
        return True

    def _read_argument(self) -> bool:
        end = self._scanner.find_end(self._buffer)
        if end < 0:
            return False
        self._scanner = _Scanner()
        is_last = self._buffer[end] != ","
        pairs = _read(self._buffer[:end])
        if pairs is None or self._buffer[end] in "]}":
            return self._give_up()
        self._take(end + 1)
        self._tell(pairs, is_last=is_last)
        if is_last:
            self._state = self._after_call
        return True

    def _tell(self, pairs: dict[str, Any], *, is_last: bool) -> None:
        text = ""
        for key, value in pairs.items():
            text += f"{', ' if self._num_arguments else '{'}{json.dumps(key)}: {_as_json(value)}"
            self._num_arguments += 1
        if is_last:
            text += "}" if self._num_arguments else "{}"
        index = self._num_calls - self.is_open
        if not self.is_open:
            self._pass_on([CallStart(index, self._name)])
            self._skipped = ""
        if text:
            self._pass_on([CallArguments(index, text)])
        if is_last:
            self._pass_on([CallEnd(index)])

    def _after_call(self) -> bool:
        if not self._skip(WHITESPACE):
            return False
        match self._buffer[0]:
            case ",":
                self._take(1)
                self._state = self._read_name
            case "]":
                self._buffer = self._buffer[1:]
                self._state = self._after_list
            case _:
                return self._give_up()
        return True

    def _after_list(self) -> bool:
        if not self._skip(WHITESPACE):
            return False
        if self.closing.startswith(self._buffer) and self._buffer != self.closing:
            self._buffer = "" if self._is_over else self._buffer
            return False
        self._buffer = self._buffer.removeprefix(self.closing).lstrip(WHITESPACE)
        self._state = self._plain
        return bool(self._buffer)

    def _take(self, count: int) -> None:
        """Read so much of the buffer; it is content after all if no call comes of it."""
        if not self.is_open:
            self._skipped += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _give_up(self) -> bool:
        """No call, or no Python any more."""
        self._say(self._skipped)
        self._skipped = ""
        self._state = self._plain
        return True


class _Scanner:
    """Finds where an argument ends, and looks at each character once."""

    def __init__(self) -> None:
        self._position = 0
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def find_end(self, text: str) -> int:
        """The place of the comma or bracket after the argument at the beginning of the text; -1: not there yet."""
        for position in range(self._position, len(text)):
            if self._is_end(text[position]):
                return position
        self._position = len(text)
        return -1

    def _is_end(self, character: str) -> bool:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in _OPEN:
            self._depth += 1
        elif character in _CLOSE:
            if not self._depth:
                return True
            self._depth -= 1
        return character == "," and not self._depth and not self._quote


def _read(text: str) -> dict[str, Any] | None:
    """One argument, `name=value` or `**{…}`, as keys and values; nothing is none. None: it is neither."""
    if not text.strip():
        return {}
    if text.strip().startswith("**"):
        value = _literal(text.strip()[2:])
        return {str(key): each for key, each in value.items()} if isinstance(value, dict) else None
    found = _KEYWORD.match(text)
    return None if found is None else {found.group(1): _literal(text[found.end() :])}


def _literal(text: str) -> Any:
    """The value of a JSON or Python literal; the text itself if it is none."""
    text = text.strip()
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    try:
        return ast.literal_eval(text.replace("\r", "\\r").replace("\n", "\\n"))  # line ends inside a string
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _as_json(value: Any) -> str:
    """Strict JSON; what it cannot say becomes a string."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(repr(value))
    return text
