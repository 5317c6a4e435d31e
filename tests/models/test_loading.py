"""Loading: every wrong tensor is named, formats are converted, memory is bounded, limits are kept."""

import tracemalloc

import numpy as np
import pytest
import torch
from models.checkpoints import ZeroCheckpoint, llama_config, llama_shapes
from parity.families import MemoryCheckpoint, make_model

from mini_vllm.errors import ConfigError, WeightsError
from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.kernels.torch_ops import TorchDevice
from mini_vllm.models import greedy_head_bytes, load_model, summarise_weights
from mini_vllm.models.source import transpose


def _load(shapes, **config):
    return load_model(ZeroCheckpoint(llama_config(**config), shapes), TorchDevice(), max_model_len=64)


def test_parameters_and_bytes_are_counted():
    loaded = _load(llama_shapes())
    expected = sum(int(np.prod(shape)) for shape in llama_shapes().values())
    assert loaded.num_parameters == expected
    assert loaded.weight_bytes == 4 * expected


def test_tied_parameters_are_counted_once():
    shapes = llama_shapes()
    del shapes["lm_head.weight"]
    loaded = _load(shapes, tie_word_embeddings=True)
    assert loaded.model.head is loaded.model.embedding
    assert loaded.num_parameters == sum(int(np.prod(shape)) for shape in shapes.values())


def test_lod_03_an_untied_head_that_no_file_holds_is_named():
    shapes = llama_shapes()
    del shapes["lm_head.weight"]
    with pytest.raises(WeightsError, match=r"missing \(lm_head\.weight although tie_word_embeddings is false\)"):
        _load(shapes)


@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_lod_13_a_missing_tensor_is_named(name):
    shapes = llama_shapes()
    del shapes[name]
    with pytest.raises(WeightsError) as caught:
        _load(shapes)
    assert f"1 missing ({name})" in str(caught.value)
    assert "some/folder" in str(caught.value)


def test_all_problems_are_named_at_once():
    shapes = llama_shapes()
    del shapes["model.norm.weight"]
    shapes["model.layers.0.self_attn.k_proj.weight"] = (8, 32)
    shapes |= {f"model.layers.{layer}.input_layernorm.weight": (32,) for layer in range(2, 9)}
    with pytest.raises(WeightsError) as caught:
        _load(shapes)
    message = str(caught.value)
    assert "1 missing (model.norm.weight)" in message
    assert "1 mis-shaped (model.layers.0.self_attn.k_proj.weight is [8, 32], not [16, 32])" in message
    assert "7 unexpected (model.layers.2.input_layernorm.weight" in message
    assert "and 2 more" in message
    assert "\n" not in message


def test_summary_without_loading():
    checkpoint = _bfloat16_checkpoint()
    checkpoint.tensors["model.norm.weight"] = checkpoint.tensors["model.norm.weight"].float()
    summary = summarise_weights(checkpoint)
    assert summary.num_parameters == sum(tensor.numel() for tensor in checkpoint.tensors.values())
    assert summary.formats == {"bf16": 2 * (summary.num_parameters - 64), "f32": 4 * 64}
    assert summary.num_bytes == 2 * summary.num_parameters + 2 * 64
    del checkpoint.tensors["model.norm.weight"]
    with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
        summarise_weights(checkpoint)


def test_gguf_products_of_gpt2_are_not_transposed_again():
    checkpoint = MemoryCheckpoint(make_model("gpt2"))
    plain = load_model(checkpoint, TorchDevice(), max_model_len=64)
    checkpoint.tensors = {
        name: tensor.T.contiguous() if ".c_" in name and tensor.dim() == 2 else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    checkpoint.layout = "gguf"
    gguf = load_model(checkpoint, TorchDevice(), max_model_len=64)
    assert torch.equal(gguf.model.layers[0].qkv.weight, plain.model.layers[0].qkv.weight)


def test_a_copy_of_the_embedding_is_tied_and_another_head_is_not():
    checkpoint = MemoryCheckpoint(make_model("llama-tied"))
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["model.embed_tokens.weight"].clone()
    model = load_model(checkpoint, TorchDevice(), max_model_len=64).model
    assert model.head is model.embedding
    checkpoint.tensors["lm_head.weight"] = 2 * checkpoint.tensors["lm_head.weight"]
    model = load_model(checkpoint, TorchDevice(), max_model_len=64).model
    assert torch.equal(model.head.weight, 2 * model.embedding.weight)


def _bfloat16_checkpoint():
    checkpoint = MemoryCheckpoint(make_model("qwen2"))
    checkpoint.tensors = {name: tensor.to(torch.bfloat16) for name, tensor in checkpoint.tensors.items()}
    return checkpoint


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.bfloat16), ("bfloat16", torch.bfloat16), ("float32", torch.float32), ("float16", torch.float16)],
)
def test_cli_04_dtype_auto_keeps_the_file_and_another_converts(dtype, expected):
    model = load_model(_bfloat16_checkpoint(), TorchDevice(), dtype=dtype, max_model_len=64).model
    layer = model.layers[0]
    assert {model.embedding.weight.dtype, layer.qkv.weight.dtype, model.head.weight.dtype} == {expected}
    assert {layer.qkv.bias.dtype, layer.mlp_norm.dtype, model.norm.dtype} == {torch.float32}


