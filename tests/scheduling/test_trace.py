"""The record of every step: what it holds, how it is bounded, exported, read again and told in words."""

import json
from itertools import pairwise

import pytest
from scheduling.driving import Rig, prompt_of
from scheduling.policies import SCENARIOS
from scheduling.test_golden import preemption_of_the_youngest

from mini_vllm.errors import InvalidParameterError
from mini_vllm.scheduling import LinearCosts, Trace
from mini_vllm.scheduling.explain import explain, find
from mini_vllm.scheduling.export import from_jsonl, to_chrome, to_jsonl


def told(rig: Rig, name: str) -> str:
    requests = rig.trace.requests()
    return explain(find(requests, name)[0], requests, rig.trace.steps())


def test_a_step_says_who_got_what_and_who_waited_why() -> None:
    rig = Rig(block_size=4, num_blocks=6, max_num_seqs=2, max_model_len=24, max_num_batched_tokens=10)
    for name, length in (("a", 8), ("b", 9), ("c", 4)):
        rig.add(name, prompt_of(length, len(rig.requests)), 2, priority=3, key="k")
    rig.step()
    first = rig.trace.steps()[0]
    assert first.chunks == ((0, 0, 8, 0), (1, 0, 2, 0))
    assert (first.waits, first.halt) == (((2, "rows"),), "rows")
    assert first.started == ((0, 0), (1, 0)) and first.stats.blocks_used == 3
    rig.step()
    second = rig.trace.steps()[1]
    assert second.chunks == ((0, 8, 1, 0), (1, 2, 7, 0)) and second.finished == ((0, "length"),)
    assert rig.trace.requests()[2].key == "k" and rig.trace.requests()[2].priority == 3
    rig.run()


def test_blocks_and_pending_prefixes_are_reasons_too() -> None:
    rig = Rig(block_size=4, num_blocks=8, max_model_len=32)
    rig.add("a", prompt_of(20), 2)
    rig.add("twin", prompt_of(20), 2)
    rig.add("other", prompt_of(16, 1), 2)
    rig.step()
    assert rig.trace.steps()[0].waits == ((1, "prefix"), (2, "blocks")) and rig.trace.steps()[0].halt == "blocks"
    rig.run()
    shared = [step.blocks_shared for step in rig.trace.steps()]
    assert max(shared) == 4 and shared[-1] == 0
    assert "another request was computing the same prefix: 1.00 s (1 step)" in told(rig, "twin")
    assert "the KV cache had too few free blocks" in told(rig, "other")


def test_overwritten_prefixes_are_counted_in_the_step_that_does_it() -> None:
    rig = Rig(block_size=4, num_blocks=4, max_model_len=16)
    for i in range(3):
        rig.add(f"r{i}", prompt_of(12, i), 1)
        rig.run()
    assert sum(step.blocks_evicted for step in rig.trace.steps()) == 5


def test_the_trace_is_bounded_and_keeps_the_latest() -> None:
    trace = Trace(max_entries=40)
    rig = Rig(block_size=4, num_blocks=32)
    rig.scheduler._recorder._trace = trace  # type: ignore[union-attr]
    for i in range(3):
        rig.add(f"r{i}", prompt_of(5, i), 30)
    rig.run()
    steps = trace.steps()
    assert sum(1 + len(step.chunks) for step in steps) <= 40 < sum(1 + len(plan.chunks) for plan, _ in rig.steps)
    assert [step.stats.step_id for step in steps] == list(range(len(rig.steps)))[-len(steps) :]
    assert "The trace begins after its arrival" in explain(trace.requests()[0], trace.requests(), steps)


@pytest.mark.parametrize("name", SCENARIOS)
def test_json_lines_give_back_the_trace(name: str) -> None:
    rig = SCENARIOS[name][1]()
    rig.run()
    kept = rig.trace.requests(), rig.trace.steps()
    assert len(kept[1]) == len(rig.steps)
    assert from_jsonl(to_jsonl(*kept)) == kept


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "step"}', '{"kind": "trace", "version": 9}', '{"kind": "x"}'])
def test_what_is_no_trace_is_refused_by_its_line(line: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"t\.jsonl line 2 is no record of a mini-vLLM trace"):
        from_jsonl(['{"kind": "trace", "version": 1}', line], source="t.jsonl")


