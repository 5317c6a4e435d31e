"""Speculation with the default model, end to end: the same answers, fewer forwards, in every door."""

import json

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.errors import ConfigError
from mini_vllm.types.structured import StructuredOutputsParams

OPTIONS = dict(max_model_len=1024, max_num_seqs=8, num_blocks=300)
TEXT = (
    "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs. How quick daft zebras jump."
)
PROMPTS = [
    f"Copy: {TEXT} {TEXT}\nCopy: {TEXT} The quick",
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\ndef",
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer"}},
    "required": ["name", "size"],
}
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, logprobs=3),
    "drawn": SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=40, logprobs=2),
    "several": SamplingParams(n=3, temperature=0.7, seed=4, max_tokens=24),
    "penalties": SamplingParams(temperature=0.6, seed=5, max_tokens=30, frequency_penalty=0.5, repetition_penalty=1.1),
    "stop": SamplingParams(temperature=0.0, max_tokens=60, stop=["dog", "return"]),
    "minimum": SamplingParams(temperature=0.0, max_tokens=30, min_tokens=20),
    "words": SamplingParams(temperature=0.0, max_tokens=30, bad_words=("Paris", "quick")),
    "schema": SamplingParams(
        temperature=0.8, seed=6, max_tokens=60, structured_outputs=StructuredOutputsParams(json=SCHEMA)
    ),
}
DRAFTERS = {
    "ngram": {"speculative": "ngram"},
    "suffix": {"speculative": "suffix"},
    "self": {"speculative": "self", "draft_layers": 15, "gamma": 3},
    "draft": {"speculative": "draft", "draft_model": "smollm2-135m", "gamma": 3},
}


def answers(llm):
    return {
        name: [
            (choice.text, choice.token_ids, choice.logprobs, choice.finish_reason, choice.stop_reason)
            for output in llm.generate(PROMPTS, params)
            for choice in output.outputs
        ]
        for name, params in PARAMS.items()
    }


@pytest.fixture(scope="module")
def plain(default_model):
    with LLM(default_model, **OPTIONS) as llm:
        yield answers(llm)


@pytest.mark.parametrize("name", DRAFTERS)
def test_spc_01_answers_are_the_same_with_every_drafter(name, plain, default_model):
    settings = {**DRAFTERS[name]}
    if "draft_model" in settings:
        settings["draft_model"] = str(default_model)
    with LLM(default_model, **OPTIONS, **settings) as llm:
        llm.engine.core.executor.runner.drafting._adaptive = False
        assert answers(llm) == plain
        stats = llm.engine.core.stats()
        assert stats.drafts_accepted > 50 and stats.forwards < 0.95 * stats.output_tokens
        assert len(stats.drafts_accepted_at) > 1 and list(stats.drafts_accepted_at) == sorted(
            stats.drafts_accepted_at, reverse=True
        )


def test_spc_09_a_schema_is_obeyed_with_guesses(plain):
    """The answers of the test above, which are these, are documents of the schema."""
    for text, _, _, finish_reason, _ in plain["schema"]:
        if finish_reason == "stop":
            found = json.loads(text)
            assert set(found) == {"name", "size"} and isinstance(found["size"], int)
    assert any(reason == "stop" for *_, reason, _ in plain["schema"])


def test_a_request_can_opt_out(default_model):
    with LLM(default_model, **OPTIONS, speculative="ngram") as llm:
        [output] = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=40, speculation=False))
        assert llm.engine.core.stats().drafts == 0
        assert (output.metrics.num_forwards, output.metrics.num_drafts) == (40, 0)
        [again] = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=40))
        assert again.outputs[0].token_ids == output.outputs[0].token_ids
        assert again.metrics.num_forwards < 40 and again.metrics.num_drafts_accepted > 0


def test_another_vocabulary_is_refused_at_start(default_model, tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokenizer = Backend(BPE({"c": 0, "a": 1, "b": 2}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 3}))
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"model.embed_tokens.weight": np.zeros((3, 4), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"another vocabulary: 3 of 3 token ids differ, the first is 0 \('c'"):
        LLM(default_model, **OPTIONS, speculative="draft", draft_model=str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative": "draft"}, "go together"),
        ({"speculative": "ngram", "draft_model": "x"}, "go together"),
        ({"speculative": "ngram", "draft_layers": 3}, "draft_layers is for"),
        ({"speculative": "self", "draft_layers": 30}, "the model has 30 layers"),
        ({"speculative": "self", "kv_cache": False}, "needs the KV cache"),
        ({"speculative": "ngram", "gamma": 0}, "gamma is 0; it must be at least 1"),
        ({"speculative": "ngram", "gamma": 33}, "at most 32"),
        ({"speculative": "magic"}, "choose one of off, ngram, suffix, draft, self"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(default_model, settings, message):
    with pytest.raises(ConfigError, match=message):
        LLM(default_model, **OPTIONS, **settings)
