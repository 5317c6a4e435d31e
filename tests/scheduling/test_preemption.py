"""Preemption by recompute: who loses its blocks, what it keeps, and that everybody gets there."""

from collections import Counter

import pytest
from scheduling.driving import Rig, prompt_of

from mini_vllm.types import Outputs, StepPlan


def step_until_preemption(rig: Rig) -> StepPlan:
    """The plan that preempts; fails if none ever does."""
    while rig.scheduler.has_work():
        plan = rig.step()
        if plan.evicted:
            return plan
    raise AssertionError("nobody was preempted")


def preemptions(rig: Rig) -> Counter[int]:
    """How often each sequence was preempted."""
    return Counter(seq_id for plan, _ in rig.steps for seq_id in plan.evicted)


def test_a_victim_that_was_already_served_loses_its_chunk_and_gives_its_budget_back() -> None:
    rig = Rig(
        num_blocks=12, block_size=4, max_model_len=48, prefill_chunk_size=4, max_num_batched_tokens=5, max_num_seqs=3
    )
    rig.add("old", prompt_of(40), 4)
    rig.step()
    rig.add("young", prompt_of(1, 1), 20)
    plan = step_until_preemption(rig)
    assert plan.evicted == (1,)
    assert rig.chunk_lens(plan) == {0: 4}, "the young one's token was taken back"
    assert rig.steps[-1][1].num_tokens == 4, "and is not counted"
    assert rig.cache.num_used == 10
    rig.run()
    rig.check_outputs()


def test_the_victim_may_be_the_asker_itself() -> None:
    rig = Rig(num_blocks=5, block_size=4, max_model_len=20, enable_prefix_caching=False)
    rig.add("old", prompt_of(9), 8)  # 3 blocks, the fourth from position 12 on
    rig.add("young", prompt_of(6, 1), 6)  # 2 blocks, the third from position 8 on
    plans = [rig.step() for _ in range(3)]
    assert [plan.evicted for plan in plans] == [(), (), ()]
    plan = rig.step()
    assert (plan.evicted, rig.chunk_lens(plan)) == ((1,), {0: 1}), "the young asks first and gives way to the old"
    rig.run()
    rig.check_outputs()


def test_the_youngest_is_preempted_first_and_comes_back_first() -> None:
    rig = Rig(num_blocks=12, block_size=4, max_model_len=40, max_num_seqs=3, enable_prefix_caching=False)
    for i in range(5):
        rig.add(f"r{i}", prompt_of(12, i), 20)
    step_until_preemption(rig)
    assert preemptions(rig) == {2: 1}
    rig.run()
    rig.check_outputs()
    started = [chunk.seq_id for plan, _ in rig.steps for chunk in plan.chunks if chunk.start == 0]
    assert started.index(2, started.index(2) + 1) < started.index(3), "2 is recomputed before 3 is started"


def test_sch_02_a_preempted_sequence_reads_prompt_and_outputs_again() -> None:
    rig = Rig(num_blocks=7, block_size=4, max_model_len=28, enable_prefix_caching=False)
    rig.add("old", prompt_of(8), 18)
    rig.add("young", prompt_of(8, 1), 10)
    step_until_preemption(rig)
    said = len(rig.answers["young"].token_ids)
    assert said > 1
    num_steps = len(rig.steps)
    rig.run()
    rig.check_outputs()
    again = next(chunk for plan, _ in rig.steps[num_steps:] for chunk in plan.chunks if chunk.seq_id == 1)
    assert (again.start, len(again.token_ids)) == (0, 8 + said)


@pytest.mark.parametrize("length", [16, 32])
def test_sch_02_a_prompt_of_whole_blocks_that_is_fully_cached_computes_at_least_one_token(length: int) -> None:
    rig = Rig()
    for name in ("first", "second"):
        rig.add(name, prompt_of(length), 5)
        rig.run()
    assert rig.answers["second"].num_cached_tokens == length - 16
    assert rig.answers["first"].token_ids == rig.answers["second"].token_ids


def test_sch_03_a_crowd_with_shared_prefixes_in_a_small_pool_equals_each_alone() -> None:
    rig = Rig(num_blocks=300, block_size=4, max_num_seqs=256, max_num_batched_tokens=512, max_model_len=256)
    for i in range(256):
        rig.add(f"r{i}", [*prompt_of(20, i % 5), *prompt_of(i % 23 + 1, i)], 16 + i % 7)
    rig.run()
    rig.check_outputs()
    assert rig.scheduler.stats().preemptions > 10
    assert rig.scheduler.stats().prefix_hit_tokens > 1000


