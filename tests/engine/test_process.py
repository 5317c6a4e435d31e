"""The engine in a process of its own. Every test starts a real one."""

import asyncio
import gc
import os
import signal
import time
from pathlib import Path

import pytest
from engine.apart import RECIPE, has_gone, load
from engine.parts import eventually

from mini_vllm.config import EngineConfig
from mini_vllm.engine import wire
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.process import Backoff, ProcessClient
from mini_vllm.errors import (
    ConfigError,
    ContextLengthError,
    EngineBusyError,
    EngineDeadError,
    EngineStepError,
    InvalidParameterError,
    MiniVLLMError,
    ModelNotFoundError,
)
from mini_vllm.scheduling.export import from_jsonl
from mini_vllm.types import SamplingParams, StructuredOutputsParams

TESTS = Path(__file__).parent.parent


def with_llm(use, model="well", **options):
    """Run `use(llm)` over an engine in a process, which must be gone afterwards."""
    llm = AsyncLLM.from_config(EngineConfig.from_options(model=model, **options), engine_form="process", recipe=RECIPE)
    pids = []

    async def main():
        await llm.start()
        pids.append(llm.client.process.pid)
        await use(llm)
        pids.append(llm.client.process.pid)

    try:
        asyncio.run(main())
    finally:
        llm.shutdown()
    assert all(has_gone(pid) for pid in pids if pid is not None)


async def text_of(llm, prompt="ab", **params):
    stream = llm.stream(prompt, SamplingParams(**{"temperature": 0.0, "max_tokens": 20, **params}))
    deltas = [delta async for delta in stream]
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


async def expect_death(llm, prompt, words):
    """One request that takes the engine with it, and one that happens to run beside it: one error each."""
    other = asyncio.ensure_future(text_of(llm, max_tokens=400))
    await eventually(lambda: llm.stats().running == 1)
    with pytest.raises(EngineDeadError, match=words):
        await text_of(llm, prompt)
    with pytest.raises(EngineDeadError, match=words):
        await other


def test_it_says_the_same_as_a_thread_and_counts_the_same():
    async def both(llm):
        found = [await text_of(llm), await text_of(llm, "say", n=3, max_tokens=9, logprobs=2, prompt_logprobs=1)]
        stream = llm.stream("xyz", SamplingParams(max_tokens=5, logprobs=3, prompt_logprobs=2, seed=1))
        deltas = [delta async for delta in stream]
        numbers = [(d.token_ids, d.logprobs, d.prompt_logprobs, d.num_prompt_tokens) for d in deltas]
        counters = llm.stats()
        return found, numbers, (counters.accepted, counters.finished_length, counters.output_tokens), llm.describe()

    results = []

    async def use(llm):
        results.append(await both(llm))
        assert llm.max_model_len == 512 and llm.is_alive and llm.counts_operations

    with_llm(use)
    thread = AsyncLLM.from_engine(load(EngineConfig.from_options(model="well")))
    try:
        results.append(asyncio.run(both(thread)))
    finally:
        thread.shutdown()
    assert results[0] == results[1]
    assert results[0][2] == (5, 5, 20 + 27 + 5)


def test_its_trace_can_be_read_from_here():
    async def use(llm):
        await text_of(llm)
        requests, steps = from_jsonl(llm.read_trace().splitlines())
        assert [request.num_prompt for request in requests] == [2] and len(steps) >= 20
        os.kill(llm.client.process.pid, signal.SIGKILL)
        await eventually(lambda: not llm.is_alive)
        assert llm.read_trace() == ""

    with_llm(use)


def test_what_refuses_a_request_is_the_same_error_here():
    async def use(llm):
        with pytest.raises(ContextLengthError, match="blocks"):
            await text_of(llm, "x" * 400, max_tokens=100, n=2)
        with pytest.raises(InvalidParameterError, match="grammar") as caught:
            await text_of(llm, structured_outputs=StructuredOutputsParams(regex="(("))
        assert caught.value.param == "structured_outputs"
        assert (await text_of(llm))[1] == "length"

    with_llm(use, num_blocks=16)


