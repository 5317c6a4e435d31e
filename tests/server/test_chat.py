"""POST /v1/chat/completions: messages, log-probabilities, streams, what is not supported yet."""

import pytest
from server.rig import MODEL, Rig, answer, error


def post(rig: Rig, **body):
    body.setdefault("messages", [{"role": "user", "content": "say:hello"}])
    return rig.http.post("/v1/chat/completions", json=body)


def prompt_len(rig: Rig, *messages) -> int:
    return answer(post(rig, messages=list(messages), max_tokens=1))["usage"]["prompt_tokens"]


def test_answers_have_the_documented_shape(rig: Rig) -> None:
    body = rig.chat("say:hello")
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    # <|im_start|> user \n say:hello <|im_end|> \n <|im_start|> assistant \n
    assert body["usage"]["prompt_tokens"] == 1 + 5 + 9 + 1 + 1 + 1 + 10
    assert body["usage"]["completion_tokens"] == 6


def test_every_role_and_form_of_content_reaches_the_template(rig: Rig) -> None:
    base = prompt_len(rig, {"role": "user", "content": ""})
    assert prompt_len(rig, {"role": "user", "content": "abc"}) == base + 3
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    assert prompt_len(rig, {"role": "user", "content": parts}) == base + 4  # parts are joined by a newline
    assert prompt_len(rig, {"role": "developer", "content": ""}) == base + len("system") - len("user")
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call()]},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "a", "refusal": None},
        {"role": "user", "content": "say:done", "name": "x"},
    ]
    assert answer(post(rig, messages=history))["choices"][0]["message"]["content"] == "done"


def tool_call():
    return {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages"),
        ([{"role": "user", "content": None}], "messages"),
        ([{"content": "x"}], "messages[0]"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages"),
        (["x"], "messages[0]"),
        ("x", "messages"),
        (None, "messages"),
    ],
)
def test_messages_that_are_none_are_refused(rig: Rig, messages, param: str) -> None:
    response = post(rig, messages=messages)
    assert response.status_code == 400
    assert error(response)["param"] == param


def test_messages_are_required(rig: Rig) -> None:
    response = rig.http.post("/v1/chat/completions", json={})
    assert (response.status_code, error(response)["param"]) == (400, "messages")


NULLABLE = """
model stream stream_options logit_bias tools response_format stop n seed temperature top_p logprobs top_logprobs
presence_penalty frequency_penalty max_completion_tokens functions function_call modalities top_k min_p
repetition_penalty min_tokens ignore_eos stop_token_ids priority cache_salt chat_template_kwargs
continue_final_message add_generation_prompt skip_special_tokens
"""


def test_srv_06_fields_that_clients_send_along_are_ignored_and_nulls_are_absent(rig: Rig) -> None:
    message = {"role": "user", "content": "say:hi", "id": 7, "opts": {"visible": False}, "name": "x"}
    response = post(
        rig,
        messages=[message],
        store=False,
        metadata={},
        user="u",
        service_tier="auto",
        reasoning_effort="low",
        max_tokens=3,
        nobody_knows_this=[1],
        parallel_tool_calls=True,
        tool_choice=None,
        **dict.fromkeys(NULLABLE.split()),
    )
    assert answer(response)["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [{"function": {"name": "f"}}], "regex": "a"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs"),
        ({"choice": []}, "choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 1000, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(rig: Rig, fields, param: str) -> None:
    response = post(rig, **fields)
    assert response.status_code == 400
    assert error(response)["param"] == param


def test_tools_that_must_not_be_used_do_no_harm(rig: Rig) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert answer(post(rig, tools=tools, tool_choice="none"))["choices"][0]["message"]["content"] == "hello"
    assert answer(post(rig, tools=[], tool_choice="auto"))["choices"][0]["message"]["content"] == "hello"


def test_len_05_max_completion_tokens_goes_before_max_tokens(rig: Rig) -> None:
    body = answer(post(rig, max_completion_tokens=3, max_tokens=1))
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("hel", "length")


def test_len_06_without_a_limit_generation_ends_at_the_context(rig: Rig) -> None:
    body = answer(post(rig, messages=[{"role": "user", "content": "hallucinate"}], ignore_eos=True))
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"
    rig.wait_until(active_requests=0, kv_blocks_used=0)


def test_continue_final_message_opens_no_new_turn(rig: Rig) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "say:yes"}]
    body = answer(post(rig, messages=messages, continue_final_message=True))
    assert body["choices"][0]["message"]["content"] == "yes"


