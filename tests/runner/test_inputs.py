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
from mini_vllm.types import Admission, Chunk, Outputs, Request, SamplingParams

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
    assert found.inputs.greedy_limit == fresh.inputs.greedy_limit
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


def snapshot(layout):
    return {name: getattr(layout.inputs, name).copy() for name in ARRAYS}


@pytest.mark.parametrize(("num_blocks", "num_requests"), [(300, 1), (300, 8), (26, 8)])  # the last preempts
def test_a_guess_is_the_next_step_or_leaves_no_trace(num_blocks, num_requests):
    source = random.Random(num_requests)
    plans, fake = scheduler(num_blocks), FakeExecutor(num_blocks=num_blocks, block_size=BLOCK_SIZE)
    kept_rows, fresh_rows = table(), table()
    kept = builder(kept_rows)
    waiting = [request(number, source, max_tokens=50) for number in range(num_requests)]
    guessed, counts = None, {"taken": 0, "wrong": 0, "gone": 0, "none": 0}
    while waiting or plans.has_work():
        if waiting and (not plans.has_work() or source.random() < 0.04):
            plans.add(waiting.pop())
        plan = plans.plan()
        for rows in (kept_rows, fresh_rows):
            rows.apply(plan)
        found = None
        if guessed is not None:
            layout, before, is_true = guessed
            found = kept.confirm(plan.chunks)
            assert found is None or (found is layout and is_true)
            counts["taken" if found else "gone" if is_true else "wrong"] += 1
            if found is None:
                kept.take_back()
                for name in set(ARRAYS) - {"token_ids"}:
                    np.testing.assert_array_equal(getattr(layout.inputs, name), before[name], err_msg=name)
        if not plan.chunks:
            guessed = None
            plans.commit(plan, fake.run(plan))
            continue
        found = found or kept.build(plan.chunks)
        assert_equal(found, builder(fresh_rows).build(plan.chunks))
        result = fake.run(plan)
        tokens = [output.token_ids[0] for output in result.outputs]
        is_true = source.random() < 0.7
        before = snapshot(found)
        layout = kept.guess(tokens if is_true else [(token + 1) % 97 for token in tokens])
        guessed = None if layout is None else (layout, before, is_true)
        counts["none"] += layout is None
        plans.commit(plan, result)
    assert counts["taken"] > 10 and counts["wrong"] > 3 and counts["none"] > 5
    assert (counts["gone"] > 0) == (num_requests > 1)  # one came, went or was preempted meanwhile


@pytest.mark.parametrize(
    ("change", "is_guessed"),
    [
        ({}, True),
        ({"token": 7}, False),  # ends the sequence
        ({"max_tokens": 1}, False),  # it has them all
        ({"max_tokens": 2}, True),
        ({"prompt": 4}, False),  # the next token needs a block
        ({"repetition_penalty": 1.2}, False),
        ({"logprobs": 1}, False),
        ({"sequences": 4}, True),
        ({"sequences": 5}, False),
    ],
)
def test_what_is_worth_a_guess(change, is_guessed):
    rows = table()
    kept = builder(rows)
    params = {"max_tokens": 50} | {key: change[key] for key in change if key not in ("token", "prompt", "sequences")}
    chunks = []
    for seq_id in range(change.get("sequences", 1)):
        prompt = tuple(range(10, 10 + change.get("prompt", 5)))
        rows.admit(Admission(seq_id, prompt, SamplingParams(**params), (7,), (8,), seq_id))
        blocks = (2 * seq_id, 2 * seq_id + 1)[: -(-len(prompt) // BLOCK_SIZE)]
        kept.build([Chunk(seq_id, 0, prompt[:-1], 0, blocks, Outputs.NONE, False)])
        chunks.append(Chunk(seq_id, len(prompt) - 1, prompt[-1:], 0, (), Outputs.LAST, True))
    kept.build(chunks)
    assert (kept.guess([change.get("token", 9)] * len(chunks)) is not None) == is_guessed


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


DECODES = {
    "greedy": {},
    "drawn": {"temperature": 1.0},
    "reported": {"logprobs": 0},
    "penalised": {"repetition_penalty": 1.1},
}


@pytest.mark.parametrize(
    ("kinds", "limit"),
    [
        (["greedy"], 97),
        (["greedy", "greedy"], 97),
        (["greedy", "drawn"], 0),
        (["reported"], 0),
        (["penalised", "greedy"], 0),
    ],
)
def test_a_decode_step_wants_the_largest_logit_alone_if_all_of_its_sequences_do(kinds, limit):
    rows = table()
    for seq_id, kind in enumerate(kinds):
        rows.admit(Admission(seq_id, (1, 2, 3), SamplingParams(**({"temperature": 0.0} | DECODES[kind])), (), (), 0))
    prompts = [Chunk(i, 0, (1, 2, 3), 0, (i,), Outputs.LAST, samples=True) for i in range(len(kinds))]
    build = builder(rows).build
    assert build(prompts).inputs.greedy_limit == 0  # its head is the smaller part of a prompt
    decodes = [Chunk(i, 3, (4,), 0, (), Outputs.LAST, samples=True) for i in range(len(kinds))]
    assert build(decodes).inputs.greedy_limit == limit