@pytest.mark.parametrize(
    "options", [{}, {"enable_prefix_caching": False}, {"prefill_chunk_size": 5}, {"num_drafts": 3}]
)
def test_sch_11_nothing_is_lost_or_repeated_by_preemption(options: dict[str, object]) -> None:
    rig = Rig(num_blocks=35, max_model_len=256, **options)
    for i in range(4):
        rig.add(f"r{i}", prompt_of(20, i), 200, logprobs=0, prompt_logprobs=0, noise_key=i)
    answers = rig.run()
    assert rig.scheduler.stats().preemptions > 0
    rig.check_outputs()
    for i, answer in enumerate(answers.values()):
        assert len(answer.token_ids) == 200
        assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
        assert [entry.token_id for entry in answer.prompt_logprobs] == prompt_of(20, i)[1:]
    assert rig.scheduler.stats().output_tokens == 800


def test_prompt_logprobs_computed_before_a_preemption_are_kept() -> None:
    rig = Rig(num_blocks=12, block_size=4, max_model_len=48, prefill_chunk_size=3)  # chunks and blocks do not meet
    rig.add("old", prompt_of(4), 40)
    rig.add("young", prompt_of(40, 1), 3, prompt_logprobs=0)
    step_until_preemption(rig)
    num_steps = len(rig.steps)
    scored = [chunk for plan, _ in rig.steps for chunk in plan.chunks if chunk.outputs is Outputs.ALL]
    assert 15 < sum(len(chunk.token_ids) for chunk in scored) < 40
    rig.run()
    rig.check_outputs()
    later = [chunk for plan, _ in rig.steps[num_steps:] for chunk in plan.chunks if chunk.seq_id == 1]
    assert later[0].start > 0, "what is scored may be read from the cache again"
    assert later[0].outputs is Outputs.NONE, "what is scored is not scored again"
    assert next(chunk for chunk in later if chunk.outputs is Outputs.ALL).start >= scored[-1].start
    assert [entry.token_id for entry in rig.answers["young"].prompt_logprobs] == prompt_of(40, 1)[1:]


def test_sch_13_preempted_requests_are_not_overtaken_and_all_finish() -> None:
    rig = Rig(num_blocks=40, block_size=4, max_num_seqs=8, max_model_len=128)
    ended: list[str] = []
    for i in range(4):
        rig.add(f"long {i}", prompt_of(20, i), 80)
    for i in range(120):
        rig.add(f"short {i}", prompt_of(4, 4 + i), 4)
        rig.step()
        ended += [name for name, answer in rig.answers.items() if answer.finish_reason and name not in ended]
    rig.run()
    rig.check_outputs()
    counts = preemptions(rig)
    assert sum(counts.values()) > 0 and max(counts.values()) <= 5
    assert counts[0] == 0, "the oldest is never preempted for others"
    assert [name for name in ended if name.startswith("long")][:2] == ["long 0", "long 1"]
    restarts = [chunk.seq_id for plan, _ in rig.steps for chunk in plan.chunks if chunk.start == 0]
    assert set(restarts) == set(range(124))


def test_the_oldest_always_advances() -> None:
    rig = Rig(num_blocks=9, block_size=4, max_num_seqs=6, max_model_len=36, prefill_chunk_size=3, num_drafts=2)
    for i in range(30):
        rig.add(f"r{i}", prompt_of(1 + i % 17, i), 18)
    while rig.scheduler.has_work():
        live = [s for s in (*rig.scheduler._running, *rig.scheduler._queue)]
        oldest = min((s.seq_id for s in live), default=None)
        plan = rig.step()
        assert oldest is None or oldest in rig.chunk_lens(plan)
    rig.check_outputs()


def test_a_guess_is_given_up_before_anybody_is_preempted() -> None:
    rig = Rig(num_blocks=4, block_size=4, max_model_len=16, num_drafts=3)
    rig.add("old", prompt_of(4), 4)
    rig.add("young", prompt_of(4, 1), 4)
    rig.run()
    rig.check_outputs()
    assert rig.scheduler.stats().preemptions == 0
