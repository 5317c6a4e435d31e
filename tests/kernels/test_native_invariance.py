"""Bits depend on a sequence alone: not on its neighbours, the chunking, the threads or the number of rows."""

from itertools import pairwise

import numpy as np
import pytest
from kernels.native_cases import FORMATS, ISAS, OneOp, RaggedStep, host
from kernels.test_native_attention import Attention

from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.table import AttentionSpec


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(37, 65), (200, 96), (1000, 33)])
def test_product_of_one_row_is_that_row_of_many(isa, number_format, rows, cols):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((130, cols)).astype(np.float32)
    weight = host(rng.standard_normal((rows, cols)), number_format)
    outputs = []
    for threads in (1, 2, 3):
        device = NativeDevice(threads=threads, isa=isa)
        packed = device.linear([weight])
        op = OneOp(device, values, lambda ops, ctx, x, w=packed: ops.linear(x, w), max_tokens=130)
        outputs.append(op.rows(range(130)))
        for count in (1, 2, 5, 6, 7, 11, 12, 13, 33, 49, 97):
            assert np.array_equal(bits(op.rows(range(count))), bits(outputs[0][:count]))
    assert np.array_equal(bits(outputs[0]), bits(outputs[1])) and np.array_equal(bits(outputs[0]), bits(outputs[2]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op_name", ("silu_mul", "gelu_mul", "gelu", "rms_norm"))
def test_row_ops_give_a_row_the_same_bits_anywhere(isa, op_name):
    device = NativeDevice(threads=2, isa=isa)
    values = np.random.default_rng(0).standard_normal((40, 74)).astype(np.float32)
    weight = device.vector(host(np.random.default_rng(1).standard_normal(74)))

    def build(ops, ctx, x):
        return ops.rms_norm(x, weight, 1e-6) if op_name == "rms_norm" else getattr(ops, op_name)(x)

    op = OneOp(device, values, build)
    whole = op.rows(range(40))
    assert np.array_equal(bits(np.concatenate([op.rows([i]) for i in range(40)])), bits(whole))


def test_an_element_has_the_same_bits_in_every_lane():
    """The tail of a row goes through the same function as its body."""
    for isa in ISAS:
        device = NativeDevice(threads=1, isa=isa)
        x = np.random.default_rng(0).standard_normal(67).astype(np.float32) * 3
        values = np.stack([np.roll(x, shift) for shift in range(20)])
        out = OneOp(device, values, lambda ops, ctx, x: ops.gelu(x)).rows(range(20))
        aligned = np.stack([np.roll(row, -shift) for shift, row in enumerate(out)])
        assert (bits(aligned) == bits(aligned[0])).all()


def splits(total, sizes):
    """[0, total) in pieces of the given sizes, repeated."""
    edges, position = [0], 0
    while position < total:
        position = min(total, position + sizes[(len(edges) - 1) % len(sizes)])
        edges.append(position)
    return list(pairwise(edges))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("window", (0, 24, 270))
def test_attention_of_chunks_is_attention_of_the_whole(isa, number_format, window):
    length, spec = 600, AttentionSpec(0, 6, 2, 24, 0.3, window=window)
    tokens = np.random.default_rng(3).integers(0, 50, length)
    results = []
    for threads, block_size, sizes in ((1, 16, [600]), (2, 16, [1, 7, 16, 17]), (2, 7, [300, 3]), (3, 32, [255, 1, 2])):
        step = RaggedStep([(0, length)], block_size, seed=block_size)
        attention = Attention(NativeDevice(threads=threads, isa=isa), spec, step, 50, number_format=number_format)
        pieces = [attention.run([(0, a, b)], tokens[a:b]) for a, b in splits(length, sizes)]
        results.append(np.concatenate(pieces))
    for result in results[1:]:
        assert np.array_equal(bits(result), bits(results[0]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", (0, 24))
def test_attention_does_not_see_its_neighbours(isa, window):
    spec = AttentionSpec(0, 6, 2, 24, 0.3, window=window)
    lengths = (600, 33, 1, 64, 257)
    tokens = [np.random.default_rng(r).integers(0, 50, length) for r, length in enumerate(lengths)]
    step = RaggedStep([(0, length) for length in lengths], 16)
    device = NativeDevice(threads=2, isa=isa)
    together = Attention(device, spec, step, 50, number_format="bf16")
    start = [(r, 0, max(0, length - 3)) for r, length in enumerate(lengths) if length > 3]
    together.run(start, np.concatenate([tokens[r][a:b] for r, a, b in start]))
    end = [(r, max(0, length - 3), length) for r, length in enumerate(lengths)]
    joint = together.run(end, np.concatenate([tokens[r][a:b] for r, a, b in end]))
    offset = 0
    for r, a, b in end:
        alone = Attention(device, spec, RaggedStep([(0, lengths[r])], 16, seed=r + 9), 50, number_format="bf16")
        out = alone.run([(0, 0, b)], tokens[r])[a:b]
        assert np.array_equal(bits(out), bits(joint[offset : offset + b - a]))
        offset += b - a