def test_the_chrome_trace_has_a_track_per_request_and_spans_that_do_not_overlap() -> None:
    rig = preemption_of_the_youngest()
    rig.run()
    events = to_chrome(rig.trace.requests(), rig.trace.steps())["traceEvents"]
    json.dumps(events)
    for track in range(3):
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == 2 and event["tid"] == track]
        spans.sort(key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(spans))
        assert spans[0]["name"] == "waiting" and spans[1]["name"] == f"prefill {7 + track}"
    assert [event["tid"] for event in events if event["name"] == "preempted"] == [2, 1, 2]
    blocks = [event["args"]["used"] for event in events if event["name"] == "blocks"]
    assert blocks == [stats.blocks_used for _, stats in rig.steps]


def test_a_preempted_request_is_told_what_happened_to_it() -> None:
    rig = preemption_of_the_youngest()
    rig.run()
    assert told(rig, "C") == (
        "C: 9 prompt tokens, at most 12 to write.\n"
        "It took 23.00 s until it ended (length): waiting 11.00 s, reading the prompt 1.00 s, computing again 1.00 s, "
        "writing 10.00 s.\n"
        "It waited 11.00 s in all, because\n"
        "  - the KV cache had too few free blocks: 6.00 s (6 steps)\n"
        "  - B was ahead of it, and the KV cache had too few free blocks: 2.00 s (2 steps)\n"
        "  - it lost its blocks to A: 1.00 s (1 step)\n"
        "  - running sequences had just lost blocks, so nobody was admitted: 1.00 s (1 step)\n"
        "  - it lost its blocks: 1.00 s (1 step)\n"
        "Prompt: 9 tokens read in 1 step (9), 1.00 s. First token 1.00 s after arrival.\n"
        "Preempted 2 times, for A, itself (it asked for a block last); 11 tokens computed again in 1.00 s.\n"
        "Writing: 10 steps in 10.00 s, 1.00 s each.\n"
    )


def test_a_request_behind_a_more_urgent_one_is_told_so() -> None:
    rig = SCENARIOS["policy_priority"][1]()
    rig.run()
    assert "C, of priority 1, was ahead of it, and all rows were taken" in told(rig, "F")


def test_prefill_cut_for_the_sake_of_decodes_is_told() -> None:
    rig = Rig(num_blocks=64, costs=LinearCosts(step=1.0))
    rig.add("d", prompt_of(9), 60)
    rig.step()
    for name in ("first", "second"):
        rig.add(name, prompt_of(64, len(rig.requests)), 2, arrival=rig.time)
    rig.run()
    assert "Prompt: 64 tokens read in 4 steps (16 to 16 each)" in told(rig, "first")
    assert "  - more prefill would have slowed down the sequences that decode (itl_target_ms): 4.00 s" in told(
        rig, "second"
    )


def test_requests_are_found_by_the_users_id_the_engines_or_its_beginning() -> None:
    rig = Rig()
    rig.add("cmpl-1/0#7", prompt_of(4), 1)
    rig.add("cmpl-2/0#8", prompt_of(4), 1)
    requests = rig.trace.requests()
    assert [found.seq_id for found in find(requests, "cmpl-2")] == [1]
    assert [found.seq_id for found in find(requests, "cmpl-")] == [0, 1]
    with pytest.raises(InvalidParameterError, match="no request 'x'; it knows 2, the latest of which are: cmpl-1"):
        find(requests, "x")


def test_a_request_that_was_never_computed() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("a", prompt_of(4), 8)
    rig.add("b", prompt_of(4, 1), 8)
    rig.step()
    assert "It has not been computed yet." in told(rig, "b")
    rig.scheduler.abort("b")
    rig.step()
    assert "until it ended (abort): waiting 1.00 s." in told(rig, "b")
