"""Whole traces, as text tables that can be read in review. UPDATE_GOLDEN=1 writes them anew."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from scheduling import policies
from scheduling.driving import Rig, prompt_of
from scheduling.tracing import render

GOLDEN = Path(__file__).parent / "golden"


def chunked_prefill_beside_decodes() -> Rig:
    rig = Rig(block_size=4, num_blocks=32, max_num_batched_tokens=12, max_num_seqs=4, prefill_chunk_size=8)
    rig.add("A", prompt_of(6), 9)
    rig.step()
    rig.add("B", prompt_of(30, 1), 3)
    rig.add("C", prompt_of(10, 2), 3)
    return rig


def preemption_of_the_youngest() -> Rig:
    rig = Rig(block_size=4, num_blocks=8, max_model_len=32)
    for i in range(3):
        rig.add("ABC"[i], prompt_of(7 + i, i), 12)
    return rig


def equal_prompts_share_blocks() -> Rig:
    rig = Rig(block_size=4, num_blocks=32, prefill_chunk_size=8)
    for i in range(4):
        rig.add("ABCD"[i], prompt_of(18), 4)
    rig.add("E", prompt_of(5, 1), 3)
    return rig


def abort_of_the_one_that_others_wait_for() -> Rig:
    rig = Rig(block_size=4, num_blocks=32, prefill_chunk_size=8)
    rig.add("A", prompt_of(26), 4)
    rig.add("B", prompt_of(26), 2)
    rig.step()
    rig.step()
    rig.scheduler.abort("A")
    return rig


def contiguous_reservations() -> Rig:
    rig = Rig(block_size=4, num_blocks=8, max_model_len=32, cache_backend="contiguous")
    for i in range(3):
        rig.add("ABC"[i], prompt_of(5, i), 12 - 4 * i)
    return rig


def no_kv_cache() -> Rig:
    rig = Rig(block_size=4, num_blocks=8, max_num_batched_tokens=24, max_num_seqs=4, kv_cache=False)
    for i in range(3):
        rig.add("ABC"[i], prompt_of(6 + i, i), 4)
    return rig


def speculation() -> Rig:
    rig = Rig(block_size=4, num_blocks=16, num_drafts=3)
    rig.add("A", prompt_of(6), 12)
    rig.add("B", prompt_of(3, 1), 6)
    return rig


SCENARIOS: dict[str, tuple[str, Callable[[], Rig]]] = {
    "chunked": ("a long prompt is read in pieces beside a sequence that answers", chunked_prefill_beside_decodes),
    "preemption": ("three grow in a pool for two", preemption_of_the_youngest),
    "shared_prefix": ("four equal prompts: one computes, three wait and share", equal_prompts_share_blocks),
    "abort": ("the one that another waits for is aborted", abort_of_the_one_that_others_wait_for),
    "contiguous": ("each reserves its longest length in one piece", contiguous_reservations),
    "no_kv_cache": ("without a cache, every step starts over", no_kv_cache),
    "speculation": ("guesses after the last known token, three at most", speculation),
    **policies.SCENARIOS,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_trace(name: str) -> None:
    title, build = SCENARIOS[name]
    rig = build()
    rig.run()
    rig.check_outputs()
    trace, path = render(rig.steps, title=title), GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(trace, encoding="utf-8")
    assert trace == path.read_text(encoding="utf-8"), f"{path.name} differs; UPDATE_GOLDEN=1 writes it anew"


def test_every_golden_file_has_a_scenario() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCENARIOS)
