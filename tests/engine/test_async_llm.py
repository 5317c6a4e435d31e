"""The asyncio door over an engine without weights."""

import asyncio
import contextlib
import random
import threading

import pytest
from engine.parts import SlowExecutor, counting, eventually, make_engine, saying

from mini_vllm import LLM, AsyncLLM, SamplingParams
from mini_vllm.errors import ContextLengthError, EngineDeadError, EngineStepError, InvalidParameterError
from mini_vllm.testing import ByteTokenizer


def with_llm(use, script=counting, **options):
    """Run `use(llm)` in a loop of its own."""

    async def main():
        llm = AsyncLLM.from_engine(make_engine(script, **options))
        try:
            await use(llm)
        finally:
            await asyncio.to_thread(llm.shutdown)
            assert not llm.is_alive

    asyncio.run(main())


async def collect(llm, prompt, params, **options):
    """{choice index: (text, token ids, finish reason)} of a stream."""
    found = {}
    async for delta in llm.stream(prompt, params, **options):
        text, ids, reason = found.get(delta.choice_index, ("", (), None))
        assert reason is None, "a delta after the last one"
        found[delta.choice_index] = (text + delta.text, ids + delta.token_ids, delta.finish_reason)
        assert delta.num_output_tokens == len(ids + delta.token_ids)
    return found


def test_stream_equals_generate_equals_offline_for_random_outputs():
    tokenizer = ByteTokenizer(merges=(b"ab", b" the", b"\xf0\x9f", "é".encode()))
    source = random.Random(11)
    scripts = [[source.randrange(tokenizer.vocab_size) for _ in range(source.randrange(1, 40))] for _ in range(120)]
    script = saying(*scripts)
    prompts = [[i, 1, 2] for i in range(120)]
    params = [
        SamplingParams(
            max_tokens=source.randrange(1, 40),
            n=1 + i % 3,
            seed=i,
            stop=source.sample(["a", "ab", "b ", "the", "é"], source.randrange(3)),
            min_tokens=0,
            ignore_eos=bool(i % 2),
        )
        for i in range(120)
    ]
    offline = LLM.from_engine(make_engine(script, tokenizer=tokenizer, num_blocks=40)).generate(prompts, params)

    async def cumulative(llm, prompt, each):
        last = None
        async for output in llm.generate(prompt, each):
            assert last is None or output.outputs[0].text.startswith(last.outputs[0].text)
            last = output
        return last

    async def use(llm):
        streams = await asyncio.gather(*(collect(llm, prompt, each) for prompt, each in zip(prompts, params)))
        outputs = await asyncio.gather(*(cumulative(llm, prompt, each) for prompt, each in zip(prompts, params)))
        for expected, stream, output in zip(offline, streams, outputs):
            assert output.finished and output.outputs == expected.outputs
            for choice in expected.outputs:
                assert stream[choice.index] == (choice.text, tuple(choice.token_ids), choice.finish_reason)

    with_llm(use, script, tokenizer=tokenizer)


def test_str_02_a_stream_alone_equals_the_same_in_a_batch_of_8():
    answer = "🫠 龜 👨‍👩‍👧 é".encode()

    async def use(llm):
        params = SamplingParams(max_tokens=len(answer))
        alone = await collect(llm, [0], params)
        together = await asyncio.gather(*(collect(llm, [0], params) for _ in range(8)))
        assert alone[0][0] == answer.decode() and together == [alone] * 8

    with_llm(use, saying(answer))


def test_str_03_half_an_emoji_at_the_limit_is_flushed_once_in_stream_and_not():
    async def use(llm):
        params = SamplingParams(max_tokens=4)
        assert await collect(llm, [0], params) == {0: ("hi�", tuple(b"hi\xf0\x9f"), "length")}
        outputs = [output async for output in llm.generate([0], params)]
        assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].finish_reason) == ("hi�", "length")

    with_llm(use, saying(b"hi\xf0\x9f\xab\xa0"))


def test_errors_of_a_request_come_before_any_token():
    async def use(llm):
        with pytest.raises(ContextLengthError, match="maximum context length is 512 tokens"):
            await llm.stream("x" * 600, SamplingParams()).accepted()
        with pytest.raises(ContextLengthError):
            await anext(llm.stream("x" * 60_000, SamplingParams()))
        with pytest.raises(InvalidParameterError, match="prompt is empty"):
            await collect(llm, "", SamplingParams())
        with pytest.raises(ContextLengthError, match="KV cache"):
            await llm.stream("x" * 100, SamplingParams(max_tokens=200)).accepted()
        assert (await collect(llm, "ok", SamplingParams(max_tokens=2)))[0][2] == "length"
        assert llm.stats().running == 0

    with_llm(use, num_blocks=8)


@pytest.mark.parametrize("prompt", [5, None, b"ab", {"prompt": None}, {"prompt": "ab", "multi_modal_data": {}}])
def test_prompts_of_another_kind_are_refused_and_the_engine_goes_on(prompt):
    async def use(llm):
        with pytest.raises(InvalidParameterError, match="prompt"):
            await anext(llm.stream(prompt, SamplingParams()))
        with pytest.raises(InvalidParameterError, match="sampling_params is 5"):
            llm.stream("ab", 5)
        assert await collect(llm, "ab", SamplingParams(max_tokens=2))

    with_llm(use)


