"""From `StructuredOutputsParams` to the library's grammar text. Pure but for the library's own converters.

Must not know tokens, sequences, or who asks.
"""

import json
from collections.abc import Callable

from mini_vllm.errors import InvalidParameterError
from mini_vllm.grammar.schema import prepare_schema
from mini_vllm.types import CallsGrammar, StructuredOutputsParams
from mini_vllm.types.structured import PARAM

MAX_CHARACTERS = 200_000  # of a schema, pattern, grammar, or all choices

_META = frozenset(r"\.+*?()|[]{}^$#&-~/")


def grammar_text(params: StructuredOutputsParams) -> str:
    """What the library is to compile. `InvalidParameterError` for what is too large or no schema at all."""
    from llguidance import LLMatcher

    _check_size(params)
    if params.calls is not None:
        return LLMatcher.grammar_from_lark(calls_lark(params.calls))
    if params.json is not None or params.json_object:
        text = params.json if isinstance(params.json, str) else '{"type":"object"}'
        schema = prepare_schema(text, strict=params.strict)
        return _convert(lambda: LLMatcher.grammar_from_json_schema(json.dumps(schema, ensure_ascii=False)))
    if params.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(escape, params.choice)))
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(f"(?:{params.regex})")
    assert params.grammar is not None
    return LLMatcher.grammar_from_lark(_as_lark(params.grammar))


def calls_lark(calls: CallsGrammar) -> str:
    """Tool calls, as a Lark grammar with JSON schemas in it."""
    more = "*" if calls.at_most is None else f"{{0,{calls.at_most - 1}}}"
    between = f"{_literal(calls.between)} " if calls.between else ""
    start = [_literal(calls.begin)] if calls.begin else []
    start.append("call")
    if calls.at_most != 1:
        start.append(f"({between}call){more}")
    if calls.end:
        start.append(_literal(calls.end))
    lines = [f"calls: {' '.join(start)}", f"call: {' | '.join(f'call_{i}' for i in range(len(calls.tools)))}"]
    for index, tool in enumerate(calls.tools):
        after = f" {_literal(tool.after)}" if tool.after else ""
        lines.append(f"call_{index}: {_literal(tool.before)} arguments_{index}{after}")
        lines.append(f"arguments_{index}: {_json_rule(tool.schema, strict=tool.strict)}")
    if calls.answer is None:
        return "\n".join(["start: calls", *lines, ""])
    lines.append(f"answer: {_json_rule(calls.answer, strict=calls.answer_is_strict)}")
    return "\n".join(["start: calls | answer", *lines, ""])


def _json_rule(schema: str, *, strict: bool) -> str:
    return f"%json {json.dumps(prepare_schema(schema, strict=strict), ensure_ascii=False)}"


def escape(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return "".join("\\" + character if character in _META else character for character in text)


def _as_lark(grammar: str) -> str:
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import any_to_lark

    return _convert(lambda: str(any_to_lark(grammar)))


def _convert(convert: Callable[[], str]) -> str:
    try:
        return convert()
    except Exception as error:  # the library raises whatever its parsers do
        raise InvalidParameterError(f"the grammar cannot be read: {one_line(error)}", param=PARAM) from None


def _check_size(params: StructuredOutputsParams) -> None:
    texts = [params.json, params.regex, params.grammar, *(params.choice or ())]
    if params.calls is not None:
        texts += [params.calls.answer, *(tool.schema for tool in params.calls.tools)]
    size = sum(len(text) for text in texts if isinstance(text, str))
    if size > MAX_CHARACTERS:
        raise InvalidParameterError(
            f"the structured output is described in {size} characters; at most {MAX_CHARACTERS} are allowed",
            param=PARAM,
        )


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def one_line(error: object) -> str:
    """An error of the library, short enough to show."""
    text = " ".join(str(error).replace("<non-verbose/>", "").split())
    return text if len(text) <= 300 else text[:299] + "…"