def test_a_full_queue_is_said_as_such():
    async def use(llm):
        asked = [asyncio.ensure_future(text_of(llm, max_tokens=200)) for _ in range(8)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} == {tuple, EngineBusyError}
        assert llm.stats().rejected == sum(isinstance(result, EngineBusyError) for result in results)

    with_llm(use, max_num_seqs=2, max_waiting=2)


@pytest.mark.parametrize("way", ["abort", "close", "drop", "cancel"])
def test_can_01_leaving_early_frees_its_place(way):
    async def use(llm):
        stream = llm.stream("endless", SamplingParams(max_tokens=400), request_id="it")
        await anext(stream)
        if way == "abort":
            llm.abort("it")
            assert [delta.finish_reason async for delta in stream][-1] == "abort"
        elif way == "close":
            await stream.aclose()
        elif way == "cancel":
            reading = asyncio.ensure_future(collect(stream))
            await asyncio.sleep(0.01)
            reading.cancel()
        del stream
        gc.collect()
        await eventually(lambda: llm.stats().running == 0 and llm.stats().finished_abort == 1)
        assert llm.stats().blocks_used == 0

    async def collect(stream):
        async for _ in stream:
            pass

    with_llm(use)


def test_a_structured_request_that_is_aborted_while_its_grammar_compiles_ends_once():
    async def use(llm):
        fits = SamplingParams(max_tokens=400, structured_outputs=StructuredOutputsParams(regex="[a-z ]{1,400}"))
        for number in range(5):
            stream = llm.stream("ab", fits, request_id=str(number))
            await stream.accepted() if number % 2 else await stream._start()
            llm.abort(str(number))
            assert [delta.finish_reason async for delta in stream][-1] == "abort"
        assert llm.stats().finished_abort == 5

    with_llm(use)


def test_an_exception_in_a_step_is_an_error_of_its_requests_and_the_process_stays():
    async def use(llm):
        pid = llm.client.process.pid
        with pytest.raises(EngineStepError, match="cosmic ray"):
            [output async for output in llm.generate("R", SamplingParams(max_tokens=5))]
        assert llm.client.process.pid == pid
        assert (await text_of(llm))[1] == "length"
        assert llm.stats().finished_error == 1

    with_llm(use)


@pytest.mark.parametrize(("order", "words"), [("K", "killed by SIGKILL"), ("D", "no memory")])
def test_srv_10_a_process_that_dies_is_replaced_and_everybody_waiting_is_told(order, words):
    async def use(llm):
        pid = llm.client.process.pid
        before = await text_of(llm)
        await expect_death(llm, order, words)
        assert not llm.is_alive
        with pytest.raises(EngineDeadError, match="restarted"):
            await text_of(llm)
        await eventually(lambda: llm.is_alive, seconds=20)
        assert llm.client.process.pid != pid and has_gone(pid)
        assert await text_of(llm) == before
        stats = llm.stats()
        assert (stats.finished_length, stats.finished_error) == (2, stats.accepted - 2)
        assert stats.accepted in (3, 4) and stats.running == stats.waiting == stats.blocks_used == 0

    with_llm(use)


def test_srv_10_killed_from_outside_while_idle_it_comes_back():
    async def use(llm):
        os.kill(llm.client.process.pid, signal.SIGKILL)
        await eventually(lambda: not llm.is_alive)
        await eventually(lambda: llm.is_alive, seconds=20)
        assert (await text_of(llm))[1] == "length"

    with_llm(use)


