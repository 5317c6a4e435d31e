"""The default model, end to end: text in, text out."""

import asyncio
import runpy
from pathlib import Path

import pytest

from mini_vllm import LLM, AsyncLLM, SamplingParams
from mini_vllm.errors import ContextLengthError, InvalidParameterError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
OPTIONS = dict(max_model_len=1024, max_num_seqs=16, num_blocks=256)
PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "1, 2, 3, 4, 5,", "Water boils at"]


@pytest.fixture(scope="module")
def llm(default_model):
    with LLM(default_model, **OPTIONS) as llm:
        yield llm


def text_of(output):
    return output.outputs[0].text


def test_it_knows_the_capital_of_france(llm):
    [output] = llm.generate("The capital of France is", GREEDY)
    assert text_of(output).startswith(" Paris")
    assert (output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == ("length", 24)


def test_lod_08_an_answer_ends_by_itself_and_shows_no_end_token(llm):
    [output] = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(temperature=0.0, max_tokens=200))
    choice = output.outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)
    assert "<|im_end|>" not in choice.text and len(choice.text) > 10
    assert llm.tokenizer.piece(choice.token_ids[-1]) == "<|im_end|>"


def test_stp_09_the_end_token_as_a_stop_string(llm):
    params = SamplingParams(temperature=0.0, max_tokens=200, stop=["<|im_end|>"], ignore_eos=True)
    [output] = llm.chat([{"role": "user", "content": "hi"}], params)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "<|im_end|>")
    assert "<|im_end|>" not in text_of(output)


def test_stp_02_a_stop_string_over_several_tokens(llm):
    params = SamplingParams(temperature=0.0, max_tokens=64, stop=["3 14"])
    [output] = llm.generate("1 2 3 4 5 6 7 8 9", params)
    assert output.outputs[0].stop_reason == "3 14"
    assert text_of(output) == " 10 11 12 1"


def test_batched_equals_alone(llm):
    params = [
        SamplingParams(temperature=0.0 if i % 2 else 0.8, seed=i, max_tokens=16 + i, n=1 + i % 2, logprobs=2)
        for i in range(len(PROMPTS))
    ]
    together = llm.generate(PROMPTS, params)
    alone = [llm.generate(prompt, each)[0] for prompt, each in zip(PROMPTS, params)]
    assert [output.outputs for output in together] == [output.outputs for output in alone]


def test_smp_06_a_seeded_request_does_not_depend_on_its_neighbours(llm):
    seeded = SamplingParams(seed=42, temperature=0.8, max_tokens=16)
    alone = text_of(llm.generate(PROMPTS[0], seeded)[0])
    for other in (SamplingParams(temperature=1.0, max_tokens=9), SamplingParams(seed=7, max_tokens=30)):
        assert text_of(llm.generate(PROMPTS[:2], [seeded, other])[0]) == alone
    assert text_of(llm.generate(PROMPTS[0], SamplingParams(seed=43, temperature=0.8, max_tokens=16))[0]) != alone


def test_lgp_08_scores_are_the_logprobs_that_generation_reports(llm):
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, ignore_eos=True)
    [output] = llm.generate(PROMPTS[1], params)
    ids, choice = output.prompt_token_ids, output.outputs[0]
    [scores] = llm.score([*ids, *choice.token_ids])
    assert scores[0] is None and len(scores) == len(ids) + 8
    assert [entry.logprob for entry in scores[len(ids) :]] == [entry.logprob for entry in choice.logprobs]
    assert all(entry.rank == 1 for entry in scores[len(ids) :])


def test_bad_input_is_one_clear_line_and_the_next_request_works(llm):
    with pytest.raises(InvalidParameterError, match="token ids are 0 to 49151"):
        llm.generate([1, 49152])
    with pytest.raises(ContextLengthError, match="maximum context length is 1024 tokens"):
        llm.generate("word " * 2000)
    assert text_of(llm.generate(PROMPTS[0], GREEDY)[0]).startswith(" Paris")


def test_stream_equals_non_stream_for_text_full_of_emoji(llm, default_model):
    messages = [{"role": "user", "content": "Repeat exactly: 🫠🥹龜👨‍👩‍👧"}]
    params = [SamplingParams(max_tokens=40, temperature=1.2, seed=seed, n=2) for seed in range(4)]
    expected = [llm.chat(messages, each)[0].outputs for each in params]

    async def stream(server, each):
        texts = ["", ""]
        async for delta in server.stream(server.render_chat(messages), each):
            texts[delta.choice_index] += delta.text
        return texts

    async def main():
        async with AsyncLLM(default_model, **OPTIONS) as server:
            return await asyncio.gather(*(stream(server, each) for each in params))

    streamed = asyncio.run(main())
    assert streamed == [[choice.text for choice in outputs] for outputs in expected]


def test_the_quickstart_generates_60_tokens(default_model, capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "quickstart.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.startswith("Once upon a time") and len(shown) > 150


def test_greedy_text_is_the_same_whether_or_not_all_logits_are_needed(llm):
    whole = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=60, logprobs=1))
    for prompt, expected in zip(PROMPTS, whole):
        [alone] = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=60))
        assert alone.outputs[0].token_ids == expected.outputs[0].token_ids
