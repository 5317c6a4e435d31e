"""Who gets how many tokens: budgets, chunks, rows, order, waiting for a shared block."""

import pytest
from scheduling.driving import Rig, make_request, prompt_of

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError, EngineBusyError, InvalidParameterError
from mini_vllm.kvcache import PagedCache
from mini_vllm.scheduling import Scheduler
from mini_vllm.types import Outputs


def test_decodes_are_served_before_an_older_long_prompt() -> None:
    rig = Rig(max_num_batched_tokens=32, max_num_seqs=4)
    rig.add("long", prompt_of(200), 4)
    assert rig.chunk_lens(rig.step()) == {0: 32}
    rig.add("short", prompt_of(5, 1), 6)
    assert rig.chunk_lens(rig.step()) == {0: 32}, "the older prompt takes the whole budget"
    rig = Rig(max_num_batched_tokens=32, max_num_seqs=4, prefill_chunk_size=24)
    rig.add("long", prompt_of(200), 4)
    rig.add("short", prompt_of(5, 1), 6)
    assert rig.chunk_lens(rig.step()) == {0: 24, 1: 5}
    assert rig.step().chunks[0].seq_id == 1, "it owes one token, so it goes first"
    rig.run()
    rig.check_outputs()


@pytest.mark.parametrize(("budget", "num_guesses"), [(4, 0), (6, 2), (16, 12)])
def test_guesses_never_take_the_token_of_another(budget: int, num_guesses: int) -> None:
    rig = Rig(max_num_batched_tokens=budget, max_num_seqs=4, num_drafts=3)
    for i in range(4):
        rig.add(f"r{i}", prompt_of(1, i), 60)
    rig.step()
    for _ in range(10):
        plan = rig.step()
        assert sorted(rig.chunk_lens(plan)) == [0, 1, 2, 3]
        assert sum(chunk.num_drafts for chunk in plan.chunks) == num_guesses
    rig.run()
    rig.check_outputs()


def test_prefill_chunk_size_limits_every_chunk() -> None:
    rig = Rig(prefill_chunk_size=7)
    rig.add("a", prompt_of(30), 3)
    lens = []
    while rig.scheduler.has_work():
        lens += rig.chunk_lens(rig.step()).values()
    assert lens == [7, 7, 7, 7, 2, 1, 1]
    rig.check_outputs()


def test_sch_19_bypassing_requests_prefill_in_exactly_as_many_steps_as_chunks() -> None:
    for options in ({"enable_prefix_caching": False}, {}):
        rig = Rig(max_num_batched_tokens=16, max_num_seqs=2, block_size=4, **options)
        rig.add("a", prompt_of(80), 1, prompt_logprobs=0)
        starts = [plan.chunks[0].start for plan in (rig.step() for _ in range(5))]
        assert starts == [0, 16, 32, 48, 64]
        assert rig.answers["a"].finish_reason == "length"


def test_sch_20_budget_is_charged_with_the_truncated_chunk() -> None:
    rig = Rig(num_blocks=512, max_num_batched_tokens=512, prefill_chunk_size=128, max_model_len=2048)
    for i in range(4):
        rig.add(f"r{i}", prompt_of(1000, i), 2)
    assert [rig.chunk_lens(rig.step()) for _ in range(2)] == [{i: 128 for i in range(4)}] * 2
    rig.add("short", prompt_of(3, 5), 2)
    rig.run()
    rig.check_outputs()


def test_rows_are_limited_and_the_rest_waits_in_order() -> None:
    rig = Rig(max_num_seqs=2)
    for i in range(5):
        rig.add(f"r{i}", prompt_of(4, i), 2)
    seen = []
    while rig.scheduler.has_work():
        seen.append(sorted(rig.chunk_lens(rig.step())))
    assert seen == [[0, 1], [0, 1], [2, 3], [2, 3], [4], [4], []]


