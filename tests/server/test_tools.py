"""Tools through the server: what is forced, what is read, what streams, and how it ends."""

import json
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel
from server.puppet import puppet_server
from server.rig import MODEL, Rig, answer, error

from mini_vllm.text.tools import FORMATS

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}
TABLES = {"type": "function", "function": {"name": "list_tables", "parameters": {"type": "object", "properties": {}}}}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {
                "numbers": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"v": {"type": "number"}}, "required": ["v"]},
                    "maxItems": 2,
                }
            },
            "required": ["numbers"],
        },
    },
}
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n{# <think> #}"
)


@pytest.fixture(scope="module")
def puppet() -> Iterator[Rig]:
    with puppet_server() as running:
        yield running


def ask(rig: Rig, text: str, **fields):
    """(content, [(name, arguments)], finish_reason), the same whether streamed or not."""
    body = {"messages": [{"role": "user", "content": f"say:{text}"}], "temperature": 0, **fields}
    choice = answer(rig.http.post("/v1/chat/completions", json=body))["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    ids = [call["id"] for call in message.get("tool_calls", [])]
    assert len(set(ids)) == len(ids) and all(call["type"] == "function" for call in message.get("tool_calls", []))
    if calls and not message["content"]:
        assert message["content"] is None
    streamed = read_stream(rig, body)
    assert streamed == (message["content"] or "", message.get("reasoning_content", ""), calls, choice["finish_reason"])
    return message["content"], calls, choice["finish_reason"]


def read_stream(rig: Rig, body):
    content, thoughts, calls, finish = "", "", [], None
    for event in rig.events("/v1/chat/completions", body):
        (part,) = event["choices"]
        assert finish is None
        finish, delta = part["finish_reason"], part["delta"]
        content += delta.get("content") or ""
        thoughts += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                assert set(call) == {"index", "id", "type", "function"} and call["type"] == "function"
                assert call["function"]["arguments"] == ""
                calls.append((call["function"]["name"], ""))
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                calls[-1] = (calls[-1][0], calls[-1][1] + call["function"]["arguments"])
    return content, thoughts, calls, finish


def hermes(name: str, arguments: str) -> str:
    return FORMATS["hermes"].write([(name, arguments)])


def test_free_calls_are_read(puppet: Rig) -> None:
    arguments = '{"city": "Zürich"}'
    said = "Let me look.\n" + hermes("get_weather", arguments)
    assert ask(puppet, said, tools=[WEATHER]) == ("Let me look.", [("get_weather", arguments)], "tool_calls")
    assert ask(puppet, "No need.", tools=[WEATHER]) == ("No need.", [], "stop")
    content, calls, finish = ask(puppet, "<tool_call>broken</tool_call>", tools=[WEATHER])
    assert (content, calls, finish) == ("<tool_call>broken</tool_call>", [], "stop")
    assert ask(puppet, said, tools=[WEATHER], tool_choice="none") == (said, [], "stop")
    assert ask(puppet, said) == (said, [], "stop")


def test_tol_01_free_arguments_are_exact(puppet: Rig) -> None:
    arguments = '{"wd": 23, "sd": 0.8, "injection": "ZSJB39","k":[{"a":1}]}'
    assert ask(puppet, hermes("predict", arguments), tools=[WEATHER]) == (None, [("predict", arguments)], "tool_calls")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "list_tables"}}])
def test_tol_03_a_forced_call_without_arguments(puppet: Rig, choice) -> None:
    tools = [TABLES] if choice == "required" else [WEATHER, TABLES]
    content, calls, finish = ask(
        puppet, "I would rather talk.", tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=200
    )
    assert (content, finish) == (None, "tool_calls")
    assert [name for name, _ in calls] == ["list_tables"] and json.loads(calls[0][1]) == {}
    assert ask(puppet, hermes("list_tables", "{}"), tools=tools, tool_choice=choice)[1] == [("list_tables", "{}")]


def test_tol_04_arrays_of_objects_stream_whole(puppet: Rig) -> None:
    arguments = '{"numbers": [{"v": 1}, {"v": 2.5}]}'
    for choice in ("auto", "required"):
        found = ask(puppet, hermes("add", arguments), tools=[ADD], tool_choice=choice, parallel_tool_calls=False)
        assert found == (None, [("add", arguments)], "tool_calls")


@pytest.mark.parametrize("choice", ["required", "auto", {"type": "function", "function": {"name": "get_weather"}}])
def test_tol_06_a_call_that_the_budget_cuts_ends_with_length(puppet: Rig, choice) -> None:
    arguments = '{"city": "Rome"}'
    said = hermes("get_weather", arguments)
    for limit in range(1, len(said) + 3):
        fields = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": limit, "parallel_tool_calls": False}
        content, calls, finish = ask(puppet, said, **fields)
        if limit < len(said):
            assert finish == "length"
        if finish == "tool_calls":
            assert calls == [("get_weather", arguments)]
        for _, part in calls:
            assert arguments.startswith(part)
        assert content is None or said.startswith(content)
    assert finish == "tool_calls"


