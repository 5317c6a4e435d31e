"""A layout that moves on from the last step equals one that is laid out anew, whatever the scheduler does."""

import random

import numpy as np
import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.kvcache import KVCache
from mini_vllm.runner.inputs import InputBuilder
from mini_vllm.runner.rows import RowTable
from mini_vllm.sampling import SamplingStates
from mini_vllm.scheduling import Scheduler
from mini_vllm.testing import FakeExecutor
from mini_vllm.types import Request, SamplingParams

BLOCK_SIZE, MAX_TOKENS, MAX_ROWS = 4, 24, 6
ARRAYS = ("token_ids", "positions", "slots", "query_starts", "seq_lens", "logit_rows")


def table():
    return RowTable(SamplingStates(limit=97), block_size=BLOCK_SIZE, max_blocks=50, capacity=2)


def builder(rows):
    return InputBuilder(rows, max_tokens=MAX_TOKENS, max_rows=MAX_ROWS)


def scheduler(num_blocks, **cache):
    config = SchedulerConfig(max_num_seqs=MAX_ROWS, max_num_batched_tokens=MAX_TOKENS, prefill_chunk_size=7)
    kv = KVCache.from_config(CacheConfig(block_size=BLOCK_SIZE, **cache), num_blocks=num_blocks)
    return Scheduler(config, kv, max_model_len=200)


def request(number, source, **params):
    prompt = tuple(source.randrange(97) for _ in range(source.randrange(1, 20)))
    options = {"max_tokens": source.randrange(1, 90), "ignore_eos": True, "temperature": 0.0} | params
    return Request(
        request_id=str(number),
        parent_id=str(number),
        prompt_token_ids=prompt,
        params=SamplingParams(**options),
        max_tokens=options["max_tokens"],
    )


def assert_equal(found, fresh):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found.inputs, name), getattr(fresh.inputs, name), err_msg=name)
    for index, length in enumerate(fresh.inputs.seq_lens):
        blocks = -(-int(length) // BLOCK_SIZE)
        np.testing.assert_array_equal(
            found.inputs.block_tables[index, :blocks], fresh.inputs.block_tables[index, :blocks]
        )
    assert found.sequence_rows == fresh.sequence_rows and found.is_plain == fresh.is_plain
    np.testing.assert_array_equal(found.samples.positions, fresh.samples.positions)
    np.testing.assert_array_equal(found.samples.slots, fresh.samples.slots)


@pytest.mark.parametrize(
    ("num_blocks", "cache", "num_drafts"),
    [
        (1000, {}, 0),
        (60, {}, 0),  # preempts
        (60, {"enable_prefix_caching": False}, 0),
        (300, {"cache_backend": "contiguous"}, 0),
        (60, {}, 2),
        (60, {"kv_cache": False}, 0),
    ],
)
def test_moving_on_equals_laying_out_anew(num_blocks, cache, num_drafts):
    source = random.Random(num_blocks + num_drafts)
    plans, fake = (
        scheduler(num_blocks, **cache),
        FakeExecutor(num_blocks=num_blocks, block_size=BLOCK_SIZE, num_drafts=num_drafts),
    )
    kept_rows, fresh_rows = table(), table()
    kept = builder(kept_rows)
    last, again, steps = None, 0, 0
    for number in range(30):
        limit = {"max_tokens": 3} if not cache.get("kv_cache", True) else {}
        plans.add(request(number, source, **limit, repetition_penalty=1.1 if number % 7 == 0 else 1.0))
    while plans.has_work():
        plan = plans.plan()
        kept_rows.apply(plan)
        fresh_rows.apply(plan)
        if plan.chunks:
            found, fresh = kept.build(plan.chunks), builder(fresh_rows).build(plan.chunks)
            assert_equal(found, fresh)
            again += found is last
            last, steps = found, steps + 1
        plans.commit(plan, fake.run(plan))
    assert steps > 20
    assert (again > steps / 4) == (not num_drafts and cache.get("kv_cache", True))


def test_a_reset_starts_anew():
    """Sequence ids begin again at 0 after a reset: the same ids and positions are other sequences then."""
    rows = table()
    kept = builder(rows)
    layouts = []
    for salt in ("a", "b"):
        plans = scheduler(100)
        fake = FakeExecutor(num_blocks=100, block_size=BLOCK_SIZE)
        plans.add(request(salt, random.Random(1)))
        for _ in range(3):
            plan = plans.plan()
            rows.apply(plan)
            layouts.append(kept.build(plan.chunks))
            plans.commit(plan, fake.run(plan))
        rows.clear()
    assert layouts[2] is layouts[1] and layouts[5] is layouts[4] and layouts[4] is not layouts[2]
