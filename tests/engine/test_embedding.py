"""Prompts as vectors: the same whatever runs beside them and however they are cut, and equal to the reference."""

import asyncio
import math

import numpy as np
import pytest
from engine.parts import make_engine

from mini_vllm import LLM, AsyncLLM
from mini_vllm.engine.embedding import fit_vector
from mini_vllm.errors import ContextLengthError, InvalidParameterError
from mini_vllm.testing import FakeExecutor

TEXTS = ["The capital of France is Paris.", "a", "Water boils at 100 degrees. " * 12, "1, 2, 3, 4, 5, 6, 7, 8"]


@pytest.fixture(scope="module")
def llm(default_model):
    with LLM(default_model, max_model_len=512, num_blocks=128) as llm:
        yield llm


def vectors(llm, texts, **options):
    return [each.vector for each in llm.embed(texts, **options)]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_batched_chunked_and_cached_equal_alone_to_the_last_bit(default_model, llm, pooling):
    alone = [vectors(llm, text, pooling=pooling)[0] for text in TEXTS]
    assert len({vector[0] for vector in alone}) == len(TEXTS)
    assert vectors(llm, TEXTS, pooling=pooling) == alone  # now their prefixes are in the cache, too
    others = dict(prefill_chunk_size=7, max_num_batched_tokens=24, max_num_seqs=8, enable_prefix_caching=False)
    with LLM(default_model, max_model_len=512, num_blocks=40, **others) as cut:
        assert vectors(cut, TEXTS, pooling=pooling) == alone
    with LLM(default_model, max_model_len=512, num_blocks=128, kv_cache=False) as bare:
        assert vectors(bare, TEXTS, pooling=pooling) == alone


def test_vectors_are_the_models_final_hidden_states(default_model):
    """Against the reference op table: the same states, up to how float32 sums are ordered."""
    pytest.importorskip("torch")
    with LLM(default_model, executor="torch", dtype="float32", max_model_len=512, num_blocks=64) as reference:
        expected = np.array(vectors(reference, TEXTS, normalize=False))
    with LLM(default_model, executor="native", max_model_len=512, num_blocks=64) as native:
        found = np.array(vectors(native, TEXTS, normalize=False))
    cosines = (expected * found).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(found, axis=1)
    assert cosines.min() > 0.99


def test_pooling_dimensions_and_length(llm):
    [whole] = vectors(llm, TEXTS[0], normalize=False)
    [unit] = vectors(llm, TEXTS[0])
    [short] = vectors(llm, TEXTS[0], dimensions=16)
    [last] = vectors(llm, TEXTS[0], pooling="last", normalize=False)
    assert len(whole) == len(last) == llm.model_info.hidden_size and whole != last
    assert math.isclose(math.hypot(*unit), 1) and math.isclose(math.hypot(*short), 1) and len(short) == 16
    assert np.allclose(np.array(short) * math.hypot(*whole[:16]), whole[:16])
    assert fit_vector([0.0, 0.0, 3.0], 2, normalize=True) == [0.0, 0.0]


def test_what_cannot_be_embedded_is_refused(llm):
    for options, name in (({"pooling": "cls"}, "pooling"), ({"dimensions": 0}, "dimensions")):
        with pytest.raises(InvalidParameterError) as caught:
            llm.embed("a", **options)
        assert caught.value.param == name
    with pytest.raises(InvalidParameterError, match="between 1 and 576"):
        llm.embed("a", dimensions=577)
    with pytest.raises(ContextLengthError):
        llm.embed([1] * 513)


def test_embeddings_and_texts_share_steps():
    engine = make_engine(executor=FakeExecutor(num_blocks=256, block_size=16, vocab_size=256))

    async def run():
        async with AsyncLLM.from_engine(engine) as llm:
            streams = [llm.stream(f"text {i}", None) for i in range(4)]
            for stream in streams:
                await stream.accepted()
            found = await asyncio.gather(*(llm.embed(f"prompt {i}", normalize=False) for i in range(40)))
            [await stream.aclose() for stream in streams]
            again = await llm.embed("prompt 7", normalize=False, pooling="last")
            return found, again

    found, again = asyncio.run(run())
    assert found[7].vector == again.vector and len({each.vector[0] for each in found}) > 30
    assert [len(each.prompt_token_ids) for each in found[:11]] == [8] * 10 + [9]


def test_a_failed_step_ends_an_embedding_with_an_error():
    from mini_vllm.errors import EngineStepError

    engine = make_engine(executor=FakeExecutor(num_blocks=256, block_size=16, vocab_size=256))
    engine.core.executor.run = lambda plan: 1 / 0
    with pytest.raises(EngineStepError, match="division"), LLM.from_engine(engine) as llm:
        llm.embed("a")


def test_an_engine_in_a_process_of_its_own_gives_the_same(default_model, llm):
    async def ask():
        async with AsyncLLM(default_model, engine_form="process", max_model_len=512, num_blocks=128) as apart:
            with pytest.raises(InvalidParameterError, match="between 1 and 576"):
                await apart.embed("a", dimensions=577)
            return [(await apart.embed(text, pooling="last")).vector for text in TEXTS]

    assert asyncio.run(ask()) == vectors(llm, TEXTS, pooling="last")
