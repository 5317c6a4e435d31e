"""Reads one tool call, `{"name": …, "arguments": {…}}`, character by character.

The arguments leave as they come, exactly as written, once the name is known. Must not know what stands around a call.
"""

import json
from collections.abc import Callable, Collection

from mini_vllm.text.tools.events import CallArguments, CallEnd, CallStart, Event

WHITESPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class CallReader:
    """One JSON object on its way.

    Attributes:
        events: what is new; whoever drives the reader takes them.
        is_begun: a CallStart has left.
        is_done: the object is complete and was a call.
        is_broken: it is no call, or no JSON any more. If nothing has left, `raw` is all of its text.
    """

    def __init__(self, index: int, *, known: Collection[str] | None = None, name: str | None = None) -> None:
        """`known`: names that tools have; with another name the object is no call. None: any name is one.

        `name`: it stood before the object, which is the arguments alone.
        """
        self.events: list[Event] = []
        self.is_begun = self.is_done = self.is_broken = False
        self._index = index
        self._known = known
        self._raw: list[str] = []
        self._is_alone = name is not None
        self._state: Callable[[str], None] = self._before_value if self._is_alone else self._open
        self._name = name
        self._key = "arguments" if self._is_alone else ""
        self._value: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self._streams = False  # the value being read is the arguments' object
        self._has_arguments = False
        self._waiting: list[str] = []  # arguments that have not left yet

    @property
    def raw(self) -> str:
        """Everything read, as long as nothing has left."""
        return "".join(self._raw)

    def read(self, text: str) -> int:
        """Take what belongs to the object; how many characters that were. The one that breaks it is not taken."""
        for position, character in enumerate(text):
            if self.is_done or self.is_broken:
                self._send()
                return position
            self._state(character)
            if self.is_broken:
                self._send()
                return position
            if not self.is_begun:
                self._raw.append(character)
        self._send()
        return len(text)

    def _open(self, character: str) -> None:
        if character == "{":
            self._state = self._key_or_end
        elif character not in WHITESPACE:
            self.is_broken = True

    def _key_or_end(self, character: str) -> None:
        if character == '"':
            self._begin_value(character)
            self._state = self._in_key
        elif character == "}":
            self._close()
        elif character not in WHITESPACE + ",":
            self.is_broken = True

    def _in_key(self, character: str) -> None:
        if self._take(character):
            self._key = _decode(self._value) or ""
            self._state = self._colon

    def _colon(self, character: str) -> None:
        if character == ":":
            self._state = self._before_value
        elif character not in WHITESPACE:
            self.is_broken = True

    def _before_value(self, character: str) -> None:
        if character in WHITESPACE:
            return
        if character in ",:}]":
            self.is_broken = True
            return
        self._begin_value(character)
        self._streams = self._is_arguments() and character == "{"
        if self._streams:
            self._has_arguments = True
            self._waiting.append(character)
            self._begin()
        self._state = self._in_value if character in '{["' else self._in_scalar

    def _in_value(self, character: str) -> None:
        is_over = self._take(character)
        if self._streams:
            self._waiting.append(character)
        if is_over:
            self._end_value()

    def _in_scalar(self, character: str) -> None:
        if character in WHITESPACE + ",}":
            self._end_value()
            self._state(character)
        else:
            self._value.append(character)

    def _after_value(self, character: str) -> None:
        if character == ",":
            self._state = self._key_or_end
        elif character == "}":
            self._close()
        elif character not in WHITESPACE:
            self.is_broken = True

    def _begin_value(self, character: str) -> None:
        self._value = [character]
        self._depth = int(character in "{[")
        self._in_string, self._escaped = character == '"', False

    def _take(self, character: str) -> bool:
        """One more character of a string, object or array; whether it is the last."""
        self._value.append(character)
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                return self._depth == 0
            return False
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False

    def _end_value(self) -> None:
        self._state = self._after_value
        if self._streams:
            self._streams = False
            if self._is_alone:
                self._close()
        elif self._is_arguments():
            self._has_arguments = True
            self._waiting.append(_as_arguments("".join(self._value)))
            self._begin()
        elif self._key == "name" and self._name is None:
            self._name = _decode(self._value)
            if not self._name or (self._known is not None and self._name not in self._known):
                self.is_broken = True
            elif self._has_arguments:
                self._begin()

    def _is_arguments(self) -> bool:
        return self._key in _ARGUMENTS and not self._has_arguments

    def _begin(self) -> None:
        if self._name is not None and not self.is_begun:
            self.is_begun = True
            self.events.append(CallStart(self._index, self._name))

    def _close(self) -> None:
        if self._name is None:
            self.is_broken = True
            return
        self.is_done = True
        self._begin()
        if not self._has_arguments:
            self._waiting.append("{}")
        self._send()
        self.events.append(CallEnd(self._index))

    def _send(self) -> None:
        if self.is_begun and self._waiting:
            self.events.append(CallArguments(self._index, "".join(self._waiting)))
            self._waiting.clear()


def _decode(value: list[str]) -> str | None:
    """The text of a JSON string."""
    try:
        decoded = json.loads("".join(value), strict=False)
    except ValueError:
        return None
    return decoded if isinstance(decoded, str) else None


def _as_arguments(value: str) -> str:
    """Arguments that are no object: null stands for none, and an object may be written in a string."""
    if value == "null":
        return "{}"
    if value.startswith('"') and (text := _decode([value])) is not None and text.strip()[:1] == "{":
        return text.strip()
    return value
