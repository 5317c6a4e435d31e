"""Prefill beside decodes is cut to a target time per step; costs come from a model, never from the clock."""

import pytest
from scheduling.driving import Rig, prompt_of

from mini_vllm.scheduling import LinearCosts, MeasuredCosts, StepLoad
from mini_vllm.scheduling.costs import fit_relative
from mini_vllm.types import Chunk, Outputs

COSTS = LinearCosts(step=4e-3, token=0.25e-3, attended=1e-9)


def step_seconds(rig: Rig) -> list[float]:
    return [COSTS.seconds(StepLoad.of(plan.chunks)) for plan, _ in rig.steps]


def decoding(num: int, **options: object) -> Rig:
    """A rig in which `num` sequences decode."""
    rig = Rig(num_blocks=600, max_model_len=6000, max_num_seqs=64, **options)
    for i in range(num):
        rig.add(f"d{i}", prompt_of(9, i), 400)
    rig.step()
    return rig


def test_steps_stay_within_the_target_and_prefill_keeps_three_quarters_of_its_rate() -> None:
    rig = decoding(8, costs=COSTS)
    rig.add("long", prompt_of(4096, 50), 1)
    num_before = len(rig.steps)
    while rig.answers["long"].finish_reason is None:
        rig.step()
    seconds = step_seconds(rig)[num_before:]
    assert 0.030 < max(seconds) <= 0.035
    alone = COSTS.seconds(StepLoad(4096, 1, 4096, 4096 * 4097 // 2))
    assert alone / sum(seconds) >= 0.75
    assert all(len(plan.chunks) == 9 for plan, _ in rig.steps[num_before:]), "everybody got on in every step"


def test_with_nobody_decoding_only_the_budget_limits_prefill() -> None:
    rig = Rig(num_blocks=600, max_model_len=6000, costs=LinearCosts(token=1.0))
    rig.add("long", prompt_of(4096), 1)
    assert [rig.step().num_tokens for _ in range(2)] == [2048, 2048]


def test_a_chunk_is_one_block_if_a_decode_step_alone_exceeds_the_target() -> None:
    rig = decoding(2, costs=LinearCosts(step=1.0))
    for i in range(2):
        rig.add(f"long {i}", prompt_of(64, 50 + i), 1)
    plan = rig.step()
    assert rig.chunk_lens(plan) == {0: 1, 1: 1, 2: 16}
    assert rig.trace.steps()[-1].waits == ((3, "itl"),) and rig.trace.steps()[-1].halt == "itl"
    rig.run()
    rig.check_outputs()


def test_a_chunk_need_not_end_with_a_block() -> None:
    rig = decoding(2, costs=LinearCosts(token=1e-3))  # 35 ms are aimed at: 2 decodes and 33 tokens
    rig.add("long", prompt_of(64, 50), 1)
    assert [rig.chunk_lens(rig.step())[2] for _ in range(2)] == [32, 32]
    slower = decoding(2, costs=LinearCosts(token=1.3e-3))
    slower.add("long", prompt_of(64, 50), 1)
    assert [slower.chunk_lens(slower.step())[2] for _ in range(3)] == [24, 24, 16]
    slower.run()
    slower.check_outputs()


@pytest.mark.parametrize("options", [{"itl_target_ms": 0.0}, {"itl_target_ms": 1e6}])
def test_no_target_means_no_limit(options: dict[str, float]) -> None:
    rig = decoding(2, costs=LinearCosts(step=1.0), **options)
    rig.add("long", prompt_of(640, 50), 1)
    assert rig.chunk_lens(rig.step())[2] == 640


def test_the_chunk_size_stays_an_upper_bound() -> None:
    rig = decoding(2, costs=LinearCosts(token=1e-6), prefill_chunk_size=24)
    rig.add("long", prompt_of(640, 50), 1)
    assert rig.chunk_lens(rig.step())[2] == 24


def test_without_a_cost_model_the_clock_has_no_say() -> None:
    rig = decoding(2)
    rig.add("long", prompt_of(640, 50), 1)
    assert rig.chunk_lens(rig.step())[2] == 640


def test_the_load_of_chunks_is_what_they_compute() -> None:
    decode = Chunk(0, 9, (5,), 0, (), Outputs.LAST, True)
    prefill = Chunk(1, 4, (1, 2, 3), 0, (), Outputs.NONE, False)
    load = StepLoad.of([decode, prefill])
    assert load == StepLoad(num_tokens=4, num_samples=1, context=10 + 7, attended=10 + (5 + 6 + 7))
    assert StepLoad.of([decode]).with_chunk(4, 3, samples=False) == load


def test_measured_costs_learn_what_steps_cost() -> None:
    truth = LinearCosts(step=1.5e-3, token=0.3e-3, sample=0.1e-3, attended=4e-9)
    costs = MeasuredCosts()
    for i in range(400):
        load = StepLoad(8, 8, 900 + i, 900 + i) if i % 8 else StepLoad(64 + i, 9, 900 + 2 * i, 100 * i + 3000)
        costs.observe(load, truth.seconds(load))
    for load in (StepLoad(8, 8, 1000, 1000), StepLoad(200, 9, 2000, 30_000), StepLoad(300, 9, 2000, 30_000)):
        assert costs.seconds(load) == pytest.approx(truth.seconds(load), rel=0.05)


def test_measured_costs_follow_a_machine_that_slows_down_but_not_a_hiccup() -> None:
    costs, load = MeasuredCosts(), StepLoad(8, 8, 1000, 1000)
    for _ in range(100):
        costs.observe(load, 5e-3)
    costs.observe(load, 5.0)
    for _ in range(MeasuredCosts.REFIT):
        costs.observe(load, 5e-3)
    assert costs.seconds(load) < 8e-3
    for _ in range(100):
        costs.observe(load, 10e-3)
    assert costs.seconds(load) == pytest.approx(10e-3, rel=0.05)


def test_before_anything_is_measured_chunks_are_small_but_not_tiny() -> None:
    rig = decoding(0, costs=MeasuredCosts())
    rig.add("a", prompt_of(1), 50)
    rig.step()
    rig.add("long", prompt_of(640, 50), 1)
    assert 16 <= rig.chunk_lens(rig.step())[1] <= 48


def test_weights_are_never_negative() -> None:
    rows = [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]
    assert fit_relative(rows, [3.0, 2.0, 1.0], prior=(0.0, 0.0))[1] == 0.0
    assert fit_relative(rows, [3.0, 5.0, 7.0], prior=(0.0, 0.0), trust=1e-9) == pytest.approx([1.0, 2.0], rel=1e-3)
