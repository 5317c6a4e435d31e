"""How a request ends: stop tokens, lengths, aborts; and what it leaves behind."""

import random

import pytest
from scheduling.driving import Rig, prompt_of

from mini_vllm.errors import ContextLengthError
from mini_vllm.types import SequenceOutput, StepResult


def first_tokens(prompt: list[int], count: int) -> list[int]:
    rig = Rig()
    rig.add("probe", prompt, count)
    return rig.run()["probe"].token_ids


def test_an_eos_token_ends_and_is_the_last_token() -> None:
    tokens = first_tokens(prompt_of(5), 8)
    rig = Rig()
    rig.add("a", prompt_of(5), 8, eos_token_ids=(tokens[3],))
    answer = rig.run()["a"]
    assert (answer.token_ids, answer.finish_reason, answer.stop_token_id) == (tokens[:4], "stop", tokens[3])
    assert rig.scheduler.stats().finished_stop == 1


def test_a_stop_at_the_last_permitted_token_is_a_stop() -> None:
    tokens = first_tokens(prompt_of(5), 4)
    rig = Rig()
    rig.add("a", prompt_of(5), 4, stop_token_ids=(tokens[3],))
    assert rig.run()["a"].finish_reason == "stop"


def test_stp_06_without_eos_ids_only_the_users_stop_tokens_end() -> None:
    """Under ignore_eos the front end gives no EOS ids; nothing may bring them back."""
    tokens = first_tokens(prompt_of(5), 60)
    rig = Rig()
    rig.add("ignoring", prompt_of(5), 60, ignore_eos=True)
    rig.add("stopping", prompt_of(5), 60, ignore_eos=True, stop_token_ids=(tokens[20],))
    answers = rig.run()
    assert (len(answers["ignoring"].token_ids), answers["ignoring"].finish_reason) == (60, "length")
    first = tokens.index(tokens[20])
    assert (answers["stopping"].token_ids, answers["stopping"].finish_reason) == (tokens[: first + 1], "stop")


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_stp_07_no_eos_or_stop_token_ends_before_min_tokens(num_drafts: int) -> None:
    half = tuple(range(0, 97, 2))
    rig = Rig(num_drafts=num_drafts)
    rig.add("free", prompt_of(6), 60, eos_token_ids=half, stop_token_ids=(1, 3, 5))
    rig.add("held", prompt_of(6, 1), 60, eos_token_ids=half, stop_token_ids=(1, 3, 5), min_tokens=50)
    answers = rig.run()
    rig.check_outputs()
    assert len(answers["free"].token_ids) < 20
    assert len(answers["held"].token_ids) > 50 and answers["held"].finish_reason == "stop"
    assert not set(answers["held"].token_ids[:50]) & {*half, 1, 3, 5}


def test_stp_07_commit_itself_does_not_stop_before_min_tokens() -> None:
    """Even if an executor were to sample EOS too early."""
    rig = Rig()
    rig.add("a", [1, 2], 10, eos_token_ids=(7, 8), min_tokens=2)
    lengths = []
    for token in (7, 8, 8):
        plan = rig.scheduler.plan()
        result = StepResult(step_id=plan.step_id, outputs=(SequenceOutput(0, (token,)),))
        lengths += [(delta.token_ids, delta.finish_reason) for delta in rig.scheduler.commit(plan, result)]
    assert lengths == [((7,), None), ((8,), None), ((8,), "stop")]


def test_tokens_after_the_stop_are_cut_from_a_speculative_result() -> None:
    rig = Rig()
    rig.add("a", [1, 2], 10, eos_token_ids=(7,), logprobs=0)
    plan = rig.scheduler.plan()
    result = StepResult(step_id=plan.step_id, outputs=(SequenceOutput(0, (3, 7, 4, 5)),))
    (delta,) = rig.scheduler.commit(plan, result)
    assert (delta.token_ids, delta.finish_reason, delta.stop_token_id) == ((3, 7), "stop", 7)
    rig.scheduler.check_integrity()
    assert rig.scheduler.stats().output_tokens == 2


