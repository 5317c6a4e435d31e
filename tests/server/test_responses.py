"""/v1/responses: streamed and whole, tools, what it is a continuation of, and how it fails."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from server.puppet import puppet_server
from server.rig import MODEL, Rig, answer, error, serving
from server.test_tools import THINKING, WEATHER, hermes

from mini_vllm.errors import InvalidParameterError
from mini_vllm.server.conversations import Conversations
from mini_vllm.server.protocol.chat import ChatMessage

FLAT = {"type": "function", **WEATHER["function"]}


@pytest.fixture(scope="module")
def puppet() -> Iterator[Rig]:
    with puppet_server() as running:
        yield running


def respond(rig: Rig, given: Any, **fields: Any) -> dict[str, Any]:
    """The response object, which the stream must end with too, but for ids and times."""
    body = {"input": given, "temperature": 0, **fields}
    whole = answer(rig.http.post("/v1/responses", json=body))
    events = read_events(rig, body)
    assert bare(events[-1]["response"]) == bare(whole)
    assert rebuilt(events) == bare(whole)["output"]
    return whole


def read_events(rig: Rig, body: dict[str, Any]) -> list[dict[str, Any]]:
    with rig.http.stream("POST", "/v1/responses", json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.read().decode().removesuffix("\n\n").split("\n\n")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    return events


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output as the deltas alone tell it."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append({**event["item"], "status": "completed"})
            case "content_part.added":
                items[-1]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                assert event["item_id"] == items[event["output_index"]]["id"]
                part = items[-1]["content"][event["content_index"]]
                part["text"] += event["delta"]
                if "logprobs" in part:
                    part["logprobs"] += event["logprobs"]
            case "function_call_arguments.delta":
                items[-1]["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert (event["arguments"], event["name"]) == (items[-1]["arguments"], items[-1]["name"])
            case "output_item.done":
                assert event["item"]["id"] == items[-1]["id"]
                items[-1]["status"] = event["item"]["status"]
    return bare(items)


def bare(value: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k not in ("id", "call_id", "created_at", "mini_vllm", "usage")}
    return [bare(each) for each in value] if isinstance(value, list) else value


def test_a_text_whole_and_streamed(puppet: Rig) -> None:
    found = respond(puppet, "say:Grüß dich!", metadata={"a": "b"}, instructions="Be nice.")
    assert found["id"].startswith("resp_") and found["object"] == "response"
    assert found["status"] == "completed" and found["model"] == MODEL
    assert found["metadata"] == {"a": "b"} and found["instructions"] == "Be nice." and found["error"] is None
    [item] = found["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Grüß dich!", "annotations": [], "logprobs": []}]
    usage = found["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] and usage["output_tokens"] > 9


def test_a_cut_text_is_incomplete(puppet: Rig) -> None:
    found = respond(puppet, "say:0123456789", max_output_tokens=4)
    assert found["status"] == "incomplete" and found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (found["output"][0]["status"], found["output"][0]["content"][0]["text"]) == ("incomplete", "0123")


def test_calls_and_their_results(puppet: Rig) -> None:
    arguments = '{"city": "Oslo"}'
    said = "Let me look.\n" + hermes("get_weather", arguments)
    found = respond(puppet, f"say:{said}", tools=[FLAT])
    assert [item["type"] for item in found["output"]] == ["message", "function_call"]
    call = found["output"][1]
    assert (call["name"], call["arguments"], call["status"]) == ("get_weather", arguments, "completed")
    assert call["call_id"].startswith("call_") and call["id"].startswith("fc_")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "say:Sunny."}
    follow = [{"role": "user", "content": "And?"}, *found["output"], result]
    assert respond(puppet, follow, tools=[FLAT])["output"][0]["content"][0]["text"].startswith("Sunny.")
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        forced = respond(puppet, "say:no", tools=[FLAT], tool_choice=choice)
        assert set(json.loads(forced["output"][0]["arguments"])) == {"city"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    assert respond(puppet, "say:no", tools=[FLAT], tool_choice=allowed)["output"][0]["name"] == "get_weather"


def test_a_schema(puppet: Rig) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    found = respond(puppet, 'say:{"a": 7}', text=form)
    assert json.loads(found["output"][0]["content"][0]["text"]) == {"a": 7} and found["text"] == form


def test_thoughts_are_items_of_their_own() -> None:
    with puppet_server(template=THINKING) as rig:
        found = respond(rig, "say:<think>Hm.</think>Yes.")
        assert [item["type"] for item in found["output"]] == ["reasoning", "message"]
        assert found["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert respond(rig, [*found["output"], {"role": "user", "content": "say:So?"}])["status"] == "completed"


def test_logprobs_of_the_text(puppet: Rig) -> None:
    found = respond(puppet, "say:ab", top_logprobs=2)
    entries = found["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries[:2]] == ["a", "b"] and len(entries[0]["top_logprobs"]) == 2
    plain = respond(puppet, "say:ab", include=["message.output_text.logprobs"])
    assert [entry["token"] for entry in plain["output"][0]["content"][0]["logprobs"][:2]] == ["a", "b"]


def test_a_response_goes_on_from_an_earlier_one(puppet: Rig) -> None:
    first = respond(puppet, "say:One.", instructions="Only now.")
    second = respond(puppet, "say:Two.", previous_response_id=first["id"])
    third = answer(
        puppet.http.post("/v1/responses", json={"input": "say:Three.", "previous_response_id": second["id"]})
    )
    alone = [
        *({"role": "user", "content": "say:One."}, {"role": "assistant", "content": "One."}),
        *({"role": "user", "content": "say:Two."}, {"role": "assistant", "content": "Two."}),
        {"role": "user", "content": "say:Three."},
    ]
    whole = respond(puppet, alone)
    assert third["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert third["previous_response_id"] == second["id"]
    forgotten = respond(puppet, "say:x", store=False)
    refused = puppet.http.post("/v1/responses", json={"input": "a", "previous_response_id": forgotten["id"]})
    assert refused.status_code == 400 and error(refused)["code"] == "previous_response_not_found"


def test_conversations_are_bounded_and_each_clients_own() -> None:
    kept = Conversations(max_responses=3, max_characters=10_000)
    for number in range(5):
        kept.keep("a", f"resp_{number}", [ChatMessage(role="user", content="x")])
        kept.find("a", "resp_0") if number < 3 else None
    assert len(kept) == 3 and kept.find("a", "resp_0") and kept.find("a", "resp_4")
    for client, name in (("a", "resp_1"), ("b", "resp_4")):
        with pytest.raises(InvalidParameterError, match="no such response"):
            kept.find(client, name)
    kept.keep("a", "large", [ChatMessage(role="user", content="x" * 9_950)])
    assert len(kept) == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"content": "no role"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": None}, "input"),
    ],
)
def test_bad_requests_name_the_field(rig: Rig, fields: dict, param: str) -> None:
    response = rig.http.post("/v1/responses", json={"input": "hi", **fields})
    assert (response.status_code, error(response)["param"]) == (400, param)


def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    with serving() as rig:
        rig.executor.fail_in = 4
        events = read_events(rig, {"input": "say:0123456789"})
        assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
        assert "cosmic" in events[-1]["response"]["error"]["message"]
        rig.executor.fail_in = 1
        whole = rig.http.post("/v1/responses", json={"input": "say:0123456789"})
        assert whole.status_code == 500 and "cosmic" in error(whole)["message"]


def test_the_sdk_follows(puppet: Rig) -> None:
    client = openai.OpenAI(base_url=f"{puppet.url}/v1", api_key="none", max_retries=0)
    found = client.responses.create(model=MODEL, input="say:Hello.", temperature=0)
    assert found.output_text == "Hello." and found.usage is not None
    said = f"say:{hermes('get_weather', '{}')}"
    with client.responses.stream(model=MODEL, input=said, tools=[FLAT], temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed" and "response.function_call_arguments.delta" in kinds
    assert final.output[0].type == "function_call" and final.output[0].arguments == "{}"
