"""The offline door over an engine without weights."""

import io
import sys

import numpy as np
import pytest
from engine.parts import ScriptedExecutor, counting, make_engine, saying

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import EngineConfig
from mini_vllm.errors import (
    ContextLengthError,
    EngineBusyError,
    EngineDeadError,
    EngineStepError,
    InvalidParameterError,
)
from mini_vllm.testing import ByteTokenizer

EOS = ByteTokenizer().id_of("<eos>")


def make_llm(script=counting, **options):
    return LLM.from_engine(make_engine(script, **options))


def texts(outputs):
    return [choice.text for output in outputs for choice in output.outputs]


def test_outputs_come_in_the_order_of_prompts_whatever_ends_first():
    llm = make_llm(saying(b"long long long" * 9, b"short", [EOS]))
    params = [SamplingParams(max_tokens=wanted) for wanted in (100, 5, 3, 1)]
    outputs = llm.generate([[0], [1], [2], {"prompt_token_ids": [1]}], params)
    assert [output.prompt_token_ids for output in outputs] == [[0], [1], [2], [1]]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [100, 5, 1, 1]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length", "stop", "length"]
    assert texts(outputs)[1:] == ["short", "", "s"]
    assert all(output.finished for output in outputs)


def test_a_single_prompt_may_be_a_string_a_dictionary_or_a_list_of_ids():
    llm = make_llm(saying(b"yes"))
    for prompt in ("hi", {"prompt": "hi"}, [104, 105], ["hi"]):
        [output] = llm.generate(prompt, SamplingParams(max_tokens=3))
        assert (output.prompt_token_ids, output.outputs[0].text) == ([104, 105], "yes")
    assert llm.generate([]) == []
    assert llm.generate("hi")[0].prompt == "hi" and llm.generate([1])[0].prompt is None


def test_batched_equals_alone_with_every_kind_of_parameters():
    prompts = [f"prompt number {i} " * (1 + i % 5) for i in range(40)]
    params = [SamplingParams(max_tokens=5 + i, n=1 + i % 3, seed=i, stop=["77"] if i % 2 else []) for i in range(40)]
    together = make_llm(max_num_seqs=7, num_blocks=60).generate(prompts, params)
    llm = make_llm()
    alone = [llm.generate(prompt, each)[0] for prompt, each in zip(prompts, params)]
    assert [output.outputs for output in together] == [output.outputs for output in alone]


def test_len_12_len_13_prompts_with_n_keep_their_own_choices_and_indices():
    llm = make_llm(saying(b"from zero", b"from one"))
    outputs = llm.generate([[0, 5], [1, 5]], SamplingParams(n=2, max_tokens=9))
    assert [[choice.index for choice in output.outputs] for output in outputs] == [[0, 1], [0, 1]]
    assert texts(outputs)[0] == "from zero" and texts(outputs)[2].startswith("from one")


def test_lengths_of_tokens_logprobs_and_usage_agree():
    llm = make_llm()
    [output] = llm.generate("abc", SamplingParams(max_tokens=6, n=2, logprobs=3, prompt_logprobs=1))
    for choice in output.outputs:
        assert [entry.token_id for entry in choice.logprobs] == choice.token_ids
        assert [len(entry.top) for entry in choice.logprobs] == [3] * 6
        assert choice.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in choice.logprobs))
    assert output.prompt_logprobs[0] is None
    assert [entry.token_id for entry in output.prompt_logprobs[1:]] == list(b"bc")
    [plain] = llm.generate("abc", SamplingParams(max_tokens=2))
    assert plain.outputs[0].logprobs is None and plain.prompt_logprobs is None


def test_lgp_08_len_05_max_tokens_0_scores_the_prompt_and_generates_nothing():
    llm = make_llm()
    [output] = llm.generate("Hello", SamplingParams(max_tokens=0, prompt_logprobs=2))
    assert output.outputs[0].token_ids == [] and output.outputs[0].text == ""
    assert output.outputs[0].finish_reason == "length"
    assert len(output.prompt_logprobs) == 5


def test_score_gives_one_entry_per_prompt_token():
    llm = make_llm(max_num_batched_tokens=64, prefill_chunk_size=7)
    prompts = ["Hello world, " * 5, "x", "Hello world, " * 5]
    scores = llm.score(prompts, top=1)
    assert [len(entries) for entries in scores] == [65, 1, 65]
    assert [entries[0] for entries in scores] == [None] * 3
    assert scores[0] == scores[2] and scores[0] == llm.score(prompts[0], top=1)[0]  # lgp_09: cached or not
    assert [entry.token_id for entry in scores[0][1:]] == list(prompts[0].encode()[1:])


