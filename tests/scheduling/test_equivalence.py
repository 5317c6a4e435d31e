"""The same requests give the same tokens and numbers, however they are cut, cached, batched and disturbed."""

import pytest
from scheduling.driving import Answer, Rig, prompt_of

MODES: dict[str, dict[str, object]] = {
    "plain": {},
    "no prefix caching": {"enable_prefix_caching": False},
    "contiguous": {"cache_backend": "contiguous"},
    "no cache": {"kv_cache": False},
    "chunks of 1": {"prefill_chunk_size": 1},
    "chunks of 7": {"prefill_chunk_size": 7},
    "chunks of 16": {"prefill_chunk_size": 16},
    "chunks of 17": {"prefill_chunk_size": 17},
    "one row": {"max_num_seqs": 1},
    "small budget": {"max_num_batched_tokens": 9, "max_num_seqs": 8},
    "small pool": {"num_blocks": 8, "max_model_len": 128},
    "small contiguous pool": {"num_blocks": 8, "max_model_len": 128, "cache_backend": "contiguous"},
    "small pool without cache": {"num_blocks": 8, "max_model_len": 128, "kv_cache": False},
    "blocks of 1": {"block_size": 1, "num_blocks": 512},
    "speculative": {"num_drafts": 3},
    "speculative without cache": {"num_drafts": 3, "kv_cache": False},
    "speculative in a small pool": {"num_drafts": 4, "num_blocks": 8, "max_model_len": 128},
}
LENGTHS = (1, 7, 15, 16, 17, 32, 40, 40)


def run(options: dict[str, object], **params: object) -> dict[str, Answer]:
    rig = Rig(**options)
    for i, length in enumerate(LENGTHS):
        rig.add(f"r{i}", prompt_of(length, i % 6), 40, logprobs=0, eos_token_ids=(i,), **params)
    rig.run()
    rig.check_outputs()
    return rig.answers


@pytest.mark.parametrize("mode", MODES)
def test_sch_21_every_mode_equals_each_request_alone(mode: str) -> None:
    answers = run(MODES[mode])
    assert len({tuple(answer.token_ids) for answer in answers.values()}) >= 6
    assert [(a.token_ids, a.logprobs, a.finish_reason) for a in answers.values()] == [
        (a.token_ids, a.logprobs, a.finish_reason) for a in run({}).values()
    ]


@pytest.mark.parametrize("mode", MODES)
def test_sch_17_prompt_logprobs_are_the_same_in_every_mode(mode: str) -> None:
    expected = run({}, prompt_logprobs=0)
    for name, answer in run(MODES[mode], prompt_logprobs=0).items():
        assert answer.prompt_logprobs == expected[name].prompt_logprobs
        assert answer.logprobs == expected[name].logprobs


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 49, 50])
def test_sch_16_prompt_logprobs_do_not_depend_on_the_chunk_size(chunk: int) -> None:
    answers = []
    for options in ({}, {"prefill_chunk_size": chunk}):
        rig = Rig(**options)
        rig.add("other", prompt_of(20, 1), 30)
        rig.add("scored", prompt_of(50), 2, prompt_logprobs=3)
        answers.append(rig.run()["scored"].prompt_logprobs)
    assert len(answers[0]) == 49
    assert answers[0] == answers[1]


def test_sch_17_logprobs_under_speculation_beside_a_partial_prompt_equal_those_alone() -> None:
    def requests(rig: Rig, only: int | None) -> None:
        for i in range(4):
            if only in (None, i):
                rig.add(f"r{i}", prompt_of(100 if i == 3 else 5 + i, i), 25, logprobs=0)

    together = Rig(num_drafts=4, prefill_chunk_size=6)
    requests(together, None)
    together.run()
    assert any(stats.kind == "mixed" for _, stats in together.steps)
    for i in range(4):
        alone = Rig()
        requests(alone, i)
        assert alone.run()[f"r{i}"].logprobs == together.answers[f"r{i}"].logprobs


def test_sch_09_prefix_hits_change_nothing_for_one_client_after_another() -> None:
    system = prompt_of(100)
    answers = []
    for caching in (True, False):
        rig = Rig(enable_prefix_caching=caching)
        for i, question in enumerate((prompt_of(9, 1), prompt_of(9, 1), prompt_of(9, 1), prompt_of(11, 2))):
            rig.add(f"q{i}", [*system, *question], 32)
            rig.run()
        rig.check_outputs()
        answers.append([answer.token_ids for answer in rig.answers.values()])
        assert [a.num_cached_tokens for a in rig.answers.values()] == ([0, 96, 96, 96] if caching else [0] * 4)
    assert answers[0] == answers[1]


def test_speculation_takes_fewer_steps() -> None:
    plain, speculative = Rig(), Rig(num_drafts=4)
    for rig in (plain, speculative):
        rig.add("a", prompt_of(10), 100)
        rig.run()
    assert len(speculative.steps) < len(plain.steps) / 2
    assert plain.answers["a"].token_ids == speculative.answers["a"].token_ids
