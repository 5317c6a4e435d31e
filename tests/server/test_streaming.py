"""Streams: the same text as the whole answer, in events that every client can read, with errors that are seen."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from server.rig import Rig, answer, error, parse_events, serving

EMOJI = "\U0001f600"
SPLITS = [
    "plain text",
    f"one {EMOJI} two",
    # The merges of the rig's tokenizer end tokens inside characters: F0 9F | 98 80.
    f"grouped {EMOJI}",
    "“quoted” \U0001fae0\U0001f979龜\U0001f468‍\U0001f469‍\U0001f467",
    "line\nbreak\r\nand   odd\x85spaces\u2028here\x1c",
]


def streamed(rig: Rig, text: str, **fields) -> str:
    body = {"messages": [{"role": "user", "content": "say:" + text}], **fields}
    events = rig.events("/v1/chat/completions", body)
    parts = [event["choices"][0]["delta"]["content"] for event in events]
    assert not any("\ufffd" in part for part in parts)
    return "".join(parts)


@pytest.mark.parametrize("text", SPLITS)
def test_str_01_emoji_split_over_tokens_arrive_whole(rig: Rig, text: str) -> None:
    assert streamed(rig, text) == rig.chat("say:" + text)["choices"][0]["message"]["content"] == text


def test_str_02_a_stream_in_a_batch_is_the_stream_alone(rig: Rig) -> None:
    texts = SPLITS * 3
    alone = [streamed(rig, text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: streamed(rig, text), texts)) == alone


def test_str_03_half_a_character_at_the_end_is_the_same_streamed_or_not(rig: Rig) -> None:
    asked = {"prompt": f"say:hi {EMOJI}", "max_tokens": 5}  # "hi " and two of four bytes
    whole = rig.complete(**asked)["choices"][0]
    parts = [event["choices"][0] for event in rig.events("/v1/completions", asked)]
    assert "".join(part["text"] for part in parts) == whole["text"] == "hi \ufffd"
    assert parts[-1]["finish_reason"] == whole["finish_reason"] == "length"
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_str_06_usage_only_where_it_was_asked_for(rig: Rig, path: str, options) -> None:
    body = {"prompt": "say:hi", "messages": [{"role": "user", "content": "say:hi"}], "stream_options": options}
    assert not any("usage" in event for event in rig.events(path, body))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_comes_in_one_last_chunk_without_choices(rig: Rig, path: str) -> None:
    body = {"prompt": "say:hi", "messages": [{"role": "user", "content": "say:hi"}]}
    whole = answer(rig.http.post(path, json=body))["usage"]
    events = rig.events(path, {**body, "stream_options": {"include_usage": True}})
    assert [bool(event["choices"]) for event in events] == [True] * (len(events) - 1) + [False]
    assert ["usage" in event for event in events] == [False] * (len(events) - 1) + [True]
    without_cache = {**events[-1]["usage"], "prompt_tokens_details": None}
    assert without_cache == {**whole, "prompt_tokens_details": None}
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [event["usage"]["completion_tokens"] for event in rig.events(path, {**body, "stream_options": options})]
    assert counts == sorted(counts) and counts[-1] == 3


def test_str_10_prompts_that_can_never_be_allocated_are_refused_before_the_stream() -> None:
    with serving(num_blocks=4, max_model_len=512, max_num_batched_tokens=512) as rig:
        response = rig.http.post("/v1/completions", json={"prompt": "a" * 200, "stream": True})
        assert (response.status_code, error(response)["type"]) == (400, "invalid_request_error")
        assert rig.complete("say:x")["choices"][0]["text"] == "x"


def test_srv_16_the_bytes_of_a_stream(rig: Rig) -> None:
    body = {"messages": [{"role": "user", "content": "say:" + SPLITS[-1]}], "stream": True}
    response = rig.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert b"\r" not in response.content
    lines = response.text.splitlines()  # splits at U+2028, U+0085, FS and others, as some clients do
    assert all(line == "" or line.startswith("data: ") for line in lines)
    assert all(lines[i] and not lines[i + 1] for i in range(0, len(lines), 2))
    assert lines[-2] == "data: [DONE]"
    contents = [event["choices"][0]["delta"]["content"] for event in parse_events(response.text)]
    assert "".join(contents) == SPLITS[-1]


def test_errors_before_the_first_token_are_plain_http(rig: Rig) -> None:
    for body in ({"prompt": "a" * 600}, {"prompt": [10**6]}, {"prompt": "a", "logit_bias": {"99999": 1}}):
        response = rig.http.post("/v1/completions", json={**body, "stream": True})
        assert response.status_code == 400
        error(response)


def test_srv_15_a_failure_in_mid_stream_is_an_error_event_and_the_next_request_works() -> None:
    with serving(delay=0.02) as rig:
        rig.executor.fail_in = 5
        response = rig.http.post("/v1/completions", json={"prompt": "hm", "max_tokens": 50, "stream": True})
        assert response.status_code == 200
        events = response.text[:-2].split("\n\n")
        assert "[DONE]" not in response.text
        assert '"error"' in events[-1] and "cosmic ray" in events[-1]
        assert all('"error"' not in event for event in events[:-1])
        assert rig.complete("say:x")["choices"][0]["text"] == "x"
        rig.wait_until(active_requests=0, kv_blocks_used=0, requests_finished_error=1)


def test_a_failure_before_the_first_token_is_a_500() -> None:
    with serving() as rig:
        for stream in (False, True):
            rig.executor.fail_in = 1
            response = rig.http.post("/v1/completions", json={"prompt": "hm", "stream": stream})
            assert (response.status_code, error(response)["type"]) == (500, "server_error")
