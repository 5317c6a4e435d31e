"""Rates per client, deadlines and time limits."""

import math
import time

import pytest
from server.rig import error, parse_events, serving

from mini_vllm.config import ServerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.server.errors import RequestRefused
from mini_vllm.server.limits import MAX_CLIENTS, RateLimits, first_deadline


class Clock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_holds_a_minute_and_fills_steadily() -> None:
    clock = Clock()
    rates = RateLimits(requests_per_minute=3, tokens_per_minute=None, clock=clock)
    for _ in range(3):
        rates.admit("a")
    with pytest.raises(RequestRefused) as caught:
        rates.admit("a")
    assert caught.value.status == 429 and caught.value.headers == {"retry-after": "20"}
    rates.admit("b")
    clock.now = 19.9
    with pytest.raises(RequestRefused):
        rates.admit("a")
    clock.now = 20.0
    rates.admit("a")
    clock.now = 1e6
    for _ in range(3):
        rates.admit("a")
    with pytest.raises(RequestRefused):
        rates.admit("a")


def test_tokens_are_charged_as_they_come_and_debts_are_waited_off() -> None:
    clock = Clock()
    rates = RateLimits(requests_per_minute=None, tokens_per_minute=60, clock=clock)
    rates.admit("a")
    rates.charge("a", 100)
    with pytest.raises(RequestRefused, match="60 tokens per minute") as caught:
        rates.admit("a")
    assert caught.value.headers == {"retry-after": "41"}
    clock.now = 41.0
    rates.admit("a")


def test_clients_are_forgotten_in_order_of_idleness() -> None:
    rates = RateLimits(requests_per_minute=1, tokens_per_minute=None, clock=Clock())
    for number in range(MAX_CLIENTS):
        rates.admit(str(number))
    with pytest.raises(RequestRefused):
        rates.admit("0")
    rates.admit("one more")
    rates.admit("0")


def test_each_key_has_its_own_rate() -> None:
    with serving(server=ServerConfig(api_key="a,b", requests_per_minute=2)) as rig:
        ask = lambda key: rig.http.post("/v1/completions", json={"prompt": "say:x"}, headers={"x-api-key": key})  # noqa: E731
        assert [ask("a").status_code for _ in range(3)] == [200, 200, 429]
        refused = ask("a")
        assert 0 < int(refused.headers["retry-after"]) <= 30
        assert error(refused)["code"] == "rate_limit_exceeded"
        assert ask("b").status_code == 200
        assert rig.http.get("/v1/models", headers={"x-api-key": "a"}).status_code == 200


def test_tokens_of_prompts_and_answers_count() -> None:
    with serving(server=ServerConfig(tokens_per_minute=20)) as rig:
        assert rig.http.post("/v1/completions", json={"prompt": "abcdefgh", "max_tokens": 30}).status_code == 200
        refused = rig.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > math.floor(18 * 60 / 20)


def test_the_earlier_deadline_counts() -> None:
    assert first_deadline(10.0, deadline_ms=None, timeout=None) is None
    first = first_deadline(10.0, deadline_ms=500.0, timeout=2.0)
    assert first is not None and (first.time, first.name) == (10.5, "deadline_ms")
    second = first_deadline(10.0, deadline_ms=5000.0, timeout=2.0)
    assert second is not None and (second.time, second.name) == (12.0, "time limit")


def test_a_request_that_is_still_queued_at_its_deadline_is_ended() -> None:
    with serving(delay=0.01, max_num_seqs=1) as rig:
        with rig.http.stream("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 400, "stream": True}):
            rig.wait_until(active_requests=1)
            start = time.monotonic()
            late = rig.http.post("/v1/completions", json={"prompt": "b", "deadline_ms": 150})
            assert 0.1 < time.monotonic() - start < 0.6
            assert late.status_code == 504 and late.headers["x-should-retry"] == "false"
            assert error(late)["code"] == "deadline_exceeded" and "deadline_ms of 0.15 s" in late.text
            assert rig.stats()["queue_depth"] == 0
        stats = rig.wait_until(active_requests=0)
        assert stats["requests_accepted"] == stats["requests_finished_abort"] == 2


def test_a_list_of_prompts_shares_one_deadline() -> None:
    with serving(delay=0.01, max_num_seqs=1) as rig:
        late = rig.http.post("/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 300, "deadline_ms": 100})
        assert late.status_code == 504
        rig.wait_until(active_requests=0, queue_depth=0)


def test_a_stream_that_is_past_its_deadline_ends_with_an_error() -> None:
    with serving(delay=0.01) as rig:
        body = {"messages": [{"role": "user", "content": "a"}], "stream": True, "deadline_ms": 100}
        text = rig.http.post("/v1/chat/completions", json=body).text
        last = text.rstrip().rpartition("\n\n")[2]
        assert '"code":"deadline_exceeded"' in last and "[DONE]" not in text
        rig.wait_until(active_requests=0)


def test_the_servers_time_limit_holds_for_all_requests() -> None:
    with serving(delay=0.01, server=ServerConfig(request_timeout=0.1)) as rig:
        late = rig.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 400, "deadline_ms": 60_000})
        assert late.status_code == 504 and "time limit of 0.1 s" in late.text
        quick = {"prompt": "say:x", "stream": True}
        assert parse_events(rig.http.post("/v1/completions", json=quick).text)[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize("value", [0, -1, "soon", 1e999])
def test_deadlines_must_be_positive_numbers(rig, value) -> None:
    body = b'{"prompt": "a", "deadline_ms": %s}' % (b"1e999" if value == 1e999 else repr(value).encode())
    assert rig.http.post("/v1/completions", content=body).status_code == 400


@pytest.mark.parametrize(
    "settings",
    [{"requests_per_minute": 0}, {"body_timeout": 0.0}, {"request_timeout": -1.0}, {"ssl_keyfile": "key.pem"}],
)
def test_impossible_settings_are_refused(settings) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**settings)
    assert caught.value.param in (*settings, "ssl_certfile")