def test_tol_08_one_call_at_most_if_asked_for_and_numbered_ones_otherwise(puppet: Rig) -> None:
    cities = ['{"city": "Paris"}', '{"city": "Rome"}']
    said = FORMATS["hermes"].write([("get_weather", arguments) for arguments in cities])
    both = [("get_weather", arguments) for arguments in cities]
    for choice in ("auto", "required"):
        fields = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 300}
        assert ask(puppet, said, **fields) == (None, both, "tool_calls")
        assert ask(puppet, said, parallel_tool_calls=True, **fields) == (None, both, "tool_calls")
        assert ask(puppet, said, parallel_tool_calls=False, **fields) == (None, both[:1], "tool_calls")


@pytest.mark.parametrize("format", list(FORMATS))
def test_forced_calls_fit_whatever_the_format(format: str) -> None:
    with puppet_server(tool_format=format) as rig:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            content, calls, finish = ask(
                rig, "No!", tools=[WEATHER, ADD], tool_choice=choice, parallel_tool_calls=False, max_tokens=300
            )
            assert (content, finish, len(calls)) == (None, "tool_calls", 1)
            name, arguments = calls[0]
            assert set(json.loads(arguments)) == {"city" if name == "get_weather" else "numbers"}
        said = FORMATS[format].write([("add", '{"numbers": []}'), ("get_weather", '{"city": "é"}')])
        if format == "pythonic":  # what a model that is forced writes, and a free one may
            said = '[add(**{"numbers": []}), get_weather(**{"city": "é"})]'
        wanted = [("add", '{"numbers": []}'), ("get_weather", '{"city": "é"}')]
        for choice in ("auto", "required"):
            assert ask(rig, said, tools=[WEATHER, ADD], tool_choice=choice)[1:] == (wanted, "tool_calls")


def test_a_schema_for_the_answer_leaves_room_for_calls(puppet: Rig) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    fields = {"tools": [WEATHER], "response_format": wanted, "max_tokens": 200}
    said = hermes("get_weather", '{"city": "Rome"}')
    assert ask(puppet, said, **fields) == (None, [("get_weather", '{"city": "Rome"}')], "tool_calls")
    assert ask(puppet, '{"n": 2}', **fields) == ('{"n": 2}', [], "stop")
    content, calls, finish = ask(puppet, "words", **fields)
    assert finish == "tool_calls" if calls else json.loads(content)["n"] in (1, 2)


def test_allowed_tools_narrow_the_choice(puppet: Rig) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "list_tables"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    fields = {"tools": [WEATHER, TABLES], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
    assert ask(puppet, "x", **fields)[1][0][0] == "list_tables"


def test_a_bad_schema_of_a_tool_is_a_bad_request(puppet: Rig) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "objet"}}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "required"}
    response = puppet.http.post("/v1/chat/completions", json=body)
    assert (response.status_code, error(response)["param"]) == (400, "tools")
    strict = {"type": "array", "uniqueItems": True}
    tool["function"] |= {"parameters": {"type": "object", "properties": {"a": strict}}, "strict": True}
    response = puppet.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and "uniqueItems" in error(response)["message"]


def test_tools_and_what_came_of_them_reach_a_template_that_knows_none(puppet: Rig) -> None:
    rendered: list[str] = []

    def render(messages, **options) -> str:
        ids = puppet.llm.render_chat(messages, **options)
        rendered.append(puppet.llm.tokenizer.decode(ids, skip_special_tokens=False))
        return rendered[-1]

    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome <&é>"}'}}
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "22°"},
        {"role": "tool", "tool_call_id": "c2", "content": "dry"},
    ]
    text = render(history, tools=[WEATHER])
    assert text.index("Be brief.") < text.index("<tools>") < text.index('"description": "The weather in a city."')
    assert hermes("get_weather", '{"city": "Rome <&é>"}') in text
    assert "<tool_response>\n22°\n</tool_response>\n<tool_response>\ndry\n</tool_response>" in text
    assert "None" not in text and "null" not in text and "&lt;" not in text
    assert "<tools>" not in render(history) and "get_weather" in render(history)
    assert "<|im_start|>system\nYou have these tools" in render(history[1:], tools=[WEATHER])


def test_a_template_that_knows_tools_gets_them() -> None:
    template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + THINKING
    with puppet_server(template=template) as rig:
        said = hermes("get_weather", '{"city": "Rome"}')
        assert ask(rig, said, tools=[WEATHER])[1:] == ([("get_weather", '{"city": "Rome"}')], "tool_calls")
        ids = rig.llm.render_chat([{"role": "user", "content": "x"}], tools=[WEATHER])
        assert rig.llm.tokenizer.decode(ids, skip_special_tokens=False).startswith("[get_weather]<|im_start|>x")


