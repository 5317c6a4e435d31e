"""The WebSockets: statistics once a second, and many requests over one connection."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from server.rig import Rig, serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from mini_vllm.config import ServerConfig
from mini_vllm.server.access import WS_KEY_PREFIX, WS_PROTOCOL


@contextmanager
def opened(rig: Rig, path: str = "/ws/generate", **options: Any) -> Iterator[ClientConnection]:
    with connect(rig.url.replace("http", "ws") + path, open_timeout=10, close_timeout=1, **options) as socket:
        yield socket


def send(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def read(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(socket.recv(timeout=10))


def read_all(socket: ClientConnection, *ids: str) -> dict[str, list[dict[str, Any]]]:
    """Events of these requests, up to the end of each."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ids}
    while any(not events or events[-1]["type"] not in ("done", "error") for events in found.values()):
        event = read(socket)
        found[event["request_id"]].append(event)
    return found


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "token")


def test_statistics_come_once_a_second(rig: Rig) -> None:
    with opened(rig, "/ws/stats") as socket:
        first, start = read(socket), time.monotonic()
        second = read(socket)
        assert 0.8 < time.monotonic() - start < 3
    assert set(first) == set(rig.stats()) and first["active_requests"] == 0
    assert second["uptime_seconds"] > first["uptime_seconds"]


@pytest.mark.parametrize("path", ["/ws/stats", "/ws/generate"])
def test_a_plain_request_is_answered_as_such(rig: Rig, path: str) -> None:
    assert 400 <= rig.http.get(path).status_code < 500


def test_requests_of_one_connection_run_together() -> None:
    with serving(delay=0.005) as rig, opened(rig) as socket:
        for name in ("a", "b", "c"):
            send(socket, type="generate", request_id=name, prompt=f"say:text of {name}" + "!" * 20)
        found = read_all(socket, "a", "b", "c")
        for name, events in found.items():
            assert [event["type"] for event in events][:1] == ["start"]
            assert text_of(events) == f"text of {name}" + "!" * 20
            assert events[-1]["finish_reason"] == "stop" and events[-1]["usage"]["completion_tokens"] > 20
        assert rig.executor.largest_batch == 3


def test_the_server_chooses_ids_and_the_type_may_be_left_out(rig: Rig) -> None:
    with opened(rig) as socket:
        send(socket, prompt="say:x")
        start = read(socket)
        assert start["type"] == "start" and start["request_id"].startswith("gen-")
        assert [read(socket)["request_id"] for _ in range(2)] == [start["request_id"]] * 2


def test_one_request_is_cancelled_and_the_others_go_on() -> None:
    with serving(delay=0.005) as rig, opened(rig) as socket:
        send(socket, request_id="long", prompt="endless", max_new_tokens=400)
        send(socket, request_id="other", prompt="say:" + "x" * 60)
        while read(socket)["type"] != "token":
            pass
        send(socket, type="cancel", request_id="long")
        send(socket, type="cancel", request_id="nobody")
        found = read_all(socket, "long", "other")
        assert found["long"][-1]["finish_reason"] == "abort"
        assert 0 < found["long"][-1]["usage"]["completion_tokens"] < 400
        assert found["other"][-1]["finish_reason"] == "stop"
        stats = rig.wait_until(active_requests=0)
        assert (stats["requests_finished_abort"], stats["requests_finished_stop"]) == (1, 1)
        send(socket, request_id="long", prompt="say:again")
        assert text_of(read_all(socket, "long")["long"]) == "again"


def test_a_cancel_right_behind_its_request_still_gets_one_end(rig: Rig) -> None:
    with opened(rig) as socket:
        for number in range(20):
            name = str(number)
            send(socket, request_id=name, prompt="endless", max_new_tokens=400)
            send(socket, type="cancel", request_id=name)
            events = read_all(socket, name)[name]
            assert events[-1] == {**events[-1], "type": "done", "finish_reason": "abort"}
        rig.wait_until(active_requests=0, queue_depth=0)


