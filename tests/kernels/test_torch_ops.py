"""The reference op table against formulas written out: paging, windows, caps, grouped heads, number formats."""

import math

import numpy as np
import pytest
import torch

from mini_vllm.errors import ConfigError
from mini_vllm.kernels.table import AttentionSpec, KVShape
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.kernels.torch_ops import TorchDevice, attend_sequence, rotate, to_torch


def _host(tensor: torch.Tensor) -> HostTensor:
    formats = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    return HostTensor("x", formats[tensor.dtype], tuple(tensor.shape), tensor.view(torch.uint8).numpy().reshape(-1))


def _attend_by_hand(q, key, value, positions, spec):
    """One head, one query, one key at a time."""
    out = np.zeros_like(q)
    for n, h in np.ndindex(q.shape[0], spec.num_heads):
        kv_head = h * spec.num_kv_heads // spec.num_heads
        first = max(0, positions[n] - spec.window + 1) if spec.window else 0
        scores = [float(q[n, h] @ key[m, kv_head]) * spec.scale for m in range(first, positions[n] + 1)]
        if spec.softcap:
            scores = [spec.softcap * math.tanh(score / spec.softcap) for score in scores]
        weights = np.exp(np.array(scores) - max(scores))
        out[n, h] = (weights / weights.sum()) @ value[first : positions[n] + 1, kv_head]
    return out


@pytest.mark.parametrize("window", [0, 1, 5])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_attention_equals_the_formula(window, softcap, num_kv_heads):
    spec = AttentionSpec(0, 4, num_kv_heads, 8, 0.5, window, softcap)
    generator = np.random.default_rng(0)
    q = generator.normal(size=(3, 4, 8)).astype(np.float32)
    key, value = generator.normal(size=(2, 11, num_kv_heads, 8)).astype(np.float32)
    positions = np.array([8, 9, 10])
    ours = attend_sequence(*(torch.from_numpy(x) for x in (q, key, value, positions)), spec)
    np.testing.assert_allclose(ours.numpy(), _attend_by_hand(q, key, value, positions, spec), atol=1e-5)


def test_rotation_turns_pairs_half_a_head_apart_and_passes_the_rest():
    x = torch.arange(6, dtype=torch.float32).reshape(1, 1, 6)
    turned = rotate(x, torch.zeros(1, 1, 2), torch.ones(1, 1, 2))  # a quarter turn of the first 4 dimensions
    assert turned.flatten().tolist() == [-2, -3, 0, 1, 4, 5]


def test_store_writes_scattered_slots_and_reads_them_in_order():
    shape = KVShape(num_layers=2, num_kv_heads=1, head_dim=2, num_blocks=4, block_size=2, dtype="bf16")
    store = TorchDevice().kv_store(shape)
    key = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    store.write(1, torch.tensor([6, 7, 2]), key, -key)  # blocks 3, 3, 1
    got_key, got_value = store.read(1, torch.tensor([3, 1, -1]), 3)
    assert torch.equal(got_key, key)
    assert torch.equal(got_value, -key)
    assert got_key.dtype == torch.float32
    assert store.keys[0].dtype == torch.bfloat16


def test_linear_fuses_parts_and_fills_missing_biases_with_zeros():
    device = TorchDevice()
    first, second = torch.randn(2, 3), torch.randn(4, 3)
    weight = device.linear([_host(first), _host(second)], [None, _host(torch.ones(4))])
    assert torch.equal(weight.weight, torch.cat((first, second)))
    assert weight.bias.tolist() == [0, 0, 1, 1, 1, 1]
    assert device.linear([_host(first)]).bias is None


def test_embedding_scale_is_rounded_to_the_format_of_the_table():
    """sqrt(3072) = 55.4256… is 55.5 in bfloat16: that is what the models were trained with."""
    from mini_vllm.kernels.torch_ops import TorchOps

    ops = TorchOps(None, None)
    for dtype, expected in ((torch.bfloat16, 55.5), (torch.float32, np.float32(3072**0.5))):
        table = TorchDevice().embedding(_host(torch.ones(2, 1, dtype=dtype)))
        assert ops.embed(torch.tensor([1]), table, scale=3072**0.5).item() == expected


def test_a_read_only_unaligned_source_is_copied():
    raw = np.frombuffer(b"\0" + np.arange(3, dtype=np.float32).tobytes(), dtype=np.uint8)[1:]
    assert not raw.flags.writeable
    assert to_torch(HostTensor("x", "f32", (3,), raw)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("device", ["tpu", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_by_name(device):
    with pytest.raises(ConfigError, match=device):
        TorchDevice(device=device)
