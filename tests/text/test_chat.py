"""Chat templates, against transformers' own rendering."""

import json
from datetime import datetime

import pytest
from text import templates
from text.vocabularies import SMOLLM, byte_level

from mini_vllm.errors import ChatTemplateError
from mini_vllm.text import ChatTemplate

NAMED = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
NOW = datetime(2026, 3, 4)

USER = [{"role": "user", "content": "Hi <b>&amp; 'there' \"é日\""}]
TURNS = [*USER, {"role": "assistant", "content": " Hello!\n"}, {"role": "user", "content": "More, please?  "}]
SYSTEM = [{"role": "system", "content": "Be brief."}, *TURNS]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": 'Zü<r>i"ch & 東京', "n": 2}},
}
TOOL_TURNS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "22°C & <sunny>"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Get <the> "weather" & 天気',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module")
def reference():
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(SMOLLM), bos_token=NAMED["bos_token"], eos_token=NAMED["eos_token"]
    )


def ours(source: str) -> ChatTemplate:
    return ChatTemplate(source, variables=NAMED)


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (templates.CHATML, USER),
        (templates.CHATML, SYSTEM),
        (templates.LLAMA3, TURNS),
        (templates.LLAMA3, SYSTEM),
        (templates.LLAMA3, TOOL_TURNS),
        (templates.MISTRAL, TURNS),
        (templates.GEMMA, TURNS),
        (templates.QWEN, SYSTEM),
        (templates.QWEN, TOOL_TURNS),
        (templates.GENERATION, TURNS),
        (templates.MACROS, TOOL_TURNS),
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renderings_equal_transformers(reference, source, messages, tools, generation) -> None:
    expected = reference.apply_chat_template(
        messages, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=generation
    )
    assert ours(source).render(messages, tools=tools, add_generation_prompt=generation) == expected
    assert len(expected) > 20


def test_template_variables_equal_transformers(reference) -> None:
    for thinking in (True, False):
        expected = reference.apply_chat_template(
            USER,
            chat_template=templates.QWEN,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        assert ours(templates.QWEN).render(USER, enable_thinking=thinking) == expected
        assert expected.endswith("</think>\n\n") != thinking


def test_strftime_now_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}{{ messages[0].content }}", now=lambda: NOW)
    assert template.render([{"role": "user", "content": "!"}]) == "2026-03-04!"


@pytest.mark.parametrize(
    ("source", "messages", "says"),
    [
        (templates.GEMMA, SYSTEM, "System role not supported"),
        (templates.MISTRAL, [*USER, *USER], "roles must alternate"),
        (templates.MISTRAL, [{"role": "assistant", "content": "x"}], "roles must alternate"),
        (templates.MISTRAL, [{"role": "system", "content": "x"}], "roles must alternate"),
        ("{{ messages[9].content }}", USER, "no element 9"),
        ("{{ 1 / 0 }}", USER, "division by zero"),
        ("{{ nothing.at.all }}", USER, "'nothing' is undefined"),
    ],
)
def test_tpl_01_the_templates_own_message_is_a_chat_template_error(source, messages, says) -> None:
    with pytest.raises(ChatTemplateError, match=f"refused these messages: .*{says}") as caught:
        ours(source).render(messages)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_tpl_05_every_role_takes_parts(role: str) -> None:
    parts = [{"type": "text", "text": "My code"}, {"type": "text", "text": "is 7421."}]
    messages = [*USER, {"role": role, "content": parts}]
    joined = [*USER, {"role": role, "content": "My code\nis 7421."}]
    assert ours(templates.CHATML).render(messages) == ours(templates.CHATML).render(joined)
    assert "7421" in ours(templates.CHATML).render(messages)


def test_a_template_that_walks_over_parts_gets_parts() -> None:
    template = ours(templates.PARTS)
    expected = "<user>a\nb</user><assistant>c</assistant>"
    as_parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": as_parts}, {"role": "assistant", "content": "c"}]
    assert template.render(messages, add_generation_prompt=False) == expected
    assert template.render([{"role": "user", "content": "text"}]) == "<user>text</user>"


@pytest.mark.parametrize("source", [templates.CHATML, templates.QWEN, templates.LLAMA3, templates.DEEPSEEK])
@pytest.mark.parametrize("content", [None, "", "absent"])
def test_tpl_06_null_content_of_a_tool_call_turn_shows_nothing(source, content) -> None:
    assistant = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    if content == "absent":
        del assistant["content"]
    messages = [{"role": "user", "content": "w?"}, assistant, {"role": "tool", "tool_call_id": "c1", "content": "42"}]
    text = ours(source).render(messages)
    assert "None" not in text
    assert "null" not in text
    assert "42" in text


@pytest.mark.parametrize("content", [None, "", "absent"])
def test_tpl_06_a_template_that_looks_for_null_beside_tool_calls_finds_it(content) -> None:
    source = (
        "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}CALL "
        "{{ m['tool_calls'][0]['function']['name'] }}{% else %}{{ m['content'] }};{% endif %}{% endfor %}"
    )
    assistant = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    if content == "absent":
        del assistant["content"]
    plain = {"role": "assistant", "content": None}
    assert ours(source).render([*USER, plain, assistant]) == USER[0]["content"] + ";;CALL weather"


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_tpl_06_null_content_of_a_user_is_refused(role: str) -> None:
    with pytest.raises(ChatTemplateError, match=rf"messages\[0\] \({role}\) has no content"):
        ours(templates.CHATML).render([{"role": role, "content": None}])