def test_abort_by_id_ends_every_choice():
    async def use(llm):
        stream = llm.stream("ab", SamplingParams(max_tokens=400, n=3), request_id="mine")
        await stream.accepted()
        with pytest.raises(InvalidParameterError, match="'mine' is in use"):
            llm.stream("ab", SamplingParams(), request_id="mine")
        llm.abort("mine")
        llm.abort("nobody")
        reasons = [delta.finish_reason async for delta in stream]
        assert reasons.count("abort") == 3
        again = await collect(llm, "ab", SamplingParams(max_tokens=2), request_id="mine")
        assert again[0][2] == "length"

    with_llm(use, executor=SlowExecutor(counting))


def test_closing_an_old_stream_does_not_forget_the_next_one_of_its_id():
    async def use(llm):
        old = llm.stream("ab", SamplingParams(max_tokens=1), request_id="mine")
        assert [delta.finish_reason async for delta in old] == ["length"]
        new = llm.stream("ab", SamplingParams(max_tokens=400), request_id="mine")
        await anext(new)
        await old.aclose()
        llm.abort("mine")
        assert [delta.finish_reason async for delta in new][-1] == "abort"

    with_llm(use, executor=SlowExecutor(counting))


def test_abort_before_the_stream_is_read_ends_it_too():
    async def use(llm):
        stream = llm.stream("ab", SamplingParams(max_tokens=400), request_id="mine")
        llm.abort("mine")
        assert [delta.finish_reason async for delta in stream][-1] == "abort"

    with_llm(use, executor=SlowExecutor(counting))


@pytest.mark.parametrize("way", ["aclose", "break", "cancel", "generate"])
def test_can_01_leaving_early_aborts(way):
    async def read(llm):
        async for _ in llm.stream("ab", SamplingParams(max_tokens=400)):
            pass

    async def use(llm):
        if way == "cancel":
            task = asyncio.ensure_future(read(llm))
            await eventually(lambda: llm.stats().running == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif way == "aclose":
            async with contextlib.aclosing(llm.stream("ab", SamplingParams(max_tokens=400))) as stream:
                await anext(stream)
        elif way == "break":
            async for _ in llm.stream("ab", SamplingParams(max_tokens=400)):
                break
        else:
            async for _ in llm.generate("ab", SamplingParams(max_tokens=400)):
                break
        await eventually(lambda: llm.stats().running == 0)
        assert llm.stats().finished_abort == 1 and llm.stats().blocks_used == 0

    with_llm(use, executor=SlowExecutor(counting))


def test_a_stop_string_aborts_in_the_engine_and_the_other_choices_go_on():
    def script(admission, known):
        index = len(known) - 1
        return b"abSTOP"[index] if admission.noise_key % 2 and index < 6 else ord("x")

    async def use(llm):
        found = await collect(llm, [0], SamplingParams(max_tokens=100, n=8, seed=3, stop=["STOP"]))
        stopped = [entry for entry in found.values() if entry[2] == "stop"]
        others = [entry for entry in found.values() if entry[2] == "length"]
        assert {(text, len(ids)) for text, ids, _ in stopped} == {("ab", 6)}
        assert {(text, len(ids)) for text, ids, _ in others} == {("x" * 100, 100)}
        assert len(stopped) + len(others) == 8 and stopped and others
        await eventually(lambda: llm.stats().running == 0)
        assert (llm.stats().finished_stop, llm.stats().finished_length) == (len(stopped), len(others))

    with_llm(use, executor=SlowExecutor(script))  # slow, or a choice could end before the abort arrives


def test_a_failed_step_is_a_last_delta_in_streams_and_an_error_in_generate():
    class Failing(SlowExecutor):
        def run(self, plan):
            if len(self.plans) in (5, 15):
                self.plans.append(plan)
                raise ArithmeticError("no")
            return super().run(plan)

    async def use(llm):
        last = [delta async for delta in llm.stream("ab", SamplingParams(max_tokens=50))][-1]
        assert last.finish_reason == "error" and "ArithmeticError: no" in last.error
        with pytest.raises(EngineStepError, match="ArithmeticError"):
            async for _ in llm.generate("ab", SamplingParams(max_tokens=50)):
                pass
        assert llm.is_alive
        assert (await collect(llm, "ab", SamplingParams(max_tokens=50)))[0][2] == "length"

    with_llm(use, executor=Failing(counting))


def test_an_engine_that_was_not_started_or_was_shut_down_says_so():
    llm = AsyncLLM("smollm2-135m")
    assert not llm.is_alive
    for use in (llm.stats, lambda: llm.tokenizer, lambda: llm.stream("a", SamplingParams())):
        with pytest.raises(EngineDeadError, match="await start"):
            use()
    llm.shutdown()

    async def closed(llm):
        llm.shutdown()
        llm.shutdown()
        assert not llm.is_alive
        with pytest.raises(EngineDeadError, match="shut down"):
            await collect(llm, "a", SamplingParams())

    with_llm(closed)


def test_the_loop_stays_free_while_a_megabyte_is_prepared():
    gate = threading.Event()

    class Waiting(ByteTokenizer):
        def encode(self, text, *, add_special_tokens=True):
            assert gate.wait(timeout=5), "the loop that should open the gate is held up"
            return super().encode(text, add_special_tokens=add_special_tokens)

    async def use(llm):
        task = asyncio.ensure_future(collect(llm, "x" * 1_000_000, SamplingParams()))
        await asyncio.sleep(0.01)
        gate.set()
        with pytest.raises(ContextLengthError):
            await task

    with_llm(use, tokenizer=Waiting())