@pytest.mark.parametrize(("together", "chunk"), [(True, 8), (False, 8), (False, 1)])
def test_a_prompt_is_started_only_if_its_whole_has_room_beside_those_that_are_being_read(
    together: bool, chunk: int
) -> None:
    rig = Rig(block_size=4, num_blocks=16, max_model_len=64, prefill_chunk_size=chunk)
    rig.add("first", prompt_of(40), 2)  # 10 blocks
    if not together:
        rig.step()
    rig.add("second", prompt_of(30, 1), 2)  # 8 blocks: they would meet half-way
    rig.run()
    assert rig.scheduler.stats().preemptions == 0
    started = next(i for i, (plan, _) in enumerate(rig.steps) if any(chunk.seq_id == 1 for chunk in plan.chunks))
    assert started == 40 // chunk + 1, "when the first has ended"


def test_equal_prompts_are_computed_once() -> None:
    rig = Rig(block_size=4, max_num_seqs=8)
    prompt = prompt_of(41)
    for i in range(8):
        rig.add(f"r{i}", prompt, 6, noise_key=i)
    assert rig.chunk_lens(rig.step()) == {0: 41}, "the others wait for its blocks"
    assert rig.chunk_lens(rig.step()) == {0: 1, **{i: 1 for i in range(1, 8)}}, "and then compute the last token only"
    rig.run()
    rig.check_outputs()
    assert [answer.num_cached_tokens for answer in rig.answers.values()] == [0] + [40] * 7
    stats = rig.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (8 * 41, 7 * 40)


def test_a_request_that_waits_for_a_block_lets_others_pass() -> None:
    rig = Rig(block_size=4, prefill_chunk_size=8)
    rig.add("first", prompt_of(40), 2)
    rig.step()
    rig.add("same", prompt_of(40), 2)
    rig.add("other", prompt_of(6, 1), 2)
    assert rig.chunk_lens(rig.step()) == {0: 8, 2: 6}
    rig.run()
    rig.check_outputs()


@pytest.mark.parametrize("victim", ["abort", "preempt"])
def test_who_waits_for_a_block_goes_on_when_its_owner_is_gone(victim: str) -> None:
    rig = Rig(block_size=4, num_blocks=14, prefill_chunk_size=8, max_model_len=48)
    rig.add("oldest", prompt_of(3, 1), 25)
    rig.step()
    rig.add("owner", prompt_of(30), 4)
    rig.add("waiter", prompt_of(30), 4)
    plan = rig.step()
    assert sorted(rig.chunk_lens(plan)) == [0, 1]
    if victim == "abort":
        rig.scheduler.abort("owner")
    rig.run()
    assert rig.answers["waiter"].finish_reason == "length"
    assert rig.answers["waiter"].num_cached_tokens >= 8, "what its owner had computed was not lost"
    rig.check_outputs()


def test_a_full_prefix_hit_recomputes_the_last_block_only() -> None:
    rig = Rig(block_size=4)
    for name in ("a", "b"):
        rig.add(name, prompt_of(16), 3)
        rig.run()
    assert rig.answers["b"].num_cached_tokens == 12
    assert rig.answers["a"].token_ids == rig.answers["b"].token_ids


def test_salts_do_not_share() -> None:
    rig = Rig(block_size=4)
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        rig.add(name, prompt_of(17), 3, cache_salt=salt)
        rig.run()
    assert [answer.num_cached_tokens for answer in rig.answers.values()] == [0, 0, 16]


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    rig = Rig(block_size=4)
    rig.add("turn 1", prompt_of(10), 12)
    first = rig.run()["turn 1"]
    rig.add("turn 2", [*prompt_of(10), *first.token_ids, 1, 2, 3], 4)
    rig.run()
    assert rig.answers["turn 2"].num_cached_tokens == 20, "10 + 11 computed tokens are 5 full blocks"
    rig.check_outputs()


def test_prompt_logprob_requests_read_nothing_from_the_cache_but_leave_their_blocks() -> None:
    rig = Rig(block_size=4)
    rig.add("a", prompt_of(17), 2)
    rig.run()
    rig.add("b", prompt_of(17), 2, prompt_logprobs=1)
    plan = rig.step()
    assert (plan.chunks[0].start, len(plan.chunks[0].token_ids), plan.chunks[0].outputs) == (0, 17, Outputs.ALL)
    rig.run()
    assert [entry.token_id for entry in rig.answers["b"].prompt_logprobs] == prompt_of(17)[1:]
    stats = rig.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (17, 0)


