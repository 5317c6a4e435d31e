"""Every family through the whole engine, in every mode, on both op tables and the fallback, equals transformers.

The model lies in a folder and is loaded by `LLM`. transformers is asked once per prompt (one forward over prompt and
output proves greedy decoding, by induction over its causal steps); every other mode must give the same tokens.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from parity.families import (
    FAMILIES,
    VOCAB,
    make_model,
    make_prompts,
    one_torch_thread,
    randomise,
    reference_logits,
    save_model,
)
from parity.test_fallback import FALLBACKS
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedModel

from mini_vllm import LLM, SamplingParams

NUM_NEW = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)
RAGGED = make_prompts((1, 5, 16, 15, 17, 32, 33, 70))
SOME = [RAGGED[1], RAGGED[4], RAGGED[7]]
EXACT_BLOCKS = [RAGGED[2], RAGGED[5], make_prompts((64,))[0]]

CASES = [(name, executor) for name in FAMILIES for executor in ("native", "torch")]
CASES += [("starcoder2", "hf"), ("gpt_neox", "hf")]  # one sliding, one not

# mode -> (settings, prompts)
MODES = {
    "batch of 8 ragged": ({}, RAGGED),
    "no cache": ({"kv_cache": False}, SOME),
    "contiguous": ({"cache_backend": "contiguous"}, SOME),
    "chunked at 1": ({"prefill_chunk_size": 1}, SOME),
    "chunked at 7": ({"prefill_chunk_size": 7}, SOME),
    "chunked at 16": ({"prefill_chunk_size": 16}, SOME),
    "chunked at 17": ({"prefill_chunk_size": 17}, SOME),
    "exact blocks": ({}, EXACT_BLOCKS),
    "preempted": ({"num_blocks": 12}, SOME),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Iterator[functools.cache]:
    """name -> the folder of that family's model, written when first asked for."""
    with one_torch_thread():
        yield functools.cache(lambda name: _write_model(name, tmp_path_factory.mktemp(name)))


def _write_model(name: str, folder: Path) -> Path:
    save_model(model_of(name), folder)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@functools.cache
def model_of(name: str) -> PreTrainedModel:
    """The model that transformers computes with."""
    return make_model(name) if name in FAMILIES else randomise(FALLBACKS[name]())


@functools.cache
def expected(name: str, prompt: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """transformers' choice at every step after this prompt and these outputs."""
    return tuple(reference_logits(model_of(name), prompt, token_ids).argmax(axis=-1).tolist())


def generate(llm: LLM, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in llm.generate(prompts, GREEDY)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "executor"), CASES)
def test_every_mode_equals_transformers(name, executor, folders):
    load = functools.partial(
        LLM, folders(name), executor=executor, dtype="float32", threads=1, max_model_len=160, max_num_seqs=8
    )
    for mode, (settings, prompts) in MODES.items():
        with load(**{"num_blocks": 128, **settings}) as llm:
            outputs = generate(llm, prompts)
            for prompt, output in zip(prompts, outputs):
                assert len(output) == NUM_NEW
                assert output == expected(name, prompt, output), (mode, len(prompt))
            assert len(set().union(*outputs)) >= 20, "outputs that repeat themselves prove nothing"
            assert (llm.stats().preemptions > 0) == (mode == "preempted"), mode
            if mode == "exact blocks":
                assert [generate(llm, [prompt])[0] for prompt in prompts] == outputs, "prefix hit"
                assert llm.stats().prefix_hit_tokens == 0 + 16 + 48
