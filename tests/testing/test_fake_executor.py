"""The fake executor notices every kind of wrong plan."""

import pytest

from mini_vllm.testing.fake_executor import FakeExecutor
from mini_vllm.types import Admission, Chunk, Outputs, SamplingParams, StepPlan

PROMPT = (1, 2, 3, 4, 5)


def admission(seq_id: int, prompt: tuple[int, ...] = PROMPT) -> Admission:
    return Admission(seq_id, prompt, SamplingParams(), (), (), 0)


def chunk(seq_id: int, start: int, token_ids: tuple[int, ...], blocks: tuple[int, ...] = ()) -> Chunk:
    samples = start + len(token_ids) >= len(PROMPT)
    return Chunk(seq_id, start, token_ids, 0, blocks, Outputs.LAST if samples else Outputs.NONE, samples)


def plan(*chunks: Chunk, admitted: tuple[Admission, ...] = (), evicted: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(step_id=0, chunks=chunks, admitted=admitted, evicted=evicted)


def executor_with_one() -> FakeExecutor:
    """Sequence 0 has its five prompt tokens in blocks 0 and 1."""
    executor = FakeExecutor(num_blocks=4, block_size=4)
    executor.run(plan(chunk(0, 0, PROMPT, (0, 1)), admitted=(admission(0),)))
    return executor


def test_the_same_tokens_give_the_same_next_token_in_one_chunk_or_in_two() -> None:
    whole, cut = FakeExecutor(num_blocks=4, block_size=4), FakeExecutor(num_blocks=4, block_size=4)
    (expected,) = whole.run(plan(chunk(0, 0, PROMPT, (0, 1)), admitted=(admission(0),))).outputs
    assert cut.run(plan(chunk(0, 0, PROMPT[:3], (2,)), admitted=(admission(0),))).outputs == ()
    assert cut.run(plan(chunk(0, 3, PROMPT[3:], (3,)))).outputs == (expected,)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (plan(chunk(0, 0, PROMPT, (2, 3)), admitted=(admission(0),)), "admitted twice"),
        (plan(chunk(0, 6, (9,))), "wrong tokens"),
        (plan(chunk(0, 5, (96,))), "wrong tokens"),
        (plan(chunk(1, 0, PROMPT[:4], (4,)), admitted=(admission(1),)), "no such block"),
        (plan(chunk(1, 0, PROMPT, (2,)), admitted=(admission(1),)), "no block for the last token"),
        (plan(chunk(1, 0, PROMPT, (1, 2)), admitted=(admission(1),)), "writes to block 1, which is shared"),
        (plan(chunk(1, 0, PROMPT, (2, 2)), admitted=(admission(1),)), "twice in a table"),
        (plan(chunk(0, 0, PROMPT, (2, 3))), "does not start where"),
        (plan(chunk(1, 0, (1,), (2,)), chunk(1, 1, (2,)), admitted=(admission(1),)), "two chunks"),
    ],
)
def test_a_wrong_plan_is_refused(wrong: StepPlan, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        executor_with_one().run(wrong)


def test_a_prefix_of_other_tokens_is_noticed() -> None:
    other = (9, 9, 9, 9, 5)
    with pytest.raises(AssertionError, match="holds other tokens"):
        executor_with_one().run(plan(chunk(1, 4, (5,), (0, 2)), admitted=(admission(1, other),)))
    (same,) = executor_with_one().run(plan(chunk(1, 4, (5,), (0, 2)), admitted=(admission(1),))).outputs
    assert same.token_ids == tuple(executor_with_one().rows[0].token_ids[5:])


def test_after_eviction_the_table_is_empty_and_after_reset_everything() -> None:
    executor = executor_with_one()
    known = tuple(executor.rows[0].token_ids)
    executor.run(plan(chunk(0, 0, known, (3, 2)), evicted=(0,)))
    assert executor.rows[0].table == [3, 2]
    executor.reset()
    assert not executor.rows