@pytest.mark.parametrize("order", ["H", "S"])
def test_srv_10_what_neither_ends_nor_moves_shows_and_can_be_given_up(order):
    async def use(llm):
        assert llm.marker() is None
        stuck = asyncio.ensure_future(text_of(llm, order))
        await eventually(lambda: llm.marker() is not None)
        await asyncio.sleep(1.2)  # the beat of the step's begin has come
        marker = llm.marker()
        await asyncio.sleep(1.2)
        assert llm.marker() == marker and not stuck.done()
        pid = llm.client.process.pid
        assert llm.give_up("the engine has hung")
        with pytest.raises(EngineDeadError, match="has hung"):
            await stuck
        assert has_gone(pid)
        await eventually(lambda: llm.is_alive, seconds=20)
        assert (await text_of(llm))[1] == "length" and llm.marker() is None

    with_llm(use)


def test_srv_10_a_long_step_whose_operations_go_on_moves():
    async def use(llm):
        asked = asyncio.ensure_future(text_of(llm, "L"))
        await eventually(lambda: llm.marker() is not None)
        seen = set()
        while not asked.done():
            seen.add(llm.marker())
            await asyncio.sleep(0.1)
        assert len(seen) >= 4
        assert (await asked)[1] == "length"

    with_llm(use)


def test_a_process_that_is_stopped_while_idle_does_not_hold_up_those_who_ask():
    async def use(llm):
        os.kill(llm.client.process.pid, signal.SIGSTOP)
        begun = time.monotonic()
        asked = [asyncio.ensure_future(text_of(llm, [97] * 500, max_tokens=5)) for _ in range(300)]
        await asyncio.sleep(0.1)
        assert time.monotonic() - begun < 3 and llm.marker() is not None
        os.kill(llm.client.process.pid, signal.SIGCONT)
        assert {reason for _, reason in await asyncio.gather(*asked)} == {"length"}

    with_llm(use)


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("absent", ModelNotFoundError, "the model 'absent' is nowhere; try another"),
        ("broken", MiniVLLMError, "RuntimeError: no such instruction"),
        ("crash", EngineDeadError, "ended with code 3"),
    ],
)
def test_what_prevents_loading_is_raised_by_start(model, kind, words):
    async def use(llm):
        raise AssertionError("it has started")

    with pytest.raises(kind, match=words) as caught:
        with_llm(use, model)
    assert type(caught.value) is kind
    assert getattr(caught.value, "param", "model") == "model"


def test_shutdown_tells_unfinished_streams_and_is_quick():
    async def use(llm):
        asked = asyncio.ensure_future(text_of(llm, max_tokens=400))
        await eventually(lambda: llm.stats().running == 1)
        begun = time.monotonic()
        await asyncio.to_thread(llm.shutdown)
        assert time.monotonic() - begun < 5
        with pytest.raises(EngineDeadError, match="shut down"):
            await asked
        with pytest.raises(EngineDeadError, match="shut down"):
            await text_of(llm)
        assert not llm.is_alive

    with_llm(use)


@pytest.mark.parametrize("order", ["H", "S"])
def test_shutdown_ends_a_process_that_hangs(order):
    async def use(llm):
        asked = asyncio.ensure_future(text_of(llm, order))
        await eventually(lambda: llm.marker() is not None)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(llm.shutdown, 0.2)
        with pytest.raises(EngineDeadError):
            await asked

    with_llm(use)


def test_shutdown_while_loading_leaves_nothing():
    client = ProcessClient(wire.Boot(EngineConfig.from_options(model="slow"), RECIPE))
    child = client.process._child
    while child is None:
        child = client.process._child
    client.shutdown(5)
    assert has_gone(child.pid)
    with pytest.raises(EngineDeadError, match=r"shut down|killed"):
        client.process.wait_ready()


def test_forms_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="thread, process"):
        AsyncLLM("x", engine_form="cloud")


def test_waits_between_starts_grow_and_end():
    backoff = Backoff(first=0.5, factor=2, most=30)
    assert [backoff.delay(n) for n in (1, 2, 3, 7, 1000)] == [0.5, 1, 2, 30, 30]