def test_len_03_the_boundary_is_prompt_plus_output_equal_to_the_context() -> None:
    length, prompt = 64, 20
    for max_tokens in (length - prompt - 1, length - prompt):
        rig = Rig(max_model_len=length)
        rig.add("a", prompt_of(prompt), max_tokens)
        assert len(rig.run()["a"].token_ids) == max_tokens
    with pytest.raises(ContextLengthError, match=r"has 20 tokens and max_tokens is 45: 65 exceed the context of 64"):
        Rig(max_model_len=length).add("a", prompt_of(prompt), length - prompt + 1)
    rig = Rig(max_model_len=length)
    rig.add("a", prompt_of(length - 1), 1)
    assert len(rig.run()["a"].token_ids) == 1
    for too_long in (length, length + 1):
        with pytest.raises(ContextLengthError, match=r"shorten the prompt or lower max_tokens"):
            rig.add("b", prompt_of(too_long), 1)
    rig.add("scored", prompt_of(length), 0)
    assert rig.run()["scored"].finish_reason == "length"


def test_len_03_an_open_ended_request_ends_at_the_context() -> None:
    for options, limit in (({"max_model_len": 40}, 40), ({"num_blocks": 6, "block_size": 4}, 25)):
        rig = Rig(**options)
        assert rig.scheduler.max_seq_len == limit
        rig.add("a", prompt_of(10), 1000, open_ended=True)
        answer = rig.run()["a"]
        assert (len(answer.token_ids), answer.finish_reason) == (limit - 10, "length")


def test_len_01_a_prompt_beyond_the_step_budget_is_chunked_and_one_beyond_the_context_refused() -> None:
    rig = Rig(max_model_len=512, max_num_batched_tokens=256)
    rig.add("chunked", prompt_of(400), 4)
    with pytest.raises(ContextLengthError, match="the prompt has 5000 tokens") as caught:
        rig.add("refused", prompt_of(5000), 4)
    assert caught.value.code == "context_length_exceeded"
    rig.add("hi", [1, 2], 4)
    answers = rig.run()
    assert [len(answers[name].token_ids) for name in ("chunked", "hi")] == [4, 4]
    rig.check_outputs()


@pytest.mark.parametrize(
    ("options", "limit", "remedy"),
    [
        ({"num_blocks": 4, "block_size": 4}, 16, "the KV cache can hold; .* raise num_blocks"),
        ({"num_blocks": 4, "block_size": 4, "cache_backend": "contiguous"}, 16, "raise num_blocks"),
        ({"max_num_batched_tokens": 20, "max_num_seqs": 4, "kv_cache": False}, 20, "raise max_num_batched_tokens"),
        ({"num_blocks": 4, "block_size": 4, "kv_cache": False}, 16, "raise num_blocks"),
    ],
)
def test_what_can_never_fit_is_refused_and_the_largest_that_fits_is_served(
    options: dict[str, object], limit: int, remedy: str
) -> None:
    rig = Rig(**options)
    with pytest.raises(ContextLengthError, match=rf"more than the {limit} tokens that .*{remedy}"):
        rig.add("a", prompt_of(limit - 3), 5)
    with pytest.raises(ContextLengthError):
        rig.add("a", prompt_of(limit + 1), 0)
    rig.add("a", prompt_of(limit - 3), 4)  # the last token needs no place
    rig.add("b", prompt_of(limit), 0)
    rig.add("c", prompt_of(limit), 1)
    rig.run()
    rig.check_outputs()


def test_max_tokens_0_scores_the_prompt_and_makes_no_token() -> None:
    rig = Rig(prefill_chunk_size=4)
    rig.add("a", prompt_of(11), 0, prompt_logprobs=0)
    answer = rig.run()["a"]
    assert (answer.token_ids, answer.finish_reason) == ([], "length")
    assert [entry.token_id for entry in answer.prompt_logprobs] == prompt_of(11)[1:]
    rig.add("single", [5], 0, prompt_logprobs=0)
    assert rig.run()["single"].finish_reason == "length"


def test_an_abort_takes_effect_in_the_next_plan_and_is_told_by_its_commit() -> None:
    rig = Rig()
    rig.add("a", prompt_of(20), 50)
    rig.step()
    rig.scheduler.abort("a")
    assert rig.cache.num_used == 2
    plan = rig.scheduler.plan()
    assert (rig.cache.num_used, plan.chunks, plan.released) == (0, (), (0,))
    (delta,) = rig.scheduler.commit(plan, rig.executor.run(plan))
    assert (delta.request_id, delta.finish_reason, delta.token_ids) == ("a", "abort", ())
    assert not rig.scheduler.has_work()


