"""Tool-call parsers: whatever the chunking, the same calls, their exact arguments, and no text lost."""

import json
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.text.router import OutputRouter
from mini_vllm.text.tools import FORMATS, CallArguments, CallEnd, CallStart, Content, Reasoning, choose_format

NAMES = ("predict_x", "get_weather", "list_tables", "add")


class Heard:
    """Events, put together."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[list] = []  # [name, arguments, complete]
        self.called = False

    def take(self, event) -> None:
        match event:
            case Content(text):
                assert text
                self.content += text
            case Reasoning(text):
                assert text
                self.reasoning += text
            case CallStart(index, name):
                assert index == len(self.calls)
                self.calls.append([name, "", False])
            case CallArguments(index, text):
                assert text and index == len(self.calls) - 1
                self.calls[index][1] += text
            case CallEnd(index):
                self.calls[index][2] = True

    def seen(self):
        return self.content, self.reasoning, [tuple(call) for call in self.calls], self.called


def hear(pieces: Sequence[str], *, format="hermes", thinking="never", at_most=None):
    parser = FORMATS[format].read(NAMES) if format else None
    router = OutputRouter(tools=parser, thinking=thinking, at_most=at_most)
    heard = Heard()
    for piece in pieces:
        for event in router.push(piece):
            heard.take(event)
    for event in router.finish():
        heard.take(event)
    heard.called = router.called
    return heard.seen()


def chunkings(text: str) -> Iterator[list[str]]:
    for size in (1, 2, 3, 5, 7):
        yield [text[i : i + size] for i in range(0, len(text), size)]
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]
    for cut in range(1, len(text) - 1):
        yield [text[:cut], text[cut], text[cut + 1 :]]


def check(text: str, expected, **how) -> None:
    assert hear([text], **how) == expected
    for pieces in chunkings(text):
        assert hear(pieces, **how) == expected, pieces


ARGUMENTS = '{"wd": 23, "sd": 0.8, "injection": "ZSJB39","k":[{"a":1}]}'


def test_tol_01_arguments_are_the_exact_json_in_every_chunking() -> None:
    text = f'<tool_call>{{"name":"predict_x","arguments":{ARGUMENTS}}}</tool_call>'
    check(text, ("", "", [("predict_x", ARGUMENTS, True)], True))
    assert json.loads(ARGUMENTS)["k"] == [{"a": 1}]


def test_tol_03_a_call_without_arguments_has_an_empty_object() -> None:
    for inner in (
        '{"name": "list_tables", "arguments": {}}',
        '{"name": "list_tables"}',
        '{"name": "list_tables", "arguments": null}',
        '{"arguments": {}, "name": "list_tables"}',
    ):
        check(f"<tool_call>\n{inner}\n</tool_call>", ("", "", [("list_tables", "{}", True)], True))


def test_tol_04_brackets_in_brackets_are_kept() -> None:
    arguments = '{"numbers": [{"v": 1}, {"v": 2.5e3}], "s": "}]\\"{[", "e": [[], {}]}'
    check(
        f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>',
        ("", "", [("add", arguments, True)], True),
    )
    json.loads(arguments)


def test_tol_06_a_call_that_is_cut_off_is_not_complete() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": [1, 2], "b": "c"}}\n</tool_call>'
    end = text.index("}}") + 2
    for cut in range(len(text)):
        content, _, calls, called = hear([text[:cut]])
        assert called == (cut >= end)
        if calls:
            assert content == "" and '{"a": [1, 2], "b": "c"}'.startswith(calls[0][1])
        else:  # what shows no call yet is text, all of it
            assert content == text[:cut]


def test_tol_08_calls_are_numbered_and_can_be_limited() -> None:
    text = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    paris, rome = ("get_weather", '{"city": "Paris"}', True), ("get_weather", '{"city": "Rome"}', True)
    check(text, ("", "", [paris, rome], True))
    check(text, ("", "", [paris], True), at_most=1)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello  \n there ", "Hello  \n there ", []),
        ("", "", []),
        (" \n", " \n", []),
        ("a < b <tool", "a < b <tool", []),
        ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
        ('<tool_call>{"a": 1}</tool_call>!', '<tool_call>{"a": 1}</tool_call>!', []),
        ('<tool_call><tool_call>{"name": "f"}</tool_call>', "<tool_call>", [("f", "{}", True)]),
        ('Let me see.\n<tool_call>{"name": "f"}</tool_call>\nDone.', "Let me see.\nDone.", [("f", "{}", True)]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", [("f", '{"a": 1}', True)]),
        ('<tool_call>{"arguments": {"a": "é\\u00e9"}, "name": "f"}', "", [("f", '{"a": "é\\u00e9"}', True)]),
        ('<tool_call>{"name": "f", "arguments": [1]}', "", [("f", "[1]", True)]),
        ('<tool_call>{"id": 7, "name": "f\\n", "x": {"name": 1}, "arguments": {}}', "", [("f\n", "{}", True)]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1} oops', "oops", [("f", '{"a": 1}', False)]),
    ],
)
def test_tagged_calls_and_everything_else(text: str, content: str, calls) -> None:
    heard = hear([text])
    assert heard[0].replace("\n", "") == content.replace("\n", "") or heard[0] == content
    assert heard[2] == calls
    for pieces in chunkings(text):
        assert hear(pieces) == heard, pieces


@pytest.mark.parametrize("format", ["llama3_json", "json"])
def test_bare_calls(format: str) -> None:
    call = '{"name": "add", "parameters": {"a": 1}}'
    one = ("add", '{"a": 1}', True)
    check(call, ("", "", [one], True), format=format)
    check(" <|python_tag|>" + call, ("", "", [one], True), format=format)
    check(call + "; " + call, ("", "", [one, one], True), format=format)
    check(f"[{call}, {call}]", ("", "", [one, one], True), format=format)
    check('{"type": "function", "name": "add", "arguments": {"a": 1}}', ("", "", [one], True), format=format)


@pytest.mark.parametrize(
    "text",
    [
        "Hi {there}",
        '{"name": "Bob", "arguments": {"age": 3}}',  # no such tool: an answer in JSON
        '{"answer": [1, 2]}',
        '[{"answer": 1}, 2]',
        "[1, 2]",
        "  <|python",
        "<|python_tag|>print(1)",
        '{"name": "add"',
        "{",
        "[",
        " ",
        "",
    ],
)
def test_bare_text_that_is_no_call_is_content_to_the_last_character(text: str) -> None:
    check(text, (text, "", [], False), format="llama3_json")


def test_calls_behind_a_marker() -> None:
    one, two = ("add", '{"a": [1]}', True), ("get_weather", "{}", True)
    listed = '[TOOL_CALLS][{"name": "add", "arguments": {"a": [1]}}, {"name": "get_weather", "arguments": {}}]'
    check(listed, ("", "", [one, two], True), format="mistral")
    check("Well.\n" + listed, ("Well.", "", [one, two], True), format="mistral")
    newer = '[TOOL_CALLS]add[ARGS]{"a": [1]}[TOOL_CALLS]get_weather{}'
    check(newer, ("", "", [one, two], True), format="mistral")
    for text in (
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS]nobody{}",
        "[TOOL_CALLS][1]",
        "[TOOL_C",
        "[TOOL_CALLS]add",
    ):
        check(text, (text, "", [], False), format="mistral")


def test_thoughts_come_first_and_calls_in_them_are_thoughts() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    check(
        f"<think>\nIs it {call}?\n</think>\n\n{call}",
        ("", f"Is it {call}?", [("add", "{}", True)], True),
        thinking="maybe",
    )
    check("hm </think> Yes.", ("Yes.", "hm", [], False), thinking="begun")
    check("hm, not over </thin", ("", "hm, not over </thin", [], False), thinking="begun")
    check("<think></think>Yes", ("Yes", "", [], False), thinking="maybe")
    check(" Yes <think>", (" Yes <think>", "", [], False), thinking="maybe")
    check(" <thi", (" <thi", "", [], False), thinking="maybe")
    check("<think> a </think> b", ("<think> a </think> b", "", [], False), thinking="never")
    check("<think> a  b </think> c ", ("c ", "a  b", [], False), thinking="maybe", format=None)


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "add"',
        ', "arguments": ',
        '{"a": "\\"}"}',
        "}",
        "[TOOL_CALLS]",
        "[",
        "]",
        "[ARGS]",
        "add",
        "<|python_tag|>",
        "; ",
        "text",
        " ",
        "\n",
        '"',
        "\\",
        "{",
        ",",
        "null",
        "[add(",
        "list_tables()",
        "a='x,)'",
        "b=[1, (2",
        ")]",
        "=",
        "(",
    ]
)


@given(
    st.lists(FRAGMENTS, max_size=14).map("".join),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.sampled_from([*FORMATS, None]),
    st.sampled_from(["never", "maybe", "begun"]),
)
def test_any_text_in_any_pieces_means_the_same(text: str, sizes: list[int], format, thinking) -> None:
    pieces, start, turn = [], 0, 0
    while start < len(text):
        pieces.append(text[start : start + sizes[turn % len(sizes)]])
        start, turn = start + sizes[turn % len(sizes)], turn + 1
    whole = hear([text], format=format, thinking=thinking)
    assert hear(pieces, format=format, thinking=thinking) == whole
    if not whole[2] and thinking == "never":
        assert whole[0] == text  # without a call nothing is lost


@pytest.mark.parametrize("name", list(FORMATS))
def test_what_a_format_writes_it_reads(name: str) -> None:
    calls = [("add", '{"a": "ü\\n}"}'), ("get_weather", "{}")]
    text = FORMATS[name].write(calls)
    check(text, ("", "", [(*call, True) for call in calls], True), format=name)


def test_the_format_is_chosen_by_the_template() -> None:
    assert choose_format("{{ '<tool_call>' }}").name == "hermes"
    assert choose_format("{{ '[TOOL_CALLS]' }}").name == "mistral"
    assert choose_format("{{ '<|python_tag|>' }}").name == "llama3_json"
    assert choose_format("{{ '<|python_start|>' }}").name == "pythonic"
    assert choose_format("{{ messages }}").name == "hermes"
    assert choose_format("{{ '<tool_call>' }}", name="json").name == "json"


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (None, {"type": "object", "properties": {}}),
        ({}, {"type": "object", "properties": {}}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}),
    ],
)
def test_forced_arguments_are_objects(parameters, schema) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    calls = FORMATS["hermes"].force([tool], at_most=1)
    assert json.loads(calls.tools[0].schema) == schema
    assert calls.tools[0].before == '<tool_call>\n{"name": "f", "arguments": '
    assert calls.at_most == 1 and FORMATS["hermes"].force([tool], at_most=None).at_most == 16


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("a=1, b='x'", '{"a": 1, "b": "x"}'),
        ("", "{}"),
        (" ", "{}"),
        ("a=1,", '{"a": 1}'),
        ("a = None, b=True, c=false", '{"a": null, "b": true, "c": false}'),
        ("a=[1, (2, 3)], b={'k': [\"}\", ')']}", '{"a": [1, [2, 3]], "b": {"k": ["}", ")"]}}'),
        ("""a='it\\'s', b="(\\"[", c='ü'""", '{"a": "it\'s", "b": "(\\"[", "c": "ü"}'),
        ("a='two\nlines'", '{"a": "two\\nlines"}'),
        ("a=f(1), b=-2.5e3, c=1e999", '{"a": "f(1)", "b": -2500.0, "c": "inf"}'),
        ('**{"city": "Oslo, NO"}', '{"city": "Oslo, NO"}'),
        ("a='\\ud800'", '{"a": "\\ud800"}'),
    ],
)
def test_python_arguments_become_json_in_every_chunking(written: str, arguments: str) -> None:
    text = f"[add({written}), list_tables()]"
    check(text, ("", "", [("add", arguments, True), ("list_tables", "{}", True)], True), format="pythonic")
    json.loads(arguments)


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "[unknown(a=1)]", "add(a=1)", "[add(1)]", "[add(a=1", "[add", "[]", "<|python_start|>hello", "[add(]"],
)
def test_what_is_no_python_call_is_content(text: str) -> None:
    cut = text == "[add(a=1"
    check(text, (text, "", [], False), format="pythonic") if not cut else None
    if cut:
        assert hear([text], format="pythonic")[3] is False


def test_python_calls_that_are_cut_or_followed_by_words() -> None:
    check("[add(a=1, b='x", ("", "", [("add", '{"a": 1', False)], False), format="pythonic")
    check("<|python_start|>[add(a=1)]<|python_end|>", ("", "", [("add", '{"a": 1}', True)], True), format="pythonic")
    check(" [add(a=1)] Done.", ("Done.", "", [("add", '{"a": 1}', True)], True), format="pythonic")


def test_forced_python_calls_hold_json() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}
    calls = FORMATS["pythonic"].force([tool], at_most=1)
    assert (calls.begin, calls.tools[0].before, calls.tools[0].after, calls.end) == ("[", "add(**", ")", "]")
