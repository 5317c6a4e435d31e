"""Work ends when its client leaves: streams, whole answers, queued and half-read prompts, one or two hundred."""

import json
import random
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from server.rig import Rig, serving


@pytest.fixture(scope="module")
def slow() -> Iterator[Rig]:
    """Steps of 10 ms; a request without a limit takes 40 s."""
    with serving(delay=0.01, max_model_len=4096, num_blocks=4096) as running:
        yield running


def send(rig: Rig, **body) -> socket.socket:
    """A connection on which a completion was asked for."""
    url = httpx.URL(rig.url)
    data = json.dumps({"prompt": "Count", "max_tokens": 4000, "ignore_eos": True, **body}).encode()
    connection = socket.create_connection((url.host, url.port), timeout=10)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_can_01_a_client_that_closes_ends_its_request_within_a_second(slow: Rig, stream: bool) -> None:
    before = slow.stats()["requests_finished_abort"]
    connection = send(slow, stream=stream)
    slow.wait_until(active_requests=1)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    slow.wait_until(within=1.0, active_requests=0, kv_blocks_used=0, requests_finished_abort=before + 1)


@pytest.mark.parametrize("how", ["reset", "half close"])
def test_can_01_ways_of_leaving(slow: Rig, how: str) -> None:
    connection = send(slow, stream=False)
    slow.wait_until(active_requests=1)
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    else:
        connection.shutdown(socket.SHUT_WR)
    slow.wait_until(within=1.0, active_requests=0, kv_blocks_used=0)
    connection.close()


def test_can_03_a_queued_request_of_a_client_that_left_never_runs() -> None:
    with serving(delay=0.01, max_num_seqs=1, max_model_len=4096, num_blocks=4096) as rig:
        first = send(rig, stream=True)
        rig.wait_until(active_requests=1)
        second = send(rig, prompt="B" * 100)
        rig.wait_until(queue_depth=1)
        third = send(rig, prompt="say:C", ignore_eos=False)
        rig.wait_until(queue_depth=2)
        second.close()
        rig.wait_until(within=1.0, queue_depth=1, active_requests=1)
        first.close()
        with third, third.makefile("rb") as reply:
            assert b'"text":"C"' in reply.read()
        stats = rig.wait_until(active_requests=0, queue_depth=0, kv_blocks_used=0)
        assert stats["requests_finished_abort"] == 2
        assert stats["prompt_tokens"] < 100  # B was never read


def test_a_prompt_that_is_being_read_is_dropped_with_its_client() -> None:
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    with serving(delay=0.02, max_model_len=4096, num_blocks=4096, **options) as rig:
        connection = send(rig, prompt="x" * 3000)
        rig.wait_until(active_requests=1)
        connection.close()
        assert rig.wait_until(within=1.0, active_requests=0, kv_blocks_used=0)["total_tokens_generated"] == 0


def test_can_04_whole_answers_whose_clients_time_out_are_freed(slow: Rig, caplog: pytest.LogCaptureFixture) -> None:
    connections = [send(slow, stream=False, prompt=f"Count {i}") for i in range(20)]
    slow.wait_until(active_requests=20)
    for connection in connections:
        connection.close()
    slow.wait_until(within=1.0, active_requests=0, kv_blocks_used=0)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_lists_of_prompts_are_freed_together(slow: Rig) -> None:
    for stream in (True, False):
        connection = send(slow, prompt=["A", "B", "C"], n=2, stream=stream)
        slow.wait_until(active_requests=6)
        connection.close()
        slow.wait_until(within=1.0, active_requests=0, kv_blocks_used=0)


def test_can_06_two_hundred_streams_closed_at_random_times_leave_nothing_behind() -> None:
    chooser = random.Random(6)
    with serving(delay=0.001, max_num_seqs=32, max_model_len=4096, num_blocks=2048) as rig:
        for _ in range(5):
            connections = [send(rig, stream=True, prompt=f"Count {i}") for i in range(200)]
            closers = [threading.Timer(chooser.random() * 0.3, connection.close) for connection in connections]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join()
            rig.wait_until(active_requests=0, queue_depth=0, kv_blocks_used=0)
            assert rig.complete("say:fine")["choices"][0]["text"] == "fine"
        stats = rig.stats()
        ended = sum(stats[f"requests_finished_{how}"] for how in ("stop", "length", "abort", "error"))
        assert ended == stats["requests_accepted"]
        assert stats["requests_finished_stop"] == 5
        assert stats["requests_finished_error"] == 0


def test_a_client_that_reads_slowly_holds_up_nobody(slow: Rig) -> None:
    connection = send(slow, stream=True)
    slow.wait_until(active_requests=1)
    start = time.monotonic()
    assert slow.complete("say:quick")["choices"][0]["text"] == "quick"
    assert time.monotonic() - start < 2
    connection.close()
    slow.wait_until(within=1.0, active_requests=0)