def test_a_connection_that_closes_ends_its_requests() -> None:
    with serving(delay=0.01, max_num_seqs=2) as rig:
        with opened(rig) as socket:
            for _ in range(4):
                send(socket, prompt="endless", max_new_tokens=400)
            rig.wait_until(active_requests=2, queue_depth=2)
        stats = rig.wait_until(active_requests=0, queue_depth=0)
        assert stats["requests_finished_abort"] == 4


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "request body"),
        ("", "not valid JSON"),
        ('{"x":' + "[" * 100_000, "nested too deeply"),
        ('{"prompt": "a", "response_format": ' + '{"a":' * 101 + "1" + "}" * 102, "nested more than 100"),
        ('{"type": "generate"}', "prompt"),
        ('{"type": "dance"}', "generate or cancel"),
        ('{"type": "cancel"}', "request_id"),
        ('{"prompt": "a", "n": 2}', "n is 2"),
        ('{"prompt": "a", "model": "other"}', "does not exist"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_wrong_message_is_answered_and_the_connection_stays(rig: Rig, message: str | bytes, words: str) -> None:
    with opened(rig) as socket:
        socket.send(message)
        event = read(socket)
        while event["type"] == "start":
            event = read(socket)
        assert event["type"] == "error" and words in event["message"]
        send(socket, request_id="next", prompt="say:fine")
        assert text_of(read_all(socket, "next")["next"]) == "fine"


def test_ids_in_use_and_too_many_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.server.routes.sockets.MAX_REQUESTS", 2)
    with serving(delay=0.01) as rig, opened(rig) as socket:
        for name in ("a", "a", "b", "c"):
            send(socket, request_id=name, prompt="endless", max_new_tokens=400)
        errors: list[dict[str, Any]] = []
        while len(errors) < 2:
            event = read(socket)
            errors += [event] if event["type"] == "error" else []
        assert [event["request_id"] for event in errors] == ["a", "c"]
        assert "in use" in errors[0]["message"] and "2 requests" in errors[1]["message"]


def test_a_failed_step_is_an_error_of_the_request() -> None:
    with serving() as rig, opened(rig) as socket:
        rig.executor.fail_in = 3
        send(socket, request_id="a", prompt="endless")
        events = read_all(socket, "a")["a"]
        assert events[-1]["type"] == "error" and "cosmic ray" in events[-1]["message"]


def test_deadlines_count_from_the_message() -> None:
    with serving(delay=0.01) as rig, opened(rig) as socket:
        time.sleep(0.3)
        send(socket, request_id="a", prompt="say:" + "x" * 5, deadline_ms=250)
        send(socket, request_id="b", prompt="endless", max_new_tokens=400, deadline_ms=100)
        found = read_all(socket, "a", "b")
        assert found["a"][-1]["type"] == "done"
        assert found["b"][-1]["code"] == "deadline_exceeded"


def test_rates_count_messages() -> None:
    with serving(server=ServerConfig(requests_per_minute=2)) as rig, opened(rig) as socket:
        for name in ("a", "b"):
            send(socket, request_id=name, prompt="say:x")
        read_all(socket, "a", "b")
        send(socket, request_id="c", prompt="say:x")
        assert read(socket)["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("path", ["/ws/stats", "/ws/generate", "/ws/nothing"])
def test_srv_07_sockets_deny_by_default(path: str) -> None:
    with serving(server=ServerConfig(api_key="key-1")) as rig:
        for options in ({}, {"subprotocols": [WS_PROTOCOL, WS_KEY_PREFIX + "wrong"]}):
            with pytest.raises(InvalidStatus) as caught, opened(rig, path, **options):
                pass
            assert caught.value.response.status_code == 401
            assert b"invalid_api_key" in caught.value.response.body


def test_keys_open_sockets_as_header_or_subprotocol() -> None:
    with serving(server=ServerConfig(api_key="key-1")) as rig:
        with opened(rig, additional_headers={"authorization": "Bearer key-1"}) as socket:
            assert socket.subprotocol is None
            send(socket, request_id="a", prompt="say:x")
            assert read_all(socket, "a")["a"][-1]["type"] == "done"
        with opened(rig, "/ws/stats", subprotocols=[WS_PROTOCOL, WS_KEY_PREFIX + "key-1"]) as socket:
            assert socket.subprotocol == WS_PROTOCOL
            assert read(socket)["active_requests"] == 0


def test_foreign_pages_open_no_sockets(rig: Rig) -> None:
    with pytest.raises(InvalidStatus) as caught, opened(rig, origin="https://evil.example"):
        pass
    assert caught.value.response.status_code == 403
    with opened(rig, "/ws/stats", origin=rig.url) as socket:
        assert read(socket)["queue_depth"] == 0


def test_no_page_but_its_own_opens_sockets_wherever_the_server_listens() -> None:
    with serving(server=ServerConfig(host="0.0.0.0", cors_origins="https://page.example")) as rig:
        with pytest.raises(InvalidStatus), opened(rig, origin="https://evil.example"):
            pass
        for origin in (rig.url, "https://page.example"):
            with opened(rig, "/ws/stats", origin=origin) as socket:
                assert read(socket)["queue_depth"] == 0
