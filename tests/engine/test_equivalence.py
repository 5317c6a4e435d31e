"""Through the whole engine, whatever the pool, the budget and the neighbours: each output is that of a request alone.

The fake executor's tokens depend on the contents of its cache, so a wrong block or position changes them.
"""

import asyncio
import random

import pytest
from engine.parts import make_engine

from mini_vllm import LLM, AsyncLLM, SamplingParams
from mini_vllm.testing import ByteTokenizer, FakeExecutor

TOKENIZER = ByteTokenizer(merges=(b"\xf0\x9f", b" the", "é".encode()))


def fake_engine(num_blocks, **options):
    executor = FakeExecutor(num_blocks=num_blocks, block_size=16, vocab_size=TOKENIZER.vocab_size)
    return make_engine(executor=executor, num_blocks=num_blocks, tokenizer=TOKENIZER, max_model_len=1024, **options)


def expected_of(engine, prompt, params):
    """The tokens of each choice, by the executor's own account."""
    prepared = engine.frontend.prepare(prompt, params)
    return [engine.core.executor.continuation(request) for request in prepared.requests]


SETTINGS = {
    "roomy": dict(num_blocks=600),
    "preempting": dict(num_blocks=34),
    "chunked": dict(num_blocks=600, prefill_chunk_size=7),
    "small budget": dict(num_blocks=600, max_num_batched_tokens=16, max_num_seqs=16),
    "no prefix caching": dict(num_blocks=600, enable_prefix_caching=False),
    "no cache": dict(num_blocks=600, kv_cache=False, max_num_batched_tokens=4096),
    "contiguous": dict(num_blocks=200, cache_backend="contiguous"),
    "one at a time": dict(num_blocks=600, max_num_seqs=1),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_gives_the_outputs_of_requests_alone(setting):
    source = random.Random(5)
    engine = fake_engine(**SETTINGS[setting])
    shared = [source.randrange(200) for _ in range(70)]
    prompts = [[*shared[: source.choice([1, 15, 16, 17, 32, 64])], i, 9] for i in range(30)]
    params = [SamplingParams(max_tokens=source.randrange(1, 120), n=1 + i % 2, logprobs=1) for i in range(30)]
    outputs = LLM.from_engine(engine).generate(prompts, params)
    for prompt, each, output in zip(prompts, params, outputs):
        found = [choice.token_ids for choice in output.outputs]
        assert found == expected_of(engine, prompt, each)
        assert [len(choice.logprobs) for choice in output.outputs] == [len(ids) for ids in found]
    engine.core.scheduler.check_integrity()
    stats = engine.core.stats()
    assert stats.blocks_used == 0 and stats.accepted == 45
    assert (stats.preemptions > 0) == (setting == "preempting")


def test_sch_11_preempted_requests_lose_and_repeat_nothing_in_stream_and_not():
    """Pool for two and a half sequences, four clients."""
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0.0, seed=1, logprobs=2)
    prompts = [[i] * 20 for i in range(4)]
    engine = fake_engine(35)
    expected = [expected_of(engine, prompt, params)[0] for prompt in prompts]
    outputs = LLM.from_engine(engine).generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert [len(output.outputs[0].logprobs) for output in outputs] == [200] * 4
    assert engine.core.stats().preemptions > 0

    async def stream(llm, prompt):
        deltas = [delta async for delta in llm.stream(prompt, params)]
        assert [entry.token_id for delta in deltas for entry in delta.logprobs] == [
            token_id for delta in deltas for token_id in delta.token_ids
        ]
        return [token_id for delta in deltas for token_id in delta.token_ids], "".join(d.text for d in deltas)

    async def main():
        llm = AsyncLLM.from_engine(fake_engine(35))
        streamed = await asyncio.gather(*(stream(llm, prompt) for prompt in prompts))
        assert llm.stats().preemptions > 0
        llm.shutdown()
        return streamed

    streamed = asyncio.run(main())
    assert streamed == [(output.outputs[0].token_ids, output.outputs[0].text) for output in outputs]


def test_lgp_09_sch_16_prompt_logprobs_are_the_same_cached_chunked_and_preempted():
    prompts = [[i, *range(100)] for i in (1, 1, 2, 3)]
    whole = LLM.from_engine(fake_engine(600)).score(prompts)
    for options in (
        dict(num_blocks=600, prefill_chunk_size=1),
        dict(num_blocks=600, prefill_chunk_size=15),
        dict(num_blocks=600, prefill_chunk_size=16),
        dict(num_blocks=600, prefill_chunk_size=17),
        dict(num_blocks=600, prefill_chunk_size=100),
        dict(num_blocks=9, max_num_batched_tokens=64, max_num_seqs=4),
    ):
        llm = LLM.from_engine(fake_engine(**options))
        assert llm.score(prompts) == whole
        assert llm.score(prompts) == whole  # what the first call left in the cache is not read
    assert [len(entries) for entries in whole] == [101] * 4


def test_can_08_what_an_aborted_request_has_computed_is_found_again():
    async def main():
        llm = AsyncLLM.from_engine(fake_engine(600))
        history = [7] * 500
        async for _ in llm.stream(history, SamplingParams(max_tokens=200, ignore_eos=True)):
            break
        outputs = [output async for output in llm.generate([*history, 8, 9], SamplingParams(max_tokens=3))]
        llm.shutdown()
        return outputs[-1].num_cached_tokens

    assert asyncio.run(main()) == 496


def test_n_choices_of_a_long_prompt_read_it_once():
    llm = LLM.from_engine(fake_engine(600))
    llm.generate([3] * 320, SamplingParams(n=8, max_tokens=4, ignore_eos=True))
    stats = llm.stats()
    assert stats.prefix_hit_tokens == 7 * 304
