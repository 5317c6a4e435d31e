"""Whatever is sent, the answer is JSON in OpenAI's shape with a status that says whose fault it is."""

import gzip
import http.client
import json
import socket
import time

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server.rig import MODEL, Rig, answer, error, serving

from mini_vllm.config import ServerConfig
from mini_vllm.server.protocol.chat import ChatRequest
from mini_vllm.server.protocol.completions import CompletionRequest

JUNK = {
    "open brace": b"{",
    "empty": b"",
    "null": b"null",
    "array": b"[]",
    "string": b'"x"',
    "number": b"1",
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "not UTF-8 at all": "{}".encode("utf-16"),
    "nested arrays": b"[" * 100_000,
    "nested in an unknown field": b'{"x":' + b"[" * 100_000,
    "nested in a known field": b'{"prompt":' + b"[" * 100_000,
    "nested closed": b'{"prompt": "a", "metadata":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "minus Infinity": b'{"prompt": "a", "temperature": -Infinity}',
    "overflow": b'{"prompt": "a", "temperature": 1e999}',
    "long integer": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "duplicate keys, last wrong": b'{"prompt": "a", "n": 1, "n": "x"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "trailing text": b'{"prompt": "a"} x',
    "two objects": b"{}{}",
    "control character": b'{"prompt": "a\nb"}',
    "comment": b'{"prompt": "a" /* b */}',
    "single quotes": b"{'prompt': 'a'}",
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("name", JUNK)
def test_srv_01_junk_is_a_400(rig: Rig, path: str, name: str) -> None:
    body = JUNK[name].replace(b'"prompt": "a"', b'"messages": [{"role": "user", "content": "a"}]')
    headers = {"content-type": "application/json"}
    response = rig.http.post(path, content=JUNK[name] if path[4:] == "completions" else body, headers=headers)
    assert response.status_code == 400
    assert error(response)["type"] == "invalid_request_error"
    assert response.headers["x-request-id"].startswith("req_")


def test_srv_01_bodies_that_are_not_json_by_their_own_word_are_a_415(rig: Rig) -> None:
    body = json.dumps({"prompt": "say:x"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"):
        response = rig.http.post("/v1/completions", content=body, headers={"content-type": kind})
        assert (response.status_code, error(response)["code"]) == (415, "unsupported_media_type")
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    response = rig.http.post("/v1/completions", content=gzip.compress(body), headers=packed)
    assert (response.status_code, error(response)["code"]) == (415, "unsupported_media_type")
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"):
        assert rig.http.post("/v1/completions", content=body, headers={"content-type": kind}).status_code == 200
    request = rig.http.build_request("POST", "/v1/completions", content=body)
    del request.headers["content-length"]
    assert rig.http.post("/v1/completions", content=body).status_code == 200  # no type at all


def test_srv_01_wrong_methods_and_urls_have_the_same_shape(rig: Rig) -> None:
    for method, path in (("GET", "/v1/completions"), ("PUT", "/v1/chat/completions"), ("POST", "/health")):
        response = rig.http.request(method, path)
        assert (response.status_code, error(response)["code"]) == (405, "method_not_allowed")
        assert response.headers["allow"] in ("GET", "POST")
    for path in ("/v1/nothing", "/v1/completions/", "/v1//models", "/static/../app.py", "/v1", "/index.html"):
        response = rig.http.get(path)
        assert (response.status_code, error(response)["code"]) == (404, "not_found")


def test_duplicate_keys_the_last_counts(rig: Rig) -> None:
    body = b'{"prompt": "say:a", "prompt": "say:b"}'
    assert rig.http.post("/v1/completions", content=body).json()["choices"][0]["text"] == "b"


def test_sec_07_model_names_are_compared_and_never_opened(rig: Rig) -> None:
    names = [
        "../../etc/passwd",
        "..\\..\\x",
        "/etc/passwd",
        "%2e%2e/",
        "C:\\x",
        "a\0b",
        "x" * 10_000,
        "",
        ".",
        "parrot/",
    ]
    for name in names:
        response = rig.http.post("/v1/completions", json={"model": name, "prompt": "say:x"})
        assert (response.status_code, error(response)["code"]) == (404, "model_not_found")
        assert len(error(response)["message"]) < 300
    for path in ("..%2f..%2fetc%2fpasswd", "%2e%2e/", "%2fetc%2fpasswd", "a%00b", "x" * 10_000, "folder", "parrot%2f"):
        response = rig.http.get(f"/v1/models/{path}")
        assert (response.status_code, error(response)["code"]) == (404, "model_not_found")


def test_the_served_names_are_known(rig: Rig) -> None:
    listed = rig.http.get("/v1/models").json()
    assert [(card["id"], card["object"]) for card in listed["data"]] == [(MODEL, "model")]
    assert listed["data"][0]["max_model_len"] == 512
    for name in (MODEL, "folder/parrot"):
        assert rig.http.get(f"/v1/models/{name}").json()["id"] == name
        assert rig.complete("say:x", model=name)["model"] == MODEL


def test_srv_24_prompts_are_never_cut(rig: Rig) -> None:
    assert rig.chat("a" * 400, max_tokens=1)["usage"]["prompt_tokens"] == 400 + 19
    response = rig.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a" * 1024}]})
    refused = error(response)
    assert (response.status_code, refused["code"]) == (400, "context_length_exceeded")
    assert "maximum context length" in refused["message"]


@pytest.fixture(scope="module")
def small():
    """A server that takes bodies of 100,000 bytes."""
    with serving(server=ServerConfig(max_body_bytes=100_000)) as running:
        yield running


def test_srv_28_large_bodies_are_a_413_whether_declared_or_not(small: Rig) -> None:
    body = b'{"prompt": "' + b"a" * 5_000_000 + b'"}'
    declared = small.http.post("/v1/completions", content=body)
    assert (declared.status_code, error(declared)["code"]) == (413, "request_too_large")
    chunked = small.http.post("/v1/completions", content=(body[i : i + 50_000] for i in range(0, len(body), 50_000)))
    assert (chunked.status_code, error(chunked)["code"]) == (413, "request_too_large")
    exact = small.http.post("/v1/completions", content=b'{"prompt": "say:x"}'.ljust(100_000))
    assert exact.json()["choices"][0]["text"] == "x"
    assert small.http.post("/v1/completions", content=b'{"prompt": "say:x"}'.ljust(100_001)).status_code == 413


def test_srv_28_a_declared_large_body_is_refused_before_it_is_sent(small: Rig) -> None:
    url = httpx.URL(small.url)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=5)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", str(50 * 2**20))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read(int(response.headers["content-length"])))["error"]["code"] == "request_too_large"
    connection.close()


@pytest.mark.parametrize("field", ["response_format", "chat_template_kwargs", "tools"])
def test_srv_01_deep_json_is_refused_where_any_json_may_stand(rig: Rig, field: str) -> None:
    deep = "[" * 100 + "]" * 100
    value = f'{{"a": {deep}}}'
    if field == "tools":
        value = f'[{{"type": "function", "function": {{"name": "f", "parameters": {value}}}}}]'
    body = f'{{"messages": [{{"role": "user", "content": "a"}}], "{field}": {value}}}'
    refused = rig.http.post("/v1/chat/completions", content=body.encode())
    assert refused.status_code == 400
    assert error(refused)["param"] == field and "more than 100 levels" in refused.text


def test_srv_28_slow_bodies_are_a_408() -> None:
    with serving(server=ServerConfig(body_timeout=0.2)) as small:
        _check_slow_body(small)


def _check_slow_body(small: Rig) -> None:
    url = httpx.URL(small.url)
    with socket.create_connection((url.host, url.port), timeout=5) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        start = time.monotonic()
        with slow.makefile("rb") as file:
            reply = file.read()
        assert reply.startswith(b"HTTP/1.1 408")
        assert b'"error"' in reply
        assert time.monotonic() - start < 2


def test_srv_28_a_million_messages_and_a_megabyte_do_not_hold_up_others() -> None:
    with serving(server=ServerConfig(max_body_bytes=64 * 2**20)) as rig:
        messages = b'{"messages": [' + b",".join([b'{"role": "user", "content": "x"}'] * 200_000) + b"]}"
        for path, body in (
            ("/v1/completions", json.dumps({"prompt": "a " * 2**20}).encode()),
            ("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "a " * 2**20}]}).encode()),
            ("/v1/chat/completions", messages),
        ):
            response = rig.http.post(path, content=body)
            assert (response.status_code, error(response)["code"]) == (400, "context_length_exceeded")
        assert rig.complete("say:x")["choices"][0]["text"] == "x"


def test_a_queue_that_is_full_is_a_429_with_retry_after() -> None:
    with serving(delay=0.02, max_num_seqs=1, max_waiting=1) as rig:
        bodies = {"prompt": ["a", "b", "c", "d"], "max_tokens": 200}
        response = rig.http.post("/v1/completions", json=bodies)
        assert response.status_code == 429
        assert error(response)["type"] == "rate_limit_error"
        assert response.headers["retry-after"] == "1"
        rig.wait_until(active_requests=0, queue_depth=0, kv_blocks_used=0)
        assert rig.complete("say:x")["choices"][0]["text"] == "x"


def test_health_is_503_when_the_engine_is_dead() -> None:
    with serving() as rig:
        assert rig.http.get("/health").json() == {"status": "ok"}
        assert [rig.http.head(path).status_code for path in ("/health", "/ready")] == [200, 200]
        rig.llm.shutdown()
        assert [rig.http.head(path).status_code for path in ("/health", "/ready")] == [503, 503]
        response = rig.http.get("/health")
        assert (response.status_code, response.json()) == (503, {"status": "the engine is dead"})
        response = rig.http.post("/v1/completions", json={"prompt": "say:x"})
        assert (response.status_code, error(response)["type"]) == (503, "server_error")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("5"), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from([CompletionRequest, ChatRequest]))
def test_srv_01_no_value_of_any_field_is_the_servers_fault(rig: Rig, data: st.DataObject, kind: type) -> None:
    names = data.draw(st.lists(st.sampled_from(kind.__struct_fields__), max_size=4, unique=True))
    body = {"prompt": "say:x", "messages": [{"role": "user", "content": "say:x"}], "max_tokens": 4}
    body |= {name: data.draw(VALUES, label=name) for name in names}
    path = "/v1/completions" if kind is CompletionRequest else "/v1/chat/completions"
    response = rig.http.post(path, content=json.dumps(body))
    if response.status_code == 200:
        assert response.text.endswith("data: [DONE]\n\n") if body.get("stream") else answer(response)["choices"]
    else:
        assert response.status_code in (400, 404)
        error(response)
