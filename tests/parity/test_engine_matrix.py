"""Every family through the whole engine, in every mode, on both op tables and the fallback, equals transformers.

The model lies in a folder and is loaded by `LLM`. transformers is asked once per prompt (one forward over prompt and
output proves greedy decoding, by induction over its causal steps); every mode must give the same tokens, and at each
step the 20 largest logits, as distances from their logsumexp (logprobs), within the tolerance for logits.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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

from mini_vllm import LLM, CompletionOutput, SamplingParams

NUM_NEW = 64
TOP = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True, logprobs=TOP)
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
def expected_logits(name: str, prompt: tuple[int, ...], token_ids: tuple[int, ...]) -> np.ndarray:
    """transformers' logits at every step after this prompt and these outputs. [steps, V]"""
    return np.asarray(reference_logits(model_of(name), prompt, token_ids), dtype=np.float64)


def generate(llm: LLM, prompts: list[tuple[int, ...]]) -> list[CompletionOutput]:
    return [output.outputs[0] for output in llm.generate(prompts, GREEDY)]


def assert_equals(output: CompletionOutput, logits: np.ndarray, where: object) -> None:
    """The same tokens as transformers, and at each step nearly the same logprobs."""
    assert len(output.token_ids) == NUM_NEW
    assert output.token_ids == logits.argmax(axis=-1).tolist(), where
    total = logits.max(axis=-1) + np.log(np.exp(logits - logits.max(axis=-1, keepdims=True)).sum(axis=-1))
    ids = np.array([[token_id for token_id, _ in entry.top] for entry in output.logprobs])
    given = np.array([[logprob for _, logprob in entry.top] for entry in output.logprobs])
    assert ids.shape == (NUM_NEW, TOP)
    tolerance = 2e-4 * max(1.0, float(np.abs(logits).max()))  # of a difference of two logits
    worst = np.abs(given - (np.take_along_axis(logits, ids, axis=-1) - total[:, None])).max()
    assert worst <= tolerance, (where, worst, tolerance)


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
                logits = expected_logits(name, prompt, tuple(output.token_ids))
                assert_equals(output, logits, (mode, len(prompt)))
            assert len({id for output in outputs for id in output.token_ids}) >= 20, "repetition proves nothing"
            assert (llm.stats().preemptions > 0) == (mode == "preempted"), mode
            if mode == "exact blocks":
                again = [generate(llm, [prompt])[0] for prompt in prompts]
                assert [output.token_ids for output in again] == [output.token_ids for output in outputs]
                if executor == "native":  # where equal bits are promised
                    assert [output.logprobs for output in again] == [output.logprobs for output in outputs]
                assert llm.stats().prefix_hit_tokens == 0 + 16 + 48