def test_stp_02_a_stop_string_ends_the_sequence_in_the_engine_too():
    llm = make_llm(saying(b"one two STOP three four"))
    [output] = llm.generate([0], SamplingParams(max_tokens=300, stop=["STOP"]))
    choice = output.outputs[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("one two ", "stop", "STOP")
    assert len(choice.token_ids) == 12
    stats = llm.stats()
    assert stats.output_tokens <= 14 and stats.blocks_used == 0
    assert (stats.accepted, stats.finished_stop, stats.finished_abort) == (1, 1, 0)


def test_lod_10_every_eos_id_ends_and_none_is_shown():
    llm = make_llm(saying([104, 105, 7, 106], [104, EOS]), eos=(7, EOS))
    outputs = llm.generate([[0], [1]], SamplingParams(max_tokens=9))
    assert texts(outputs) == ["hi", "h"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "stop"]
    assert [output.outputs[0].stop_reason for output in outputs] == [None, None]


def test_stp_06_ignore_eos_gives_exactly_max_tokens_and_keeps_the_users_stops():
    llm = make_llm(saying([EOS, 7] * 300, [EOS] * 9 + [33]), eos=(7, EOS))
    [output] = llm.generate([0], SamplingParams(max_tokens=200, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 200 and output.outputs[0].finish_reason == "length"
    [output] = llm.generate([1], SamplingParams(max_tokens=200, ignore_eos=True, stop_token_ids=[33]))
    assert len(output.outputs[0].token_ids) == 10 and output.outputs[0].stop_reason == 33


def test_stp_07_min_tokens_holds_for_eos_stop_ids_and_stop_strings():
    llm = make_llm(saying([EOS, 7, 33] * 100, b"ab" * 100), eos=(7, EOS))
    outputs = llm.generate([[0], [1]], SamplingParams(min_tokens=50, max_tokens=60, stop=["ab"], stop_token_ids=[33]))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [51, 52]
    assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}


def test_len_06_without_a_limit_generation_ends_at_the_context():
    llm = make_llm(max_model_len=64)
    [output] = llm.generate("hallucinate", SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 64 - 11 and output.outputs[0].finish_reason == "length"
    assert llm.stats().blocks_used == 0


def test_len_01_a_prompt_beyond_the_step_budget_runs_and_one_beyond_the_context_is_refused():
    llm = make_llm(max_model_len=512, max_num_batched_tokens=256)
    assert len(llm.generate("a " * 200, SamplingParams(max_tokens=4))[0].outputs[0].token_ids) == 4
    with pytest.raises(ContextLengthError, match="maximum context length is 512 tokens"):
        llm.generate(["hi", "a " * 2500], SamplingParams(max_tokens=4))
    assert llm.stats().accepted == 1
    assert len(llm.generate("hi", SamplingParams(max_tokens=4))[0].outputs[0].token_ids) == 4


def test_a_request_that_the_pool_can_never_hold_is_refused_and_its_neighbours_are_ended():
    llm = make_llm(num_blocks=4)
    with pytest.raises(ContextLengthError, match="KV cache"):
        llm.generate(["short", "x" * 60], SamplingParams(max_tokens=30))
    assert llm.stats().running == llm.stats().waiting == llm.stats().blocks_used == 0
    assert len(llm.generate("next", SamplingParams(max_tokens=4))[0].outputs[0].token_ids) == 4


def test_more_prompts_than_may_wait_are_fed_as_room_appears():
    llm = make_llm(max_waiting=3, max_num_seqs=2)
    outputs = llm.generate(["x"] * 50, SamplingParams(max_tokens=2))
    assert len(outputs) == 50 and llm.stats().finished_length == 50


def test_parameters_must_match_the_prompts():
    with pytest.raises(InvalidParameterError, match="2 entries for 3 prompts"):
        make_llm().generate(["a", "b", "c"], [SamplingParams()] * 2)


@pytest.mark.parametrize("junk", [5, {"temperature": 0}, [None], "greedy"])
def test_parameters_of_another_kind_are_refused(junk):
    with pytest.raises(InvalidParameterError, match="give a SamplingParams, or with"):
        make_llm().generate(["a"], junk)


@pytest.mark.parametrize("junk", [5, None, b"abc", {1, 2}, np.array([[1, 2], [3, 4.5]])])
def test_prompts_of_another_kind_are_refused(junk):
    with pytest.raises(InvalidParameterError, match="prompt"):
        make_llm().generate(junk)


def test_numpy_arrays_are_prompts():
    llm = make_llm()
    ids = [
        [output.prompt_token_ids for output in llm.generate(prompts)]
        for prompts in (
            np.array([1, 2]),
            [np.int64(1), np.int32(2)],
            np.array([[1, 2], [3, 4]]),
            [np.array([1, 2]), [3, 4]],
        )
    ]
    assert ids == [[[1, 2]], [[1, 2]], [[1, 2], [3, 4]], [[1, 2], [3, 4]]]


@pytest.mark.parametrize("junk", [5, None, "hi", {"role": "user", "content": "hi"}])
def test_messages_of_another_kind_are_refused(junk):
    with pytest.raises(InvalidParameterError, match="messages is"):
        make_llm().chat(junk)


@pytest.mark.parametrize("junk", [5, {"messages": []}])
def test_template_variables_of_another_kind_are_refused(junk):
    with pytest.raises(InvalidParameterError, match="chat_template_kwargs is"):
        make_llm().chat([{"role": "user", "content": "hi"}], chat_template_kwargs=junk)


def test_lod_11_the_models_sampling_defaults_apply_only_where_no_parameters_are_given():
    engine = make_engine()
    engine.sampling_defaults = {"temperature": 0.1, "top_k": 1, "repetition_penalty": 1.05}
    llm = LLM.from_engine(engine)
    llm.generate("a")
    llm.generate("a", SamplingParams(temperature=10.0, max_tokens=1))
    seen = [admission.params for plan in engine.core.executor.plans for admission in plan.admitted]
    assert (seen[0].temperature, seen[0].top_k, seen[0].repetition_penalty) == (0.1, 1, 1.05)
    assert (seen[1].temperature, seen[1].top_k, seen[1].repetition_penalty) == (10.0, 0, 1.0)
    assert llm.default_sampling_params().top_k == 1


class FailOnce(ScriptedExecutor):
    """Raises `error` in its fourth run."""

    def __init__(self, error):
        super().__init__(counting)
        self.error = error

    def run(self, plan):
        if len(self.plans) == 3 and self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().run(plan)


def test_a_failed_step_raises_and_the_next_call_works():
    llm = make_llm(executor=FailOnce(ZeroDivisionError("0/0")))
    with pytest.raises(EngineStepError, match="ZeroDivisionError: 0/0"):
        llm.generate(["a", "b"], SamplingParams(max_tokens=20))
    assert len(llm.generate("c", SamplingParams(max_tokens=5))[0].outputs[0].token_ids) == 5


def test_an_interrupt_leaves_an_engine_that_works():
    executor = FailOnce(KeyboardInterrupt())
    llm = make_llm(executor=executor)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], SamplingParams(max_tokens=20))
    assert executor.known == {} and llm.stats().running == 0
    assert len(llm.generate("c", SamplingParams(max_tokens=5))[0].outputs[0].token_ids) == 5


def test_a_full_queue_with_nothing_to_wait_for_is_an_error_rather_than_a_hang(monkeypatch):
    llm = make_llm()

    def refuse(request):
        raise EngineBusyError("full")

    monkeypatch.setattr(llm.engine.core.scheduler, "add", refuse)
    with pytest.raises(EngineBusyError):
        llm.generate("a")


def test_chat_takes_one_conversation_or_several():
    class Template:
        def render(self, messages, *, add_generation_prompt=True, end="?"):
            return "".join(message["content"] for message in messages) + (end if add_generation_prompt else "")

    llm = make_llm(saying(b"yes"))
    llm.engine.frontend.chat_template = Template()
    one = [{"role": "user", "content": "hi"}]
    [output] = llm.chat(one, SamplingParams(max_tokens=3))
    assert output.prompt_token_ids == list(b"hi?") and output.outputs[0].text == "yes"
    outputs = llm.chat([one, [*one, *one]], SamplingParams(max_tokens=3), add_generation_prompt=False)
    assert [output.prompt_token_ids for output in outputs] == [list(b"hi"), list(b"hihi")]
    [output] = llm.chat(one, chat_template_kwargs={"end": "!"})
    assert output.prompt_token_ids == list(b"hi!")


def test_progress_is_shown_only_when_asked_for(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    llm = make_llm()
    llm.generate("a")
    assert shown.getvalue() == ""
    llm.generate(["a", "b"], SamplingParams(max_tokens=3), use_tqdm=True)
    assert "2/2 done, 6 tokens" in shown.getvalue()


def test_prefill_is_held_back_offline_only_where_that_is_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr("mini_vllm.engine.llm.load_engine", lambda config: seen.append(config.scheduler.itl_target_ms))
    LLM()
    LLM(itl_target_ms=20.0)
    LLM.from_config(EngineConfig())
    assert seen == [0.0, 20.0, EngineConfig().scheduler.itl_target_ms]


def test_text_made_of_many_tokens_at_once_is_that_of_one_by_one(monkeypatch):
    prompts = [[i, i + 1, i + 2] for i in range(6)]
    params = [SamplingParams(max_tokens=30 + i, n=1 + i % 2, logprobs=1, prompt_logprobs=1, seed=i) for i in range(6)]
    llm = make_llm(saying("naïve – ".encode() * 9, b"short", [104, 195, EOS]))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    one_by_one = llm.generate(prompts, params, use_tqdm=True)
    for most in (256, 7, 1, 0):
        monkeypatch.setattr("mini_vllm.engine.batch.MOST_HELD", most)
        held = llm.generate(prompts, params)
        assert [output.outputs for output in held] == [output.outputs for output in one_by_one]
        assert [output.prompt_logprobs for output in held] == [output.prompt_logprobs for output in one_by_one]
        assert all(output.metrics.first_token <= output.metrics.last_token for output in held)


def test_a_closed_llm_says_so():
    closed = []
    engine = make_engine()
    engine.on_close = lambda: closed.append(1)
    with LLM.from_engine(engine) as llm:
        llm.generate("a")
    llm.close()
    assert closed == [1] and llm.stats().finished_length == 1
    assert not hasattr(engine.core, "executor"), "the model is still held"
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("a")