def test_lgp_05_bytes_of_the_tokens_join_to_the_content(rig: Rig) -> None:
    text = "curly “quotes” \U0001f600"
    asked = {"messages": [{"role": "user", "content": "say:" + text}], "logprobs": True, "top_logprobs": 3}
    whole = answer(rig.http.post("/v1/chat/completions", json=asked))["choices"][0]
    entries = whole["logprobs"]["content"]
    assert whole["message"]["content"] == text
    assert bytes(value for entry in entries for value in entry["bytes"]) == text.encode()
    assert all(len(entry["top_logprobs"]) == 3 and entry["token"] for entry in entries)
    assert entries[0]["top_logprobs"][2] == {"token": "e", "bytes": [ord("e")], "logprob": -9999.0}

    streamed = []
    for event in rig.events("/v1/chat/completions", asked):
        logprobs = event["choices"][0]["logprobs"]
        content = event["choices"][0]["delta"]["content"]
        found = logprobs["content"] if logprobs else []
        assert bytes(value for entry in found for value in entry["bytes"]).decode() == content
        streamed += found
    assert streamed == entries


def test_srv_22_every_chunk_names_its_choice(rig: Rig) -> None:
    asked = {
        "messages": [{"role": "user", "content": "hm"}],
        "n": 2,
        "seed": 4242,
        "logprobs": True,
        "top_logprobs": 1,
        "temperature": 1.9,
        "max_tokens": 4,
    }
    whole = answer(rig.http.post("/v1/chat/completions", json=asked))
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    contents, roles, finishes = {0: "", 1: ""}, [], []
    for event in rig.events("/v1/chat/completions", asked):
        (choice,) = event["choices"]
        contents[choice["index"]] += choice["delta"]["content"]
        roles += [choice["index"]] if "role" in choice["delta"] else []
        finishes += [choice["index"]] if choice["finish_reason"] else []
    assert sorted(roles) == sorted(finishes) == [0, 1]
    assert contents == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert contents[0] != contents[1]


def test_srv_23_chunks_have_null_until_the_end_and_the_role_once(rig: Rig) -> None:
    events = rig.events("/v1/chat/completions", {"messages": [{"role": "user", "content": "say:hello"}]})
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(choice["delta"]) == {"content"} for choice in choices[1:])
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert choices[-1]["finish_reason"] == "stop"
    assert "".join(choice["delta"]["content"] for choice in choices) == "hello"


def test_cached_tokens_are_reported(rig: Rig) -> None:
    salt = "cached tokens"
    first = rig.chat("say:" + "x" * 60, cache_salt=salt, max_tokens=1)
    second = rig.chat("say:" + "x" * 60, cache_salt=salt, max_tokens=1)
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 80}  # 82 tokens: five full blocks of 16


def test_can_08_blocks_of_an_aborted_conversation_are_reused(rig: Rig) -> None:
    asked = {"messages": [{"role": "user", "content": "history " * 30}], "stream": True, "cache_salt": "aborted"}
    with rig.http.stream("POST", "/v1/chat/completions", json=asked) as response:
        next(response.iter_lines())
    rig.wait_until(active_requests=0)
    follow_up = [*asked["messages"], {"role": "user", "content": "say:on"}]
    body = answer(post(rig, messages=follow_up, cache_salt="aborted"))
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 240
