"""What each policy promises, and that none of them lets anybody starve."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling.driving import Rig, prompt_of

from mini_vllm.config import POLICIES, EngineConfig
from mini_vllm.errors import ConfigError


def starts(rig: Rig) -> list[str]:
    """Names in the order in which requests were first started."""
    names = list(rig.requests)
    return [names[admission.seq_id] for plan, _ in rig.steps for admission in plan.admitted]


def test_an_unknown_policy_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="'lottery'; choose one of fcfs, priority, fair, srf, static, deadline"):
        EngineConfig.from_options(scheduling_policy="lottery")
    with pytest.raises(ConfigError, match="ageing_seconds is 0; it must be more than 0"):
        EngineConfig.from_options(ageing_seconds=0)


def test_priority_goes_first_and_waiting_makes_up_for_it() -> None:
    rig = Rig(max_num_seqs=1, scheduling_policy="priority", ageing_seconds=10.0)
    for name, priority, arrival in (("late", 0, 9.0), ("low", 1, 0.0), ("later", 0, 11.0), ("urgent", -1, 12.0)):
        rig.add(name, prompt_of(4, len(rig.requests)), 1, priority=priority, arrival=arrival)
    rig.run()
    assert starts(rig) == ["urgent", "late", "low", "later"]


def test_a_victim_has_the_least_priority_and_is_then_the_youngest() -> None:
    for policy in ("fcfs", "priority", "srf", "deadline"):
        rig = Rig(num_blocks=8, block_size=4, max_model_len=32, scheduling_policy=policy, enable_prefix_caching=False)
        for name, priority in (("low", 1), ("old", 0), ("young", 0)):
            rig.add(name, prompt_of(7, len(rig.requests)), 12, priority=priority)
        rig.run()
        rig.check_outputs()
        names = list(rig.requests)
        victims = [names[victim] for record in rig.trace.steps() for victim, _ in record.preempted]
        assert victims[:2] == ["low", "young"], policy


def test_fair_share_gives_each_key_the_same_tokens_while_both_wait() -> None:
    rig = Rig(num_blocks=400, max_num_seqs=4, scheduling_policy="fair")
    for i in range(60):
        rig.add(f"greedy {i}", prompt_of(40, i), 20, key="greedy")
    for i in range(15):
        rig.add(f"modest {i}", prompt_of(10, 100 + i), 5, key="modest")
    served = {"greedy": 0, "modest": 0}
    names = list(rig.requests)
    while any(answer.finish_reason is None for name, answer in rig.answers.items() if name.startswith("modest")):
        for chunk in rig.step().chunks:
            served[names[chunk.seq_id].split()[0]] += len(chunk.token_ids) + chunk.samples
        assert served["modest"] <= served["greedy"] + 100
    assert served["modest"] == 15 * (10 + 2 * 5 - 1) and served["greedy"] <= served["modest"] + 4 * (40 + 2 * 20)


def test_a_key_gets_no_credit_for_its_absence() -> None:
    rig = Rig(num_blocks=400, max_num_seqs=1, scheduling_policy="fair")
    for i in range(4):
        rig.add(f"steady {i}", prompt_of(8, i), 8, key="steady")
    for _ in range(17):
        rig.step()
    for i in range(4):
        rig.add(f"newcomer {i}", prompt_of(8, 10 + i), 8, key="newcomer")
    rig.run()
    order = starts(rig)
    assert order.index("steady 3") < order.index("newcomer 1"), "else four newcomers would have gone first"


def test_static_batches_never_overlap() -> None:
    rig = Rig(num_blocks=12, block_size=4, max_model_len=40, max_num_seqs=3, scheduling_policy="static")
    for i in range(10):
        rig.add(f"r{i}", prompt_of(3 + i, i), 3 + 5 * (i % 3))
    rig.run()
    rig.check_outputs()
    batches: list[set[int]] = []
    live: set[int] = set()
    for plan, _ in rig.steps:
        live -= set(plan.released)
        new = {admission.seq_id for admission in plan.admitted}
        if new:
            assert not live, "somebody was added to a batch under way"
            batches.append(new)
        live |= new
    assert sorted(map(len, batches)) == [1, 3, 3, 3]


def test_a_deadline_that_is_past_yields_to_one_that_can_be_met() -> None:
    rig = Rig(max_num_seqs=1, scheduling_policy="deadline", ageing_seconds=5.0)
    for name, deadline in (("first", None), ("missed", 1.5), ("soon", 4.0), ("after grace", 8.0)):
        rig.add(name, prompt_of(4, len(rig.requests)), 1, deadline=deadline)
    rig.step()
    assert starts(rig) == ["missed"], "it could still be met"
    rig = Rig(max_num_seqs=1, scheduling_policy="deadline", ageing_seconds=5.0)
    rig.time = 1.0
    for name, deadline in (("missed", 0.5), ("soon", 4.0), ("after grace", 8.0)):
        rig.add(name, prompt_of(4, len(rig.requests)), 1, deadline=deadline)
    rig.run()
    assert starts(rig) == ["soon", "missed", "after grace"]


FAVOURED: dict[str, dict[str, Any]] = {
    "fcfs": {"priority": -5},
    "priority": {"priority": -2},
    "fair": {"key": "crowd"},
    "srf": {},
    "static": {},
    "deadline": {"due_in": 2.0},
}


def flood(rig: Rig, options: dict[str, Any], lengths: Iterator[int]) -> None:
    """Short requests of the favoured kind, so that some always wait."""
    options = dict(options)
    due_in = options.pop("due_in", None)
    while len(rig.scheduler._queue) < 6:
        name = f"crowd {len(rig.requests)}"
        deadline = None if due_in is None else rig.time + due_in
        prompt = prompt_of(next(lengths), len(rig.requests))
        rig.add(name, prompt, 2, arrival=rig.time, deadline=deadline, **options)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    num_prompt=st.integers(1, 24),
    max_tokens=st.integers(2, 24),
    rows=st.integers(1, 4),
    num_blocks=st.integers(12, 20),
)
def test_nobody_starves_under_an_endless_stream_of_those_that_a_policy_favours(
    policy: str, lengths: list[int], num_prompt: int, max_tokens: int, rows: int, num_blocks: int
) -> None:
    """One long request, last by every measure of its policy, ends although the stream never does."""
    rig = Rig(
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=48,
        max_num_seqs=rows,
        prefill_chunk_size=5,
        scheduling_policy=policy,
        ageing_seconds=10.0,
    )
    cycle = iter(lambda: lengths[len(rig.requests) % len(lengths)], None)
    flood(rig, FAVOURED[policy], cycle)
    rig.add("meek", prompt_of(num_prompt, 99), max_tokens, priority=2, deadline=60.0, key="meek", arrival=rig.time)
    for _ in range(400):
        rig.step()
        flood(rig, FAVOURED[policy], cycle)
        if rig.answers["meek"].finish_reason is not None:
            break
    assert rig.answers["meek"].finish_reason is not None, f"still not served after {rig.time} s"
    assert rig.answers["meek"].token_ids == rig.alone("meek")