def test_thoughts_are_apart_from_the_answer() -> None:
    with puppet_server(template=THINKING) as rig:
        said = "<think>\nHm, < 5?\n</think>\n\nFour."
        message = rig.chat(f"say:{said}", temperature=0)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm, < 5?", "Four.")
        body = {"messages": [{"role": "user", "content": f"say:{said}"}], "temperature": 0}
        assert read_stream(rig, body) == ("Four.", "Hm, < 5?", [], "stop")
        assert ask(rig, "No thoughts.") == ("No thoughts.", [], "stop")
        called = said + hermes("list_tables", "{}")
        assert ask(rig, called, tools=[TABLES]) == ("Four.", [("list_tables", "{}")], "tool_calls")
        wanted = {"type": "json_object"}  # starts with the first token: no thoughts then
        assert ask(rig, '{"a": 1}', response_format=wanted) == ('{"a": 1}', [], "stop")
    with puppet_server(template=THINKING.replace("{# <think> #}", "<think>")) as rig:
        skipped = "." * len("<think>")  # the prompt holds these characters of the answer
        message = rig.chat(f"say:{skipped}So.</think>Four.", temperature=0)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("So.", "Four.")
        message = rig.chat(f"say:{skipped}So on", temperature=0)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("So on", "")


class Person(BaseModel):
    name: str
    age: int


def test_the_sdk_parses_answers_and_calls(puppet: Rig) -> None:
    with openai.OpenAI(base_url=puppet.url + "/v1", api_key="none", max_retries=0) as client:
        good = '{"name":"Bob","age":30}'
        messages = [{"role": "user", "content": "say:" + good}]
        done = client.chat.completions.parse(
            model=MODEL, messages=messages, response_format=Person, temperature=0, max_tokens=200
        )
        assert done.choices[0].message.parsed == Person(name="Bob", age=30)
        with client.chat.completions.stream(
            model=MODEL, messages=messages, response_format=Person, temperature=0, max_tokens=200
        ) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == Person(name="Bob", age=30)

        tool = openai.pydantic_function_tool(Person, name="save_person")
        asked = {"model": MODEL, "tools": [tool], "temperature": 0, "max_tokens": 300, "parallel_tool_calls": False}
        for choice in ("auto", "required", {"type": "function", "function": {"name": "save_person"}}):
            said = hermes("save_person", good)
            messages = [{"role": "user", "content": "say:" + said}]
            done = client.chat.completions.parse(messages=messages, tool_choice=choice, **asked).choices[0]
            assert done.finish_reason == "tool_calls" and done.message.content is None
            [call] = done.message.tool_calls
            assert call.function.parsed_arguments == Person(name="Bob", age=30)
            with client.chat.completions.stream(messages=messages, tool_choice=choice, **asked) as stream:
                final = stream.get_final_completion().choices[0]
            assert final.finish_reason == "tool_calls"
            assert final.message.tool_calls[0].function.parsed_arguments == Person(name="Bob", age=30)


def test_n_choices_call_each_for_itself(puppet: Rig) -> None:
    body = {
        "messages": [{"role": "user", "content": "say:" + hermes("get_weather", '{"city": "Rome"}')}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "n": 3,
        "seed": 4,
        "temperature": 2,
        "max_tokens": 300,
    }
    choices = answer(puppet.http.post("/v1/chat/completions", json=body))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for choice in choices:
        assert choice["finish_reason"] == "tool_calls"
        assert list(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])) == ["city"]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3


def test_python_calls_free_and_forced() -> None:
    with puppet_server(tool_format="pythonic") as rig:
        said = "[get_weather(city='Oslo'), list_tables()]"
        expected = [("get_weather", '{"city": "Oslo"}'), ("list_tables", "{}")]
        assert ask(rig, said, tools=[WEATHER, TABLES]) == (None, expected, "tool_calls")
        assert ask(rig, "No need.", tools=[WEATHER]) == ("No need.", [], "stop")
        content, [(name, arguments)], finish = ask(
            rig, "no", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
        )
        assert (content, name, finish) == (None, "get_weather", "tool_calls")
        assert set(json.loads(arguments)) == {"city"}


def test_bad_words_are_not_written_streamed_or_not(puppet: Rig) -> None:
    content, _, finish = ask(puppet, "a cat and a dog", bad_words=["cat", " dog"], max_tokens=30)
    assert finish == "stop" and content.startswith("a ca") and "cat" not in content and " dog" not in content
    assert ask(puppet, "a cat")[0] == "a cat"


def test_thoughts_are_ended_by_their_budget() -> None:
    with puppet_server(template=THINKING) as rig:
        body = {"messages": [{"role": "user", "content": "say:<think>0123456789</think>Yes."}], "temperature": 0}
        whole = answer(rig.http.post("/v1/chat/completions", json={**body, "thinking_token_budget": 6}))
        message = whole["choices"][0]["message"]
        assert message["reasoning_content"] == "012345"
        free = answer(rig.http.post("/v1/chat/completions", json={**body, "thinking_token_budget": 60}))
        assert free["choices"][0]["message"] == {**message, "reasoning_content": "0123456789", "content": "Yes."}
        asked = {"max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 6}, **body}
        found = answer(rig.http.post("/v1/messages", json=asked))
        assert found["content"][0] == {"type": "thinking", "thinking": "012345", "signature": ""}
