"""Every native architecture equals transformers in float32: greedy tokens and each step's logits."""

import numpy as np
import pytest
import transformers
from parity.driver import Driver
from parity.families import (
    FAMILIES,
    MAX_LEN,
    SIZES,
    MemoryCheckpoint,
    assert_equals_transformers,
    llama,
    longrope,
    make_model,
    make_prompts,
    one_torch_thread,
    randomise,
)

from mini_vllm.kernels.registry import get_device
from mini_vllm.models import load_model, native_architectures

DEVICES = ["torch", "native"]
CHUNKS = [1, 7, 16, 17, None]


@pytest.fixture(autouse=True)
def _one_thread():
    with one_torch_thread():
        yield


def _driver(model, device_name: str, *, max_model_len: int = MAX_LEN) -> Driver:
    device = get_device(device_name, threads=1)
    loaded = load_model(MemoryCheckpoint(model), device, max_model_len=max_model_len)
    return Driver.compile(device, loaded)


@pytest.mark.parametrize("device_name", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_batch_equals_transformers(family, device_name):
    driver, prompts = _driver(make_model(family), device_name), make_prompts((5, 16, 1, 71))
    for prompt, continuation in zip(prompts, driver.generate(prompts, 64, chunk=None)):
        assert_equals_transformers(make_model(family), prompt, continuation)


@pytest.mark.parametrize("device_name", DEVICES)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_chunked_prefill_equals_transformers(family, device_name, chunk):
    driver, prompts = _driver(make_model(family), device_name), make_prompts((64, 41))
    for prompt, continuation in zip(prompts, driver.generate(prompts, 64 if chunk is None else 8, chunk=chunk)):
        assert_equals_transformers(make_model(family), prompt, continuation)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("family", ["llama-tied", "mistral", "gemma3", "gpt2"])
def test_on_the_native_table_no_bit_depends_on_chunks_or_neighbours(family, dtype):
    device = get_device("native", threads=1)
    loaded = load_model(MemoryCheckpoint(make_model(family)), device, max_model_len=MAX_LEN)
    prompts = make_prompts((50, 16, 3))

    def logits(some, chunk):
        driver = Driver.compile(device, loaded, dtype=dtype)
        return [continuation.logits for continuation in driver.generate(some, 24, chunk=chunk)]

    whole = logits(prompts, None)
    for chunk in (1, 7, 16, 17):
        np.testing.assert_array_equal(logits(prompts, chunk), whole)
    np.testing.assert_array_equal([logits([prompt], None)[0] for prompt in prompts], whole)


def test_every_native_architecture_has_a_row():
    assert {FAMILIES[name]().model_type for name in FAMILIES} == set(native_architectures())


@pytest.mark.parametrize("device_name", DEVICES)
def test_dynamic_rope_has_the_base_of_the_longest_sequence(device_name):
    """A dynamic model stretched to twice its length is a plain one with the base that the formula gives for it."""
    stretched, factor, dim = 2 * MAX_LEN, 2.0, 16
    theta = 10000.0 * (factor * stretched / MAX_LEN - (factor - 1)) ** (dim / (dim - 2))
    plain = randomise(llama(rope_parameters={"rope_type": "default", "rope_theta": theta}))
    dynamic = randomise(llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": factor}))
    (prompt,) = make_prompts((9,))
    (continuation,) = _driver(dynamic, device_name, max_model_len=stretched).generate([prompt], 64, chunk=None)
    assert_equals_transformers(plain, prompt, continuation)


@pytest.mark.parametrize("device_name", DEVICES)
def test_longrope_takes_its_long_factors_when_the_maximum_length_needs_them(device_name):
    """transformers switches to the long set beyond 32 tokens; we do for all lengths, so the prompt is longer."""
    model = randomise(transformers.Phi3Config(**SIZES, **longrope(original=32)))
    (prompt,) = make_prompts((40,))
    (continuation,) = _driver(model, device_name).generate([prompt], 64, chunk=7)
    assert_equals_transformers(model, prompt, continuation)
