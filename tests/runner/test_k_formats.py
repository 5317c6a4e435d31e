"""A model in GGUF's K formats: kept as they are, as one in float32 would answer, and small."""

import numpy as np
import pytest
from runner.tiny import VOCAB
from runner.tiny_k import MIXED, TinyKCheckpoint
from runner.toy import Driver

from mini_vllm import runner
from mini_vllm.config import EngineConfig
from mini_vllm.kernels.native_abi import OpKind
from mini_vllm.kernels.tensors import FORMATS

PROMPT = np.random.default_rng(3).integers(0, VOCAB, 45).tolist()


def load(**options):
    options = {"model": "tiny", "executor": "native", "num_blocks": 64, "max_num_seqs": 4, **options}
    return runner.load_executor(EngineConfig.from_options(**options), TinyKCheckpoint(), vocab_size=VOCAB)


def prompt_logprobs(executor):
    """Of every prompt token but the first."""
    driver = Driver(executor.runner, block_size=16, num_blocks=64)
    driver.add(0, PROMPT, prompt_logprobs=0, max_tokens=4)
    driver.generate(0, 2, 10**9)
    return np.array([report.logprob for report in driver.sequences[0]["prompt_logprobs"].values()])


def test_answers_are_those_of_float32_but_for_rounded_activations():
    exact = prompt_logprobs(load(dtype="float32", kv_cache_dtype="float32"))
    kept = prompt_logprobs(load(kv_cache_dtype="float32"))
    assert np.std(exact) > 0.5  # else this compares nothing
    assert 0 < np.abs(kept - exact).mean() < 0.1 * np.std(exact)


def test_every_matrix_keeps_its_own_format():
    executor = load()
    matrices = {}
    for kept in executor.runner._program._keep[2:]:
        for instruction in kept.instructions:
            if instruction.kind == OpKind.LINEAR and instruction.weight is not None:
                matrices.setdefault(instruction.weight.format, []).append(instruction.weight.num_rows)
    assert set(matrices) == set(MIXED.values())
    assert matrices["q6_k"].count(128) == 2  # the v of two layers, beside q and k in another format


@pytest.mark.parametrize("form", sorted({"q2_k", "q3_k", "q4_k", "q5_k", "q6_k"}))
def test_memory_of_a_packed_matrix(form):
    """Codes take 4 or 8 bits; scales as much as in the file, give or take their padding."""
    from mini_vllm.kernels.native_abi import FORMATS as CODES
    from mini_vllm.kernels.native_abi import bind_library

    packed = bind_library().mv_matrix_bytes(CODES[form], 64, 1024)
    elements, width = FORMATS[form]
    in_file = 64 * 1024 // elements * width
    assert packed / in_file < {"q2_k": 2.0, "q3_k": 1.35, "q4_k": 1.04, "q5_k": 1.6, "q6_k": 1.35}[form]
