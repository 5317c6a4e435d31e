"""What a text must look like: a JSON schema, any JSON object, a regular expression, choices, a grammar, tool calls."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.errors import InvalidParameterError

PARAM = "structured_outputs"
_KINDS = ("json", "json_object", "regex", "choice", "grammar", "calls")


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool, as text around its arguments: `before`, then JSON that fits `schema` (JSON text), then `after`."""

    before: str
    schema: str
    after: str
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsGrammar:
    """Text that consists of tool calls: `begin`, one or more tools with `between` between them, `end`; or an answer."""

    tools: tuple[CallableTool, ...]
    begin: str = ""
    between: str = ""
    end: str = ""
    at_most: int | None = None  # calls; None: any number
    answer: str | None = None  # a JSON schema (JSON text) of what may be said instead of calling
    answer_is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """How the output is constrained: exactly one of the fields but `strict`. The names are vLLM's.

    The output fits when it ends with finish_reason "stop"; one that max_tokens cuts off ends with "length".
    A JSON schema may be given as a mapping or as JSON text, and is kept as text.
    """

    json: str | Mapping[str, Any] | bool | None = None  # a JSON schema
    json_object: bool = False  # any JSON object
    regex: str | None = None  # the whole text matches it (Rust's syntax: no look-around, no back-references)
    choice: tuple[str, ...] | None = None  # the text is one of these
    grammar: str | None = None  # Lark, or GBNF (recognised by its ::=)
    calls: CallsGrammar | None = None  # tool calls, in the words of a model's format
    strict: bool = False  # refuse keywords of a schema that cannot be enforced, instead of leaving them out
    source: str = field(default=PARAM, compare=False)  # the request's field that errors are about

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if self.json is not None and not isinstance(self.json, str):
            set_field(self, "json", _as_text(self.json))
        if self.choice is not None:
            set_field(self, "choice", _as_choices(self.choice))
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidParameterError(
                f"structured outputs set {' and '.join(given) or 'nothing'}; set exactly one of {', '.join(_KINDS)}",
                param=PARAM,
            )
        for name in ("regex", "grammar"):
            if (value := getattr(self, name)) is not None and not (isinstance(value, str) and value):
                raise InvalidParameterError(f"{name} is {value!r:.50}; it must be a non-empty string", param=PARAM)


def _as_text(schema: Any) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the JSON schema cannot be written as JSON: {error}", param=PARAM) from None


def _as_choices(choices: Any) -> tuple[str, ...]:
    listed = tuple(choices) if isinstance(choices, Iterable) and not isinstance(choices, str) else ()
    if not listed or not all(isinstance(choice, str) and choice for choice in listed):
        raise InvalidParameterError(
            f"choice is {choices!r:.100}; it must be a list of one or more non-empty strings", param=PARAM
        )
    return tuple(dict.fromkeys(listed))
