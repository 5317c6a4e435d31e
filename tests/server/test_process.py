"""The server as a process: its port, its signals, its end. Each test starts a real one."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mini_vllm.config import ServerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.server.run import bind, serve

TESTS = Path(__file__).parent.parent


@contextmanager
def process(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    timeout: float = 5,
    loading: float = 0,
    stall: str = "",
    tls: tuple[str, str] = ("", ""),
) -> Iterator:
    """A server process, killed at the end if it still runs."""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}", "PYTHONWARNINGS": "error"}
    running = subprocess.Popen(
        [sys.executable, "-m", "server.process", host, str(port), str(timeout), str(loading), stall, *tls],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def url_of(running) -> str:
    """The URL that it prints when it is ready."""
    for line in running.stdout:
        if found := re.search(r"https?://\S+", line):
            return found.group()
    raise AssertionError(f"no URL: {running.stderr.read()}")


class Stream(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__()
        self.url = url
        self.body = {"prompt": "hm", "max_tokens": max_tokens, "stream": True}
        self.begun = threading.Event()
        self.text = ""
        self.start()

    def run(self) -> None:
        """Read."""
        with httpx.stream("POST", self.url + "/v1/completions", json=self.body, timeout=30) as response:
            for line in response.iter_lines():
                self.begun.set()
                self.text += line + "\n"


def wait_until_refused(url: str) -> None:
    """A server that stops takes no new connections."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            httpx.get(url + "/health")
        except httpx.ConnectError:
            return
        time.sleep(0.02)
    raise AssertionError("it still accepts")


def started_streams(url: str, max_tokens: int) -> list[Stream]:
    streams = [Stream(url, max_tokens) for _ in range(4)]
    assert all(stream.begun.wait(10) for stream in streams)
    return streams


def test_srv_19_sigterm_lets_streams_finish_and_exits_with_0() -> None:
    with process() as running:
        url = url_of(running)
        streams = started_streams(url, max_tokens=100)
        running.send_signal(signal.SIGTERM)
        wait_until_refused(url)
        for stream in streams:
            stream.join(10)
            assert stream.text.rstrip().endswith("data: [DONE]")
            assert stream.text.count("data: {") == 100
        assert running.wait(5) == 0
        assert running.stderr.read() == ""
        assert "4 running request(s)" in running.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_srv_19_streams_that_do_not_finish_get_an_error_and_the_port_is_free(number: int) -> None:
    with process(timeout=0.5) as running:
        url = url_of(running)
        streams = started_streams(url, max_tokens=4000)
        start = time.monotonic()
        running.send_signal(number)
        for stream in streams:
            stream.join(10)
            last = stream.text.strip().rpartition("\n")[2]
            assert json.loads(last.removeprefix("data: "))["error"]["message"].startswith("the server is shutting down")
        assert running.wait(5) == 0
        assert 0.4 < time.monotonic() - start < 3
        with process(port=httpx.URL(url).port) as again:
            assert httpx.get(url_of(again) + "/health").status_code == 200


def test_srv_19_whole_answers_that_do_not_finish_are_a_503() -> None:
    with process(timeout=0.3) as running:
        url = url_of(running)
        answers = []
        body = {"prompt": "hm", "max_tokens": 4000}
        asker = threading.Thread(
            target=lambda: answers.append(httpx.post(url + "/v1/completions", json=body, timeout=30))
        )
        asker.start()
        while httpx.get(url + "/stats").json()["active_requests"] == 0:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        asker.join(10)
        assert (answers[0].status_code, answers[0].json()["error"]["type"]) == (503, "server_error")
        assert running.wait(5) == 0


def read_socket(socket) -> tuple[list[dict], int]:
    """All that comes over a WebSocket, and the code that it is closed with."""
    events = []
    try:
        while True:
            events.append(json.loads(socket.recv(timeout=15)))
    except ConnectionClosed as closed:
        assert closed.rcvd is not None, "the connection broke"
        return events, closed.rcvd.code


@pytest.mark.parametrize(("timeout", "end"), [(5, "done"), (0.3, "error")])
def test_srv_19_websockets_get_a_last_event_and_are_closed(timeout: float, end: str) -> None:
    with process(timeout=timeout) as running:
        url = url_of(running).replace("http", "ws")
        with connect(url + "/ws/generate") as socket, connect(url + "/ws/stats") as stats:
            max_tokens = 60 if end == "done" else 4000
            for name in ("a", "b"):
                socket.send(json.dumps({"request_id": name, "prompt": "hm", "max_new_tokens": max_tokens}))
                while (event := json.loads(socket.recv(timeout=10)))["type"] != "token" or event["request_id"] != name:
                    pass
            running.send_signal(signal.SIGTERM)
            counts, code = read_socket(stats)
            assert code == 1001 and counts[-1]["active_requests"] == 2
            socket.send(json.dumps({"request_id": "late", "prompt": "hm"}))
            events, code = read_socket(socket)
        assert code == 1001
        for name in ("a", "b", "late"):
            own = [event for event in events if event["request_id"] == name]
            last = "error" if name == "late" else end
            assert [event["type"] for event in own].count("done") + [e["type"] for e in own].count("error") == 1
            assert own[-1]["type"] == last
            assert last == "done" or own[-1]["message"].startswith("the server is shutting down")
        assert running.wait(8) == 0


