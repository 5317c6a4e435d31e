"""`mini-vllm serve --engine-form process`, with the default model: what clients see when the engine dies or hangs."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")

PROGRAM = [sys.executable, "-c", "import sys; from mini_vllm.cli import main; sys.exit(main())"]


class Server:
    """A running server and its engine's process."""

    def __init__(self, process: subprocess.Popen, url: str) -> None:
        self.process = process
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=30)

    @property
    def engine(self) -> int:
        """The engine's process."""
        found = [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == self.process.pid
        ]
        assert len(found) == 1, found
        return found[0]

    def complete(self) -> str:
        """An answer that must be there, and right."""
        body = {"prompt": "1, 2, 3, 4, 5, 6, 7,", "temperature": 0, "max_tokens": 6}
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def wait_for_health(self, status: int, within: float = 15.0) -> None:
        """Until /health has this status."""
        deadline = time.monotonic() + within
        while self.http.get("/health").status_code != status:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def parent_of(pid: int) -> int | None:
    """The parent of a process that runs; None when it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while parent_of(pid) is not None:
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.02)


@contextmanager
def served(model: Path, *options: str, form: str = "process") -> Iterator[Server]:
    """A server on a free port."""
    arguments = ["serve", str(model), "--port", "0", "--engine-form", form, "--max-model-len", "2048"]
    process = subprocess.Popen(
        [*PROGRAM, *arguments, "--num-blocks", "512", "--threads", "1", "--shutdown-timeout", "0.5", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stdout:
            if found := re.search(r"https?://\S+", line):
                server = Server(process, found.group())
                yield server
                server.http.close()
                break
        else:
            raise AssertionError(process.stderr.read())
    finally:
        process.kill()
        process.communicate()


class Reader(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.begun = threading.Event()
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", self.url + "/v1/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if line:
                    self.lines.append(line)
                    self.begun.set()


def readers(server: Server, count: int) -> list[Reader]:
    found = [Reader(server.url) for _ in range(count)]
    assert all(reader.begun.wait(20) for reader in found)
    return found


def the_one_error(reader: Reader) -> str:
    """What a stream ends with, when it ends with one error and nothing after it."""
    reader.join(20)
    assert not reader.is_alive()
    errors = [line for line in reader.lines if '"error"' in line]
    assert errors == reader.lines[-1:]
    return json.loads(errors[0].removeprefix("data: "))["error"]["message"]


SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["one, two,", "Once"], "max_tokens": 9, "n": 2, "seed": 5, "logprobs": 3}),
    ("/v1/completions", {"prompt": "Water boils at", "max_tokens": 0, "echo": True, "logprobs": 2}),
    (
        "/v1/completions",
        {"prompt": "1, 2, 3,", "max_tokens": 40, "temperature": 0, "stop": "6", "logit_bias": {"30": -9}},
    ),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}),
    ("/v1/embeddings", {"input": ["a", "b c"]}),
    ("/v1/completions", {"prompt": "a " * 3000, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "(("}}),
    ("/tokenize", {"prompt": "a b"}),
]
OF_THE_MOMENT = {"id", "created", "mini_vllm", "cached_tokens"}


def lasting(value: Any) -> Any:
    """An answer without what differs from time to time."""
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if key not in OF_THE_MOMENT}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def test_it_answers_as_a_thread_does(default_model: Path) -> None:
    said = []
    for form in ("thread", "process"):
        with served(default_model, form=form) as server:
            answers = []
            for path, body in ASKED:
                messages = {"messages": [{"role": "user", "content": "Say a number."}], "temperature": 0}
                response = server.http.post(path, json={**messages, **body} if "chat" in path else body)
                answers.append((response.status_code, lasting(response.json())))
            said.append(answers)
            model = server.http.get("/v1/models").json()["data"][0]
            said[-1].append((200, lasting(model)))
            assert server.http.get("/trace").text.count('"kind": "request"') >= 8
    assert said[0] == said[1]
    assert [status for status, _ in said[0]] == [200, 200, 200, 200, 200, 200, 400, 400, 200, 200]


def test_srv_10_a_killed_engine_is_said_once_to_each_and_replaced(default_model: Path) -> None:
    with served(default_model) as server:
        assert server.complete() == " 8, 9,"
        streams, engine = readers(server, 3), server.engine
        os.kill(engine, signal.SIGKILL)
        messages = [the_one_error(reader) for reader in streams]
        assert all("killed by SIGKILL" in message and "send the request again" in message for message in messages)
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "the engine is dead")
        refused = server.http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503 and "restarted" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "2"
        server.wait_for_health(200)
        assert server.engine != engine
        assert server.complete() == " 8, 9,"
        stats = server.http.get("/stats").json()
        assert (stats["requests_accepted"], stats["requests_finished_error"], stats["active_requests"]) == (5, 3, 0)


def test_srv_10_an_engine_that_stands_still_for_5_s_in_a_step_is_replaced(default_model: Path) -> None:
    with served(default_model) as server:
        server.complete()
        streams, engine = readers(server, 2), server.engine
        begun = time.monotonic()
        os.kill(engine, signal.SIGSTOP)
        assert all("no progress for 5 s" in the_one_error(reader) for reader in streams)
        assert 4.5 < time.monotonic() - begun < 10
        wait_until_gone(engine)
        server.wait_for_health(200)
        assert server.complete() == " 8, 9,"


def test_srv_10_an_idle_engine_that_stands_still_is_no_hang(default_model: Path) -> None:
    with served(default_model, "--stall-timeout", "1") as server:
        engine = server.engine
        os.kill(engine, signal.SIGSTOP)
        time.sleep(3)
        assert server.http.get("/health").status_code == 200 and server.engine == engine
        os.kill(engine, signal.SIGCONT)
        assert server.complete() == " 8, 9,"


@pytest.mark.parametrize("state", ["idle", "busy", "stopped"])
def test_srv_19_a_signal_ends_the_server_and_its_engine(default_model: Path, state: str) -> None:
    with served(default_model) as server:
        engine = server.engine
        streams = readers(server, 2) if state != "idle" else []
        if state == "stopped":
            os.kill(engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        for reader in streams:
            assert the_one_error(reader).startswith("the server is shutting down")
        assert server.process.wait(15) == 0
        wait_until_gone(engine)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_srv_19_a_server_that_ends_at_once_takes_its_engine_with_it(default_model: Path, number: int) -> None:
    with served(default_model) as server:
        engine = server.engine
        begun = threading.Event()

        def read() -> None:
            with pytest.raises(httpx.HTTPError), httpx.stream("POST", server.url + "/generate", json=endless) as answer:
                for _ in answer.iter_lines():
                    begun.set()

        endless = {"prompt": "Once", "max_new_tokens": 1900, "ignore_eos": True}
        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(20)
        server.process.send_signal(number)
        if number == signal.SIGINT:
            time.sleep(0.2)
            server.process.send_signal(number)  # Ctrl-C twice
        assert server.process.wait(5) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        wait_until_gone(engine)
        reader.join(10)


def test_what_prevents_loading_is_one_line_whatever_the_form(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    said = []
    for form in ("thread", "process"):
        arguments = ["serve", str(broken), "--port", "0", "--engine-form", form]
        ran = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=30)
        assert ran.returncode == 2 and len(ran.stderr.strip().splitlines()) == 1, ran.stderr
        said.append(ran.stderr)
    assert said[0] == said[1] and "broken.gguf" in said[0]
