"""/v1/messages: Anthropic's shape, streamed and whole."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from server.puppet import puppet_server
from server.rig import MODEL, Rig, answer, serving
from server.test_tools import THINKING, WEATHER, hermes

TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": WEATHER["function"]["parameters"],
}


@pytest.fixture(scope="module")
def puppet() -> Iterator[Rig]:
    with puppet_server() as running:
        yield running


def send(rig: Rig, content: Any, **fields: Any) -> dict[str, Any]:
    """The message, which the stream must tell too."""
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    body = {"model": MODEL, "max_tokens": 200, "temperature": 0, "messages": messages, **fields}
    whole = answer(rig.http.post("/v1/messages", json=body))
    streamed = rebuilt(read_events(rig, body))
    for key in ("content", "stop_reason", "stop_sequence", "role", "type", "model"):
        assert without_ids(streamed[key]) == without_ids(whole[key])
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    return whole


def read_events(rig: Rig, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = rig.http.post("/v1/messages", json={**body, "stream": True})
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    message = events[0]["message"]
    assert events[0]["type"] == "message_start" and message["content"] == [] and message["stop_reason"] is None
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    partial = ""
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                partial = ""
            case "content_block_delta":
                delta, block = event["delta"], message["content"][event["index"]]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "input_json_delta":
                        partial += delta["partial_json"]
            case "content_block_stop":
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(partial)
    return {**message, **events[-2]["delta"], "usage": {**message["usage"], **events[-2]["usage"]}}


def without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [{k: v for k, v in each.items() if k != "id"} for each in value]
    return value


def test_a_text(puppet: Rig) -> None:
    found = send(puppet, "say:Grüß dich!", system="Be nice.")
    assert found["content"] == [{"type": "text", "text": "Grüß dich!"}]
    assert (found["type"], found["role"], found["stop_reason"]) == ("message", "assistant", "end_turn")
    assert found["id"].startswith("msg_")
    usage = found["usage"]
    parts = [{"type": "text", "text": "say:Grüß dich!"}]
    again = send(puppet, [{"role": "user", "content": parts}], system=[{"type": "text", "text": "Be nice."}])
    assert again["content"] == found["content"]
    read = again["usage"]["input_tokens"] + again["usage"]["cache_read_input_tokens"]
    assert read == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert again["usage"]["cache_read_input_tokens"] > 0


def test_how_it_ends(puppet: Rig) -> None:
    cut = send(puppet, "say:0123456789", max_tokens=4)
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "0123")
    stopped = send(puppet, "say:0123456789", stop_sequences=["56"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "56")
    assert stopped["content"][0]["text"] == "01234"


def test_an_answer_that_the_client_began_goes_on(rig: Rig) -> None:
    turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "say:0123456789"}]
    for begun in (turns, [turns[0], {"role": "assistant", "content": [{"type": "text", "text": "say:0123456789"}]}]):
        found = send(rig, begun, max_tokens=4)
        assert found["content"][0]["text"] == "0123"
        read = found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"]
        count = answer(rig.http.post("/v1/messages/count_tokens", json={"messages": begun}))["input_tokens"]
        body = {"messages": turns, "continue_final_message": True}
        assert read == count == answer(rig.http.post("/tokenize", json=body))["count"]


def test_tools_and_their_results(puppet: Rig) -> None:
    said = "Let me look.\n" + hermes("get_weather", '{"city": "Oslo"}')
    found = send(puppet, f"say:{said}", tools=[TOOL])
    text, use = found["content"]
    assert (text["text"], found["stop_reason"]) == ("Let me look.", "tool_use")
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "say:Sunny."}]}
    turns = [
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": found["content"]},
        {"role": "user", "content": [result]},
    ]
    assert send(puppet, turns, tools=[TOOL])["content"][0]["text"].startswith("Sunny.")
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        forced = send(puppet, "say:no", tools=[TOOL], tool_choice=choice)
        assert forced["stop_reason"] == "tool_use" and set(forced["content"][0]["input"]) == {"city"}
    one = {"type": "auto", "disable_parallel_tool_use": True}
    twice = "say:" + hermes("get_weather", "{}") * 2
    assert len(send(puppet, twice, tools=[TOOL], tool_choice=one)["content"]) == 1


def test_thoughts() -> None:
    with puppet_server(template=THINKING) as rig:
        found = send(rig, "say:<think>Hm.</think>Yes.")
        assert found["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "Yes."},
        ]


def test_counting_is_what_a_message_reads(puppet: Rig) -> None:
    turns = [{"role": "user", "content": "say:Hello."}]
    count = answer(puppet.http.post("/v1/messages/count_tokens", json={"messages": turns, "tools": [TOOL]}))
    usage = send(puppet, turns, tools=[TOOL])["usage"]
    assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens is 0"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "there are no tools"),
        ({"model": "nobody"}, 404, "not_found_error", "does not exist"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "image"),
        ({"messages": [{"role": "robot", "content": "a"}]}, 400, "invalid_request_error", "robot"),
        ({"tools": [{"type": "bash_1", "name": "bash"}]}, 400, "invalid_request_error", "bash_1"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, 400, "invalid_request_error", "some"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers"),
    ],
)
def test_errors_have_this_apis_shape(rig: Rig, fields: dict, status: int, kind: str, words: str) -> None:
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    response = rig.http.post("/v1/messages", json=body)
    assert response.status_code == status
    found = response.json()
    assert set(found) == {"type", "error"} and found["type"] == "error"
    assert found["error"]["type"] == kind and words in found["error"]["message"]


def test_a_failure_in_mid_stream_is_an_error_event() -> None:
    with serving() as rig:
        rig.executor.fail_in = 4
        body = {"max_tokens": 20, "messages": [{"role": "user", "content": "say:0123456789"}]}
        last = read_events(rig, body)[-1]
        assert (last["type"], last["error"]["type"]) == ("error", "api_error") and "cosmic" in last["error"]["message"]