@pytest.mark.parametrize("ending", ["", " ", "\t", "\n", " \n\n", "OK!", "OK!\n"])
@pytest.mark.parametrize(
    "source",
    [templates.CHATML, templates.LLAMA3, templates.GEMMA, templates.QWEN, templates.PARTS, templates.GENERATION],
)
def test_tpl_07_the_final_message_is_continued_right_after_its_text(source, ending) -> None:
    said = "OK! Tell me" + ending
    messages = [{"role": "user", "content": "OK! Tell me a joke. " + said}, {"role": "assistant", "content": said}]
    text = ours(source).render(messages, continue_final_message=True)
    assert text.endswith(said)
    assert text.count("OK! Tell me") == 3
    opened = ours(source).render(messages, add_generation_prompt=False)
    assert opened.startswith(text.rstrip())


def test_tpl_07_an_empty_final_message_is_continued_at_its_start() -> None:
    messages = [*USER, {"role": "assistant", "content": ""}]
    text = ours(templates.CHATML).render(messages, continue_final_message=True)
    assert text == ours(templates.CHATML).render(USER, add_generation_prompt=True)


def test_tpl_07_both_flags_are_contradictory() -> None:
    with pytest.raises(ChatTemplateError, match="both true"):
        ours(templates.CHATML).render(TURNS, continue_final_message=True, add_generation_prompt=True)


def test_continuing_equals_transformers(reference) -> None:
    messages = [*USER, {"role": "assistant", "content": "The answer is"}]
    expected = reference.apply_chat_template(
        messages, chat_template=templates.CHATML, tokenize=False, continue_final_message=True
    )
    assert ours(templates.CHATML).render(messages, continue_final_message=True) == expected


def test_a_final_message_that_is_not_shown_cannot_be_continued() -> None:
    source = "{{ messages[0].content }}"
    with pytest.raises(ChatTemplateError, match="does not show the final message"):
        ours(source).render([*USER, {"role": "assistant", "content": "x"}], continue_final_message=True)


@pytest.mark.parametrize("source", [templates.QWEN, templates.LLAMA3, templates.DEEPSEEK])
@pytest.mark.parametrize("as_text", [True, False])
def test_tol_10_arguments_work_as_text_and_as_mapping(source, as_text) -> None:
    arguments = CALL["function"]["arguments"]
    text = json.dumps(arguments, ensure_ascii=False)
    function = {"name": "weather", "arguments": text if as_text else arguments}
    messages = [USER[0], {"role": "assistant", "content": None, "tool_calls": [CALL | {"function": function}]}]
    rendered = ours(source).render(messages)
    assert text in rendered
    assert rendered.count("weather") == 1


def test_tol_10_items_of_arguments_can_be_walked() -> None:
    source = (
        "{% for key, value in messages[0].tool_calls[0].function.arguments.items() %}{{ key }}={{ value }};{% endfor %}"
        "{{ messages[0].tool_calls[0].function.arguments is mapping }}"
    )
    calls = [{"type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": "x"}'}}]
    assert ours(source).render([{"role": "assistant", "tool_calls": calls}]) == "a=1;b=x;True"


@pytest.mark.parametrize(
    ("arguments", "shown"), [("", "{}"), (None, "{}"), ("not json", '"not json"'), ("[1]", '"[1]"')]
)
def test_tol_10_odd_arguments_do_not_fail(arguments, shown) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert shown in ours(templates.QWEN.replace("is string", "is number")).render(
        [USER[0], {"role": "assistant", "tool_calls": [call]}]
    )


def test_tol_12_nothing_is_escaped() -> None:
    text = ours(templates.QWEN).render(TOOL_TURNS, tools=TOOLS)
    assert "&#34;" not in text and "&lt;" not in text and "\\u" not in text
    assert 'Zü<r>i\\"ch & 東京' in text
    assert 'Get <the> \\"weather\\" & 天気' in text


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages is empty"),
        (["x"], r"messages\[0\] is str"),
        ([{"content": "x"}], r"messages\[0\] has role None"),
        ([{"role": 1, "content": "x"}], "has role 1"),
        ([{"role": "user", "content": 7}], "content of type int"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "part of type 'image_url'.*text parts",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "whose text is NoneType"),
        ([{"role": "user", "content": [3]}], "part of type 'int'"),
        ([{"role": "assistant", "tool_calls": 3}], "tool_calls of type int"),
        ([{"role": "assistant", "tool_calls": [3]}], "tool call of type int"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages, says) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        ours(templates.CHATML).render(messages)


def test_the_requests_own_variables_cannot_be_replaced() -> None:
    with pytest.raises(ChatTemplateError, match="template variable messages is set by the request itself"):
        ours(templates.CHATML).render(USER, messages=[])


def test_messages_are_not_changed() -> None:
    messages = [{"role": "developer", "content": "x", "name": None}, *TOOL_TURNS]
    before = json.dumps(messages)
    text = ours(templates.CHATML).render(messages)
    assert json.dumps(messages) == before
    assert "<|im_start|>system\nx<|im_end|>" in text  # unless the template knows developers
    assert "developer" in ours(templates.CHATML + "{# developer #}").render(messages)
