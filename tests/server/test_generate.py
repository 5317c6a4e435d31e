"""POST /generate: always events, data lines only, and no [DONE]."""

import json
import socket
from typing import Any

import httpx
import pytest
from server.rig import Rig, error, serving


def generate(rig: Rig, **body: Any) -> list[dict[str, Any]]:
    """The events of a request."""
    response = rig.http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n") and "[DONE]" not in response.text
    lines = response.text[:-2].split("\n\n")
    assert all(line.startswith("data: {") and "\n" not in line for line in lines)
    return [json.loads(line[6:]) for line in lines]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "token")


def test_the_events_of_an_answer(rig: Rig) -> None:
    events = generate(rig, prompt="say:hé😀llo", stream=False)
    assert [event["type"] for event in events] == ["start", *["token"] * (len(events) - 2), "done"]
    assert set(events[0]) == {"type", "request_id"} and events[0]["request_id"].startswith("gen-")
    assert all(set(event) == {"type", "text"} and event["text"] for event in events[1:-1])
    assert text_of(events) == "hé😀llo"
    done = events[-1]
    assert done["finish_reason"] == "stop"
    assert done["usage"]["prompt_tokens"] + done["usage"]["completion_tokens"] == done["usage"]["total_tokens"]
    report = done["mini_vllm"]
    assert report["latency_ms"] >= report["ttft_ms"] > 0 and report["preemptions"] == report["drafts_accepted"] == 0
    spans = report["queue_ms"] + report["prefill_ms"] + report["decode_ms"]
    assert spans == pytest.approx(report["latency_ms"], abs=0.01)


def test_two_hundred_tokens_by_default(rig: Rig) -> None:
    done = generate(rig, prompt="a")[-1]
    assert (done["finish_reason"], done["usage"]["completion_tokens"]) == ("length", 200)
    assert generate(rig, prompt="a", max_new_tokens=3)[-1]["usage"]["completion_tokens"] == 3
    assert generate(rig, prompt="a", max_tokens=4)[-1]["usage"]["completion_tokens"] == 4


def test_temperature_and_top_p_by_default(rig: Rig) -> None:
    from mini_vllm.server.protocol.generate import GenerateRequest
    from mini_vllm.server.translate.generate import generate_params

    params = generate_params(GenerateRequest(prompt="a"))
    assert (params.max_tokens, params.temperature, params.top_p, params.repetition_penalty) == (200, 0.8, 0.9, 1.0)
    given = generate_params(GenerateRequest(prompt="a", temperature=0.0, top_p=1.0, top_k=5))
    assert (given.temperature, given.top_p, given.top_k) == (0.0, 1.0, 5)


def test_token_ids_and_stops(rig: Rig) -> None:
    events = generate(rig, prompt=list(b"say:one two"), stop=" ")
    assert text_of(events) == "one" and events[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt[0]"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "max_new_tokens": 0}, "max_new_tokens"),
        ({"prompt": "a", "max_new_tokens": "x"}, "max_new_tokens"),
        ({"prompt": "a" * 600}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
    ],
)
def test_what_is_wrong_is_said_before_the_stream(rig: Rig, body: dict[str, Any], param: str) -> None:
    refused = rig.http.post("/generate", json=body)
    assert refused.status_code == 400
    assert error(refused)["param"] == param
    assert rig.http.post("/generate", json={"prompt": "a", "model": "other"}).status_code == 404


def test_what_fails_later_is_the_last_event() -> None:
    with serving() as rig:
        rig.executor.fail_in = 4
        events = generate(rig, prompt="a")
        assert [event["type"] for event in events] == ["start", "token", "token", "token", "error"]
        assert set(events[-1]) == {"type", "message", "code"} and "cosmic ray" in events[-1]["message"]
        assert text_of(generate(rig, prompt="say:on we go")) == "on we go"


def test_a_client_that_leaves_ends_its_request() -> None:
    with serving(delay=0.01) as rig:
        url = httpx.URL(rig.url)
        body = json.dumps({"prompt": "a", "max_new_tokens": 400})
        with socket.create_connection((url.host, url.port)) as client:
            head = f"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall((head + body).encode())
            rig.wait_until(active_requests=1)
        stats = rig.wait_until(active_requests=0)
        assert stats["requests_finished_abort"] == 1


def test_a_report_is_in_every_body_and_last_chunk(rig: Rig) -> None:
    for body in (rig.complete("a", n=2), rig.chat()):
        assert body["mini_vllm"]["tokens_per_second"] > 0
    for path, request in (
        ("/v1/completions", {"prompt": ["say:x", "say:y"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "n": 2}),
    ):
        for options in ({}, {"stream_options": {"include_usage": True}}):
            events = rig.events(path, {**request, **options})
            assert events[-1]["mini_vllm"]["latency_ms"] > 0
            assert "mini_vllm" not in events[0]


def test_cached_tokens_are_reported() -> None:
    with serving() as rig:
        prompt = "x" * 64
        first, second = (rig.complete(prompt, max_tokens=1)["mini_vllm"] for _ in range(2))
        assert (first["cached_tokens"], second["cached_tokens"]) == (0, 48)