def test_a_format_that_the_device_lacks_becomes_float32():
    device = TorchDevice()
    device.weight_formats = frozenset({"f32"})
    model = load_model(_bfloat16_checkpoint(), device, max_model_len=64).model
    assert model.layers[0].qkv.weight.dtype == torch.float32


def test_fused_parts_of_different_formats_become_float32():
    checkpoint = _bfloat16_checkpoint()
    name = "model.layers.0.self_attn.v_proj.weight"
    checkpoint.tensors[name] = checkpoint.tensors[name].float()
    layers = load_model(checkpoint, TorchDevice(), max_model_len=64).model.layers
    assert layers[0].qkv.weight.dtype == torch.float32
    assert layers[1].qkv.weight.dtype == torch.bfloat16


def test_too_long_a_maximum_length_is_refused():
    checkpoint = ZeroCheckpoint(llama_config(), llama_shapes())
    with pytest.raises(ConfigError, match="max_model_len is 65 but LlamaForCausalLM reads at most 64 tokens"):
        load_model(checkpoint, TorchDevice(), max_model_len=65)
    stretched = llama_config(rope_scaling={"type": "dynamic", "factor": 2.0})
    load_model(ZeroCheckpoint(stretched, llama_shapes()), TorchDevice(), max_model_len=128)
    with pytest.raises(ConfigError, match="at most 128 tokens"):
        load_model(ZeroCheckpoint(stretched, llama_shapes()), TorchDevice(), max_model_len=129)


def test_cli_04_loading_keeps_no_second_copy():
    """Python and NumPy hold one tensor at a time: torch's own memory is not traced, so the rest is what remains."""
    config = llama_config(hidden_size=256, intermediate_size=512, vocab_size=1000, num_hidden_layers=8)
    shapes = {name: _enlarge(name, shape) for name, shape in _many_layers(8).items()}
    checkpoint = ZeroCheckpoint(config, shapes)
    tracemalloc.start()
    loaded = load_model(checkpoint, TorchDevice(), max_model_len=64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = 4 * 1000 * 256
    assert loaded.weight_bytes > 10 * largest
    assert peak < 4 * largest


def _many_layers(count):
    shapes = {name: shape for name, shape in llama_shapes().items() if "layers" not in name}
    first = {name: shape for name, shape in llama_shapes().items() if ".layers.0." in name}
    return shapes | {name.replace(".0.", f".{i}."): shape for i in range(count) for name, shape in first.items()}


def _enlarge(name, shape):
    sizes = {32: 256, 16: 128, 48: 512, 50: 1000}
    return tuple(sizes[size] for size in shape)


def test_transpose_moves_whole_elements():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    moved = transpose(HostTensor("x", "f32", (2, 3), matrix.view(np.uint8).reshape(-1)))
    assert moved.shape == (3, 2)
    np.testing.assert_array_equal(moved.data.view(np.float32).reshape(3, 2), matrix.T)


@pytest.mark.parametrize(
    ("changes", "shapes", "dtype", "expected"),
    [
        ({}, {"lm_head.weight": (96, 64), "model.embed_tokens.weight": (80, 64)}, "auto", ("f32", 96, 64)),
        ({}, {"model.embed_tokens.weight": (80, 64)}, "bfloat16", ("bf16", 80, 64)),
        ({"model_type": "gemma2", "final_logit_softcapping": None}, {"model.embed_tokens.weight": (80, 64)}, "auto",
         ("f32", 80, 64)),
        ({"model_type": "gemma2"}, {"model.embed_tokens.weight": (80, 64)}, "auto", None),  # capped at 30
        ({}, {"model.embed_tokens.weight": (80,)}, "auto", None),
        ({}, {}, "auto", None),
    ],
)  # fmt: skip
def test_memory_for_greedy_heads_is_the_devices_word_on_the_head_that_it_gets(changes, shapes, dtype, expected):
    device = NativeDevice(threads=1)
    checkpoint = ZeroCheckpoint(llama_config(hidden_size=64, head_dim=16, **changes), shapes)
    found = greedy_head_bytes(checkpoint, device, dtype=dtype)
    assert found == (0 if expected is None else device.greedy_head_bytes(*expected))
    assert (found > 0) == (expected is not None)
    assert greedy_head_bytes(checkpoint, TorchDevice(), dtype=dtype) == 0