def test_outputs_are_asked_for_only_where_they_are_needed() -> None:
    rig = Rig(prefill_chunk_size=6)
    rig.add("a", prompt_of(15), 2)
    rig.add("b", prompt_of(15, 1), 2, prompt_logprobs=0)
    rig.add("c", prompt_of(15, 2), 0)
    asked: dict[int, list[tuple[str, bool]]] = {0: [], 1: [], 2: []}
    while rig.scheduler.has_work():
        for chunk in rig.step().chunks:
            asked[chunk.seq_id].append((chunk.outputs.name, chunk.samples))
    assert asked[0] == [("NONE", False), ("NONE", False), ("LAST", True), ("LAST", True)]
    assert asked[1] == [("ALL", False), ("ALL", False), ("ALL", True), ("LAST", True)]
    assert asked[2] == [("NONE", False)] * 3


def test_a_step_reports_what_it_did() -> None:
    rig = Rig(block_size=4, num_blocks=16, max_num_seqs=2, prefill_chunk_size=9)
    rig.add("a", prompt_of(5), 3)
    rig.step()
    rig.add("b", prompt_of(12, 1), 2)
    rig.add("c", prompt_of(3, 2), 2)
    rig.step()
    rig.step()
    kinds = [stats.kind for _, stats in rig.steps]
    assert kinds == ["prefill", "mixed", "mixed"]
    stats = rig.steps[1][1]
    assert (stats.num_tokens, stats.num_sequences, stats.num_running, stats.num_waiting) == (10, 2, 2, 1)
    assert (stats.blocks_used, stats.blocks_cached, stats.blocks_total) == (2 + 3, 0, 16)
    rig.run()
    assert rig.steps[-1][1].kind == "idle", "the last step only says who is released"
    stats = rig.scheduler.stats()
    assert (stats.accepted, stats.finished_length, stats.running, stats.waiting) == (3, 3, 0, 0)
    assert (stats.prompt_tokens, stats.output_tokens) == (5 + 12 + 3, 3 + 2 + 2)
    assert stats.steps == len(rig.steps)
    assert stats.last_step is not None and stats.last_step.step_id == stats.steps - 1
    assert stats.uptime_seconds == rig.time


def test_an_idle_scheduler_has_no_work_and_an_empty_plan() -> None:
    rig = Rig()
    assert not rig.scheduler.has_work()
    plan = rig.step()
    assert (plan.chunks, plan.admitted, plan.evicted, plan.released) == ((), (), (), ())


def test_the_queue_refuses_when_full() -> None:
    rig = Rig(max_waiting=2)
    rig.add("a", [1])
    rig.add("b", [1])
    with pytest.raises(EngineBusyError, match="max_waiting is 2"):
        rig.add("c", [1])
    rig.run()
    rig.add("c", [1])
    rig.run()
    assert rig.scheduler.stats().accepted == 3


def test_a_request_id_may_be_used_again_after_its_end_only() -> None:
    rig = Rig()
    rig.add("a", [1], 1)
    with pytest.raises(InvalidParameterError, match="'a' is in use"):
        rig.add("a", [1])
    rig.run()
    rig.add("a", [1], 2)
    assert len(rig.run()["a"].token_ids) == 2


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="0 tokens"):
        Rig().add("a", [])


def test_a_budget_below_the_rows_is_refused() -> None:
    cache = PagedCache(num_blocks=4, block_size=4)
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 2"):
        Scheduler(SchedulerConfig(max_num_batched_tokens=2, max_num_seqs=4), cache, max_model_len=16)


def test_the_executor_is_told_about_a_sequence_once() -> None:
    rig = Rig()
    rig.add("a", [1, 2, 3], 3, eos_token_ids=(5,), stop_token_ids=(6, 7), noise_key=99)
    plan = rig.step()
    (admission,) = plan.admitted
    assert (admission.prompt_token_ids, admission.noise_key) == ((1, 2, 3), 99)
    assert (admission.eos_token_ids, admission.stop_token_ids) == ((5,), (6, 7))
    assert admission.params == make_request("a", [1], 3).params
    plans = [rig.step() for _ in range(3)]
    assert all(not plan.admitted for plan in plans)
    assert [plan.released for plan in plans] == [(), (), (0,)]
