"""GGUF files of every architecture give transformers' logits, and those of a folder with the same weights."""

import gguf
import numpy as np
import pytest
import torch
import transformers
from parity.driver import Driver
from parity.families import assert_equals_transformers, make_prompts, one_torch_thread
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from weights import tiny

from mini_vllm.kernels.registry import get_device
from mini_vllm.models import load_model
from mini_vllm.weights import open_checkpoint

ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_torch_thread():
        yield


def _tensors(architecture, *, tied=False):
    """Random weights of a scale at which float32 is exact enough: products keep the size of their input."""
    tensors = tiny.make_tensors(architecture, tied=tied)
    return {name: values * (0.1 if values.ndim == 2 else 0.5) for name, values in tensors.items()}


def _reference(config, tensors):
    """transformers' model of this config.json with these weights."""
    options = {key: value for key, value in config.items() if key != "architectures"} | {"pad_token_id": 0}
    model_config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
    model = transformers.AutoModelForCausalLM.from_config(model_config, attn_implementation="eager").float().eval()
    state = {name: torch.from_numpy(values) for name, values in tensors.items()}
    result = model.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= set(model.all_tied_weights_keys)
    return model


def _continue(path, prompts, *, device_name="native", num_new=4):
    device = get_device(device_name, threads=1)
    loaded = load_model(open_checkpoint(path), device, max_model_len=tiny.CONTEXT)
    return Driver.compile(device, loaded).generate(prompts, num_new, chunk=17)


def _prompts(lengths=(3, 33)):
    return [tuple(token % tiny.VOCAB for token in prompt) for prompt in make_prompts(lengths)]


def _window_24(architecture):
    def edit(writer):
        if architecture.startswith("gemma"):
            writer.add_sliding_window(24)

    return edit


@pytest.mark.parametrize("device_name", ["torch", "native"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lod_05_a_gguf_file_gives_transformers_logits(architecture, device_name, tmp_path):
    """Names, the order of rows, norms and settings all at once: any that is wrong gives other logits."""
    tensors = _tensors(architecture, tied=architecture == "gemma2")
    path = tiny.write_gguf(tmp_path / "m.gguf", architecture, tensors, edit=_window_24(architecture))
    model = _reference(open_checkpoint(path).config, tensors)
    for prompt, continuation in zip(_prompts(), _continue(path, _prompts(), device_name=device_name)):
        assert_equals_transformers(model, prompt, continuation)


@pytest.mark.parametrize("quantize", [None, "F16", "Q8_0"])
def test_a_gguf_file_equals_the_folder_of_its_values(quantize, tmp_path):
    tensors = _tensors("llama")
    kind = gguf.GGMLQuantizationType[quantize] if quantize else None
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, quantize=kind)
    if kind is not None:
        tensors = {
            name: gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind) if values.ndim == 2 else values
            for name, values in tensors.items()
        }
    folder = tiny.write_folder(tmp_path / "folder", tensors, open_checkpoint(path).config)
    for ours, theirs in zip(_continue(path, _prompts()), _continue(folder, _prompts())):
        # Blocks may meet rounded activations; plain numbers must not differ in a bit.
        tolerance = 0.0 if quantize is None else 0.02 * float(np.abs(theirs.logits).max())
        np.testing.assert_allclose(ours.logits[0], theirs.logits[0], rtol=0, atol=tolerance)


def test_lod_07_rope_freqs_give_the_logits_of_llama3_scaling_at_far_positions(tmp_path):
    tensors = _tensors("llama")
    config = transformers.LlamaConfig(
        hidden_size=tiny.HIDDEN,
        num_attention_heads=tiny.HEADS,
        max_position_embeddings=tiny.CONTEXT,
        rope_parameters=LLAMA3,
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 10000.0 ** -(np.arange(0, tiny.HEAD_DIM, 2) / tiny.HEAD_DIM)
    factors = (plain / scaled.numpy()).astype(np.float32)

    def edit(writer):
        writer.add_tensor("rope_freqs.weight", factors)

    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, edit=edit)
    stated = open_checkpoint(path).config | {"rope_scaling": None, "rope_parameters": LLAMA3}
    (prompt,) = _prompts((110,))
    (continuation,) = _continue(path, [prompt], num_new=8)
    assert_equals_transformers(_reference(stated, tensors), prompt, continuation)
    unscaled = tiny.write_gguf(tmp_path / "unscaled.gguf", "llama", tensors)
    assert np.abs(_continue(unscaled, [prompt])[0].logits[0] - continuation.logits[0]).max() > 0.01
