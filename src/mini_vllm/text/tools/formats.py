"""How families of models write tool calls: what to force, what to read, what to write into a prompt."""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mini_vllm.text.tools.parsers import BareParser, MarkedParser, TaggedParser, ToolParser
from mini_vllm.text.tools.pythonic import PythonicParser
from mini_vllm.types import CallableTool, CallsGrammar

MAX_CALLS = 16  # in one answer, where the number is not the model's to choose freely

_KINDS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf"})  # keywords that say what a value is

Tool = Mapping[str, Any]  # {"type": "function", "function": {"name": …, "description": …, "parameters": schema}}


class ToolFormat(ABC):
    """One way of writing calls. Stateless."""

    name: str
    parser: type[ToolParser]
    arguments_key = "arguments"
    begin = between = end = ""  # around all calls, and between two
    before = after = ""  # around each call's object
    marker: str | None = None  # a special token that must not be left out of the text

    @staticmethod
    @abstractmethod
    def fits(template: str) -> bool:
        """Whether a chat template is written for this format."""

    def read(self, names: Collection[str]) -> ToolParser:
        """A parser for one answer of a model that was given these tools."""
        return self.parser(names)

    def force(self, tools: Sequence[Tool], *, at_most: int | None) -> CallsGrammar:
        """An answer of one call or more to these tools, with arguments that fit."""
        return CallsGrammar(
            tools=tuple(self._callable(tool["function"]) for tool in tools),
            begin=self.begin,
            between=self.between,
            end=self.end,
            at_most=min(at_most or MAX_CALLS, MAX_CALLS),
        )

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """Calls, each a name and its arguments as JSON, as this format's models write them."""
        objects = [self._opening(name) + (arguments or "{}") + "}" for name, arguments in calls]
        return self.begin + self.between.join(self.before + text + self.after for text in objects) + self.end

    def _callable(self, function: Mapping[str, Any]) -> CallableTool:
        schema = function.get("parameters") or {"properties": {}}
        if not schema.keys() & _KINDS:
            schema = {"type": "object", **schema}
        return CallableTool(
            before=self.before + self._opening(function["name"]),
            schema=json.dumps(schema, ensure_ascii=False),
            after="}" + self.after,
            strict=bool(function.get("strict")),
        )

    def _opening(self, name: str) -> str:
        return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": '


class Hermes(ToolFormat):
    """`<tool_call>` tags around JSON: Hermes, Qwen 2.5 and 3, and models whose template knows no tools."""

    name = "hermes"
    parser = TaggedParser
    between = "\n"
    before, after = "<tool_call>\n", "\n</tool_call>"

    @staticmethod
    def fits(template: str) -> bool:
        """See `ToolFormat`."""
        return "<tool_call>" in template


class Llama3Json(ToolFormat):
    """Bare JSON with `parameters`: Llama 3.1 to 3.3."""

    name = "llama3_json"
    parser = BareParser
    arguments_key = "parameters"
    between = "; "

    @staticmethod
    def fits(template: str) -> bool:
        """See `ToolFormat`."""
        return "<|python_tag|>" in template or ('"parameters"' in template and "<|eot_id|>" in template)


class Mistral(ToolFormat):
    """A list behind `[TOOL_CALLS]`: Mistral's models."""

    name = "mistral"
    parser = MarkedParser
    begin, between, end = "[TOOL_CALLS][", ", ", "]"
    marker = "[TOOL_CALLS]"

    @staticmethod
    def fits(template: str) -> bool:
        """See `ToolFormat`."""
        return "[TOOL_CALLS]" in template


class Pythonic(ToolFormat):
    """A list of Python calls: Llama 3.2 and 4 and others. Forced ones have their arguments as `**{JSON}`."""

    name = "pythonic"
    parser = PythonicParser
    begin, between, end = "[", ", ", "]"

    @staticmethod
    def fits(template: str) -> bool:
        """See `ToolFormat`."""
        return "<|python_start|>" in template or "func_name1(params_name1" in template

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """See `ToolFormat`."""
        return self.begin + self.between.join(_python_call(*call) for call in calls) + self.end

    def _callable(self, function: Mapping[str, Any]) -> CallableTool:
        return replace(super()._callable(function), before=f"{function['name']}(**", after=")")


class BareJson(ToolFormat):
    """Bare JSON with `arguments`, one object or a list: models that were trained on nothing particular."""

    name = "json"
    parser = BareParser
    begin, between, end = "[", ", ", "]"

    @staticmethod
    def fits(template: str) -> bool:
        """Never by itself: it is there to be chosen."""
        return False


FORMATS: Mapping[str, ToolFormat] = {
    kind.name: kind for kind in (Hermes(), Mistral(), Pythonic(), Llama3Json(), BareJson())
}


def _python_call(name: str, arguments: str) -> str:
    """JSON arguments as keywords, or as they are where they cannot be keywords."""
    try:
        values = json.loads(arguments or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(key.isidentifier() for key in values):
        return f"{name}(**{arguments})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"


def choose_format(template: str, *, name: str = "auto") -> ToolFormat:
    """By name, or the first that a chat template is written for; `Hermes` where none is."""
    if name != "auto":
        return FORMATS[name]
    return next((found for found in FORMATS.values() if found.fits(template)), FORMATS["hermes"])