def test_an_abort_of_nobody_and_of_one_who_has_just_ended_does_nothing() -> None:
    rig = Rig()
    rig.scheduler.abort("nobody")
    rig.add("a", [1], 1)
    plan = rig.scheduler.plan()
    rig.scheduler.abort("a")
    (delta,) = rig.scheduler.commit(plan, rig.executor.run(plan))
    assert delta.finish_reason == "length"
    rig.answers.clear()
    rig.add("a", [1], 1)
    assert rig.run()["a"].finish_reason == "length", "the old abort does not hit the new request of that name"


def test_a_request_can_end_with_an_error() -> None:
    rig = Rig()
    rig.add("a", [1, 2], 9)
    rig.step()
    rig.scheduler.abort("a", error="the grammar broke")
    answer = rig.run()["a"]
    assert (answer.finish_reason, answer.error) == ("error", "the grammar broke")
    assert rig.scheduler.stats().finished_error == 1


def test_a_request_whose_text_is_complete_ends_as_stopped() -> None:
    rig = Rig()
    rig.add("a", [1, 2], 9)
    rig.step()
    rig.scheduler.abort("a", reason="stop")
    assert rig.run()["a"].finish_reason == "stop"
    stats = rig.scheduler.stats()
    assert (stats.finished_stop, stats.finished_abort) == (1, 0)


def test_can_03_an_aborted_request_in_the_queue_never_runs() -> None:
    rig = Rig(max_num_seqs=1)
    for i, name in enumerate("ABC"):
        rig.add(name, prompt_of(4, i), 3)
    rig.step()
    assert rig.scheduler.stats().waiting == 2
    rig.scheduler.abort("B")
    rig.step()
    assert rig.scheduler.stats().waiting == 1
    rig.run()
    computed = [chunk.seq_id for plan, _ in rig.steps for chunk in plan.chunks]
    assert computed == [0, 0, 0, 2, 2, 2]
    assert rig.answers["B"].finish_reason == "abort"
    assert all(1 not in plan.released for plan, _ in rig.steps), "the executor never heard of it"


def test_can_06_mass_aborts_leave_nothing_behind() -> None:
    rng = random.Random(6)
    rig = Rig(num_blocks=256, max_num_seqs=64, check_kv=False)
    for round_ in range(20):
        names = [f"{round_}.{i}" for i in range(200)]
        for i, name in enumerate(names):
            rig.add(name, prompt_of(rng.randrange(1, 60), i % 9), 50)
        for _ in range(rng.randrange(1, 12)):
            rig.step()
        for name in names:
            rig.scheduler.abort(name)
        rig.run()
        assert rig.cache.num_free == 256
    rig.add("normal", prompt_of(30), 10)
    rig.run()
    rig.check_outputs()
    assert rig.scheduler.stats().finished_abort > 3000


def test_can_08_computed_blocks_stay_reusable_after_an_abort() -> None:
    rig = Rig(num_blocks=64)
    history = prompt_of(500)
    rig.add("interrupted", history, 100)
    for _ in range(13):
        rig.step()
    rig.scheduler.abort("interrupted")
    rig.run()
    said = rig.answers["interrupted"].token_ids
    assert len(said) == 13
    rig.add("follow-up", [*history, *said, *prompt_of(20, 3)], 5)
    rig.run()
    assert rig.answers["follow-up"].num_cached_tokens == 512 // 16 * 16
    rig.check_outputs()


def test_sch_18_refused_and_aborted_requests_use_nothing() -> None:
    rig = Rig(max_model_len=100)
    for i in range(50):
        with pytest.raises(ContextLengthError):
            rig.add(f"long {i}", prompt_of(200), 5)
        rig.add(f"aborted {i}", prompt_of(40, i), 20)
        rig.step()
        rig.scheduler.abort(f"aborted {i}")
    rig.run()
    stats = rig.scheduler.stats()
    assert (rig.cache.num_free, stats.blocks_used, stats.running, stats.waiting) == (64, 0, 0, 0)
    assert (stats.accepted, stats.finished_abort) == (50, 50)
    assert 0 < stats.blocks_cached <= 64, "apart from what may be evicted at any time"