def test_srv_19_the_second_signal_does_not_wait_for_websockets() -> None:
    with process(timeout=30) as running, connect(url_of(running).replace("http", "ws") + "/ws/generate") as socket:
        socket.send(json.dumps({"prompt": "hm", "max_new_tokens": 4000}))
        while json.loads(socket.recv(timeout=10))["type"] != "token":
            pass
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        assert running.wait(5) == 130


def test_srv_19_a_hung_engine_does_not_keep_the_server_from_leaving() -> None:
    with process(timeout=0.3, stall="60") as running:
        url, answers = url_of(running), []
        asker = threading.Thread(
            target=lambda: answers.append(httpx.post(url + "/v1/completions", json={"prompt": "hm"}, timeout=30))
        )
        asker.start()
        while httpx.get(url + "/stats").json()["queue_depth"] == 0:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        asker.join(10)
        assert answers[0].status_code == 503 and "shutting down" in answers[0].text
        assert running.wait(15) == 0


def test_srv_19_the_second_signal_ends_it_at_once() -> None:
    with process(timeout=30) as running:
        streams = started_streams_that_break(url_of(running))
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(5) == 130
        for stream in streams:
            stream.join(10)


def started_streams_that_break(url: str) -> list[threading.Thread]:
    """Clients that expect the connection to break."""
    begun = threading.Semaphore(0)

    def read() -> None:
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream(
                "POST", url + "/v1/completions", json={"prompt": "a", "max_tokens": 4000, "stream": True}
            ) as r,
        ):
            for _ in r.iter_lines():
                begun.release()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=10)
    return threads


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_srv_19_a_signal_while_the_model_loads_ends_it_at_once(number: int, code: int) -> None:
    with process(loading=30) as running:
        assert running.stdout.readline() == "loading\n"
        running.send_signal(number)
        assert running.wait(5) == code
        assert running.stderr.read() == ""


def test_srv_29_a_busy_port_is_said_before_the_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, process(port=holder.getsockname()[1], loading=30) as running:
        start = time.monotonic()
        assert running.wait(5) == 2
        assert time.monotonic() - start < 4  # most of it Python's imports
        assert running.stdout.read() == ""
        lines = running.stderr.read().splitlines()
        assert len(lines) == 1
        assert f"port {holder.getsockname()[1]} on 127.0.0.1 is in use" in lines[0] and "--port" in lines[0]


def test_srv_29_port_0_prints_the_real_port() -> None:
    with process(port=0) as running:
        url = url_of(running)
        assert httpx.URL(url).port not in (0, None)
        assert httpx.get(url + "/health").json() == {"status": "ok"}
        running.send_signal(signal.SIGTERM)
        assert running.wait(5) == 0


def test_srv_29_the_port_is_held_before_anything_is_prepared() -> None:
    events = []
    config = ServerConfig(port=0)

    def prepare() -> None:
        events.append("prepare")
        raise ConfigError("enough seen")

    with pytest.raises(ConfigError, match="enough"):
        serve(None, config, model_names=("x",), prepare=prepare)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        busy = ServerConfig(port=holder.getsockname()[1])
        with pytest.raises(ConfigError, match="in use"):
            serve(None, busy, model_names=("x",), prepare=prepare)
    assert events == ["prepare"]


@pytest.mark.parametrize(
    ("host", "port", "param", "words"),
    [
        ("127.0.0.1", 70000, "port", "65535"),
        ("127.0.0.1", -1, "port", "65535"),
        ("no such host", 0, "host", "not an address"),
        ("203.0.113.1", 0, "host", "not an address of this machine"),
    ],
)
def test_srv_29_addresses_that_cannot_be_had(host: str, port: int, param: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        bind(host, port)
    assert caught.value.param == param


def test_srv_29_the_ipv6_wildcard_takes_ipv4_too() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    with bind("::", 0) as listener:
        listener.listen()
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=2).close()


def test_srv_10_a_hung_server_answers_and_leaves_for_its_supervisor() -> None:
    with process(stall="0.5") as running:
        url = url_of(running)
        answer = httpx.post(url + "/v1/completions", json={"prompt": "a"}, timeout=20)
        assert answer.status_code == 503 and "has hung" in answer.text
        assert httpx.get(url + "/health").status_code == 503
        assert running.wait(10) == 70
        assert "the engine has hung; leaving" in running.stderr.read()
