"""The trace of an engine, wherever it runs."""

import asyncio

from engine.test_process import text_of, with_llm

from mini_vllm.scheduling.export import from_jsonl


def test_the_trace_of_an_engine_in_another_process_is_told_here():
    async def use(llm):
        await text_of(llm)
        requests, steps = from_jsonl((await asyncio.to_thread(llm.read_trace)).splitlines())
        ended = [seq_id for step in steps for seq_id, _ in step.finished]
        assert [request.seq_id for request in requests] == ended == [0]

    with_llm(use)
