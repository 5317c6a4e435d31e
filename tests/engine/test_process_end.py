"""How an engine's process ends, and that another follows, whatever goes wrong between two of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine.apart import RECIPE, has_gone, open_frontend

from mini_vllm.config import EngineConfig
from mini_vllm.engine import wire
from mini_vllm.engine.frontend import ModelLimits
from mini_vllm.engine.process import Backoff, EngineProcess, _start
from mini_vllm.types import SamplingParams

TESTS = Path(__file__).parent.parent


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def kept(model, deaths, deliver=lambda events: None, patience=60.0):
    """A process that is kept, without a client."""
    boot = wire.Boot(EngineConfig.from_options(model=model), RECIPE)
    backoff = Backoff(first=0.01, patience=patience)
    process = EngineProcess(boot, deliver=deliver, on_death=deaths.append, backoff=backoff)
    process.wait_ready()
    return process


def test_a_successor_that_hangs_while_it_loads_is_replaced_too(tmp_path):
    (tmp_path / "second-is-slow").touch()
    deaths = []
    process = kept(str(tmp_path / "second-is-slow"), deaths, patience=1.5)
    try:
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: len(deaths) == 1 and process.is_alive)
        assert (tmp_path / "second-is-slow").read_text() == "..."
    finally:
        process.stop(5)


def test_a_successor_that_cannot_be_started_is_tried_again(monkeypatch):
    deaths, tries = [], []
    process = kept("well", deaths)

    def refuse(end):
        tries.append(end)
        if len(tries) < 3:
            raise BlockingIOError("no more processes")
        return start(end)

    start = _start
    monkeypatch.setattr("mini_vllm.engine.process._start", refuse)
    try:
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: len(deaths) == 1 and process.is_alive)
        assert len(tries) == 3
    finally:
        process.stop(5)


def test_what_fails_where_reports_are_taken_leaves_nobody_waiting():
    deaths, seen = [], []

    def deliver(events):
        seen.append(events)
        if len(seen) == 1:
            raise RuntimeError("out of words")

    process = kept("well", deaths, deliver)
    pid = process.pid
    frontend = open_frontend(EngineConfig())(ModelLimits(max_model_len=512, vocab_size=256, eos_token_ids=()))
    [request] = frontend.prepare("ab", SamplingParams(max_tokens=3)).requests
    try:
        process.submit([request])
        wait_for(lambda: deaths and process.is_alive)
        assert process.pid != pid and has_gone(pid)
        process.submit([request])
        wait_for(lambda: seen[-1] and getattr(seen[-1][-1], "finish_reason", None) == "length")
    finally:
        process.stop(5)


PARENT = """
import asyncio, os, signal, sys, time
from engine.apart import RECIPE
from mini_vllm.config import EngineConfig
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.types import SamplingParams

async def main():
    llm = AsyncLLM.from_config(EngineConfig.from_options(model="well"), engine_form="process", recipe=RECIPE)
    await llm.start()
    if sys.argv[1] == "busy":
        await anext(llm.stream("endless", SamplingParams(max_tokens=400)))
    elif sys.argv[1] in "HS":
        task = asyncio.ensure_future(anext(llm.stream(sys.argv[1], SamplingParams(max_tokens=400))))
        await asyncio.sleep(0.3)
    print(llm.client.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "busy", "H", "S"])
def test_when_the_parent_is_killed_the_process_leaves_too(state):
    if state == "S" and sys.platform != "linux":
        pytest.skip("only Linux ends a stopped process with its parent")
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"}
    parent = subprocess.run([sys.executable, "-c", PARENT, state], env=environment, capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    pid, deadline = int(parent.stdout), time.monotonic() + 5
    while not has_gone(pid):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.02)
