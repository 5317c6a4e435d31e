"""What rounding costs: every number format of the native path against the same weights dequantised to float32.

The reference is our own float32 path, which the parity tests hold to transformers.
"""

import math

import pytest
from quality.measuring import compile_program, measure, read_documents
from quality.requantised import Requantised

from mini_vllm import LLM, weights
from mini_vllm.text import Tokenizer

MAX_LEN = 2048


@pytest.fixture(scope="module")
def checkpoint(default_model):
    checkpoint = weights.open_checkpoint(default_model)
    yield checkpoint
    checkpoint.close()


@pytest.fixture(scope="module")
def documents(checkpoint):
    tokenizer = Tokenizer.from_checkpoint(checkpoint.path, checkpoint.tokenizer_metadata)
    documents = [tokenizer.encode(text, add_special_tokens=False) for text in read_documents()]
    assert sum(map(len, documents)) >= 2500
    return documents


def check_quantised(loss) -> None:
    assert 0.0 < loss.mean_kl <= 0.01
    assert loss.agreement >= 0.95
    assert abs(loss.perplexity_ratio - 1.0) <= 0.01
    assert loss.reference_perplexity < 40, "a broken reference would hide anything"


@pytest.mark.slow
def test_the_default_file_in_each_dtype(checkpoint, documents):
    reference = compile_program(checkpoint, "float32", "f32", MAX_LEN)
    others = {
        "auto": compile_program(checkpoint, "auto", "q4_1", MAX_LEN),
        "bfloat16": compile_program(checkpoint, "bfloat16", "bf16", MAX_LEN),
        "float16": compile_program(checkpoint, "float16", "f16", MAX_LEN),
    }
    losses = measure(reference, others, documents)
    check_quantised(losses["auto"])
    assert losses["bfloat16"].mean_kl <= 0.0003 and losses["bfloat16"].agreement >= 0.985
    assert losses["float16"].mean_kl <= 0.00002 and losses["float16"].agreement >= 0.995
    for dtype in ("bfloat16", "float16"):
        assert abs(losses[dtype].perplexity_ratio - 1.0) <= 0.002


@pytest.mark.slow
def test_keys_and_values_in_int8(checkpoint, documents):
    reference = compile_program(checkpoint, "float32", "f32", MAX_LEN)
    others = {
        "float32": compile_program(checkpoint, "float32", "f32", MAX_LEN, kv="int8"),
        "auto": compile_program(checkpoint, "auto", "q4_1", MAX_LEN, kv="int8"),
    }
    losses = measure(reference, others, documents)  # 0.0006, 98.3%, 1.001 and 0.0035, 95.3%, 1.008 with AVX-512
    assert losses["float32"].mean_kl <= 0.001 and losses["float32"].agreement >= 0.975
    assert abs(losses["float32"].perplexity_ratio - 1.0) <= 0.003
    assert losses["auto"].mean_kl <= 0.005 and losses["auto"].agreement >= 0.945
    assert abs(losses["auto"].perplexity_ratio - 1.0) <= 0.012


@pytest.mark.slow
@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_other_block_formats(form, checkpoint, documents):
    """Quantised from the default file's weights; Q4_0 keeps its table in Q8_0, as files of that name do."""
    requantised = Requantised(checkpoint, form, keep=("model.embed_tokens.weight",))
    reference = compile_program(requantised, "float32", "f32", MAX_LEN)
    [loss] = measure(reference, {form: compile_program(requantised, "auto", form, MAX_LEN)}, documents).values()
    check_quantised(loss)


@pytest.mark.slow
def test_scores_are_the_likelihoods_of_these_distributions(default_model, checkpoint, documents):
    program = compile_program(checkpoint, "auto", "q4_1", MAX_LEN)
    [loss] = measure(program, {"same": program}, documents[1:]).values()
    with LLM(default_model, max_model_len=MAX_LEN, max_num_seqs=4, num_blocks=160) as llm:
        [entries] = llm.score(documents[1])
    mean = -math.fsum(entry.logprob for entry in entries[1:]) / (len(entries) - 1)
    assert math.exp(mean) == pytest.approx(loss.perplexity, rel=1e-6)
    assert loss.mean_kl == 0.0 and loss.agreement == 1.0
