"""4- and 8-bit weights kept as they are: products with int8 activations, against exact arithmetic of the same codes."""

import numpy as np
import pytest
from kernels.native_cases import ISAS, OneOp, host

from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.native_abi import OpKind
from mini_vllm.kernels.native_fuse import fuse
from mini_vllm.kernels.native_record import RecordingOps, step_context
from mini_vllm.kernels.table import AttentionSpec
from mini_vllm.kernels.tensors import FORMATS as BLOCKS
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.quantization import dequantize

SIMPLE = ("q8_0", "q4_0", "q4_1")
FORMATS = (*SIMPLE, "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
# Where a block of the others holds its scale and, if it has one, its minimum; GGUF's layouts.
HALVES = {
    "q5_0": (0,), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
}  # fmt: skip


def whole(number_format, cols):
    """`cols` or the next larger number of columns that is whole blocks."""
    block = BLOCKS[number_format][0]
    return -(-cols // block) * block


def random_blocks(number_format, rows, cols, seed=0):
    """A tensor of random codes, and what it stands for [rows, cols] in float64. Extreme codes included."""
    rng = np.random.default_rng(seed)
    if number_format in SIMPLE:
        return simple_blocks(rng, number_format, rows, cols)
    elements, width = BLOCKS[number_format]
    data = rng.integers(0, 256, (rows, cols // elements, width), dtype=np.uint8)
    data[0], data[-1] = 0, 255  # the smallest and the largest codes, scales and minima
    for at, size in zip(HALVES[number_format], (0.001, 0.01)):
        scale = rng.uniform(size, 10 * size, data.shape[:2]) * rng.choice([-1, 1], data.shape[:2])
        data[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    tensor = HostTensor("test", number_format, (rows, cols), data.reshape(-1))
    return tensor, dequantize(tensor).astype(np.float64)


def simple_blocks(rng, number_format, rows, cols):
    groups = cols // 32
    scale = rng.uniform(0.001, 0.01, (rows, groups)).astype(np.float16) * rng.choice([-1, 1], (rows, groups))
    scale = scale.astype(np.float16)
    minimum = rng.uniform(-0.1, 0.1, (rows, groups)).astype(np.float16)
    low, high = {"q8_0": (-128, 128), "q4_0": (0, 16), "q4_1": (0, 16)}[number_format]
    codes = rng.integers(low, high, (rows, groups, 32))
    codes[0], codes[-1] = low, high - 1
    head = [scale[..., None].view(np.uint8)]
    if number_format == "q4_1":
        head.append(minimum[..., None].view(np.uint8))
    if number_format == "q8_0":
        body = codes.astype(np.int8).view(np.uint8)
    else:
        body = (codes[..., :16] | codes[..., 16:] << 4).astype(np.uint8)
    values = codes - (8.0 if number_format == "q4_0" else 0.0)
    values = values * scale[..., None].astype(np.float64)
    if number_format == "q4_1":
        values = values + minimum[..., None].astype(np.float64)
    data = np.concatenate([*head, body], axis=-1).reshape(-1)
    return HostTensor("test", number_format, (rows, cols), data), values.reshape(rows, cols)


def round_to_int8(x):
    """As csrc/kernels/quantized.cpp says: a scale per row and group of 32. Codes times scale, float64."""
    groups = x.reshape(len(x), -1, 32).astype(np.float32)
    peak = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.rint(groups * np.where(peak > 0, np.float32(127) / peak, np.float32(0)))
    return (codes.astype(np.float64) * (peak / np.float32(127))).reshape(x.shape)


@pytest.fixture(params=ISAS)
def device(request):
    return NativeDevice(threads=2, isa=request.param)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (5, 64), (50, 96), (130, 160), (33, 576)])
def test_product_of_codes(device, number_format, rows, cols):
    cols = whole(number_format, cols)
    x = np.random.default_rng(1).standard_normal((53, cols)).astype(np.float32)
    x[3] = 0.0
    x[4, :32] = 0.0
    x[5] *= 1e-20
    tensor, weight = random_blocks(number_format, rows, cols)
    packed = device.linear([tensor])
    out = OneOp(device, x, lambda ops, ctx, x: ops.linear(x, packed)).rows(range(53))
    expected = round_to_int8(x) @ weight.T
    magnitude = np.abs(round_to_int8(x)) @ np.abs(weight).T
    assert np.all(np.abs(out - expected) <= 1e-6 * magnitude + 1e-30)
    assert np.all(out[3] == 0.0)


@pytest.mark.parametrize("number_format", FORMATS)
def test_extreme_codes_do_not_saturate(device, number_format):
    cols = whole(number_format, 64)
    x = np.float32([[127.0] * cols, [-127.0] * cols, [127.0, -127.0] * (cols // 2)])
    tensor, weight = random_blocks(number_format, 20, cols)
    packed = device.linear([tensor])
    out = OneOp(device, x, lambda ops, ctx, x: ops.linear(x, packed)).rows(range(3))
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(weight).T
    assert np.all(np.abs(out - x.astype(np.float64) @ weight.T) <= 1e-6 * magnitude)


@pytest.mark.parametrize("number_format", FORMATS)
def test_embedding_and_head_share_one_packed_copy(device, number_format):
    cols = whole(number_format, 64)
    table, values = random_blocks(number_format, 37, cols)
    embedding = device.embedding(table)
    x = np.zeros((37, cols), np.float32)
    out = OneOp(device, x, lambda ops, ctx, x: ops.embed(ctx.token_ids, embedding)).rows(range(37))
    assert np.allclose(out, values, rtol=1e-6, atol=1e-8)
    logits = OneOp(device, x, lambda ops, ctx, x: ops.logits(ops.embed(ctx.token_ids, embedding), embedding))
    inputs = round_to_int8(values.astype(np.float32))
    difference = np.abs(logits.rows(range(37)) - inputs @ values.T)
    assert np.all(difference <= 1e-6 * (np.abs(inputs) @ np.abs(values).T) + 1e-6)


def test_parts_of_several_formats_lie_side_by_side(device):
    x = np.random.default_rng(1).standard_normal((9, 64)).astype(np.float32)
    parts = [random_blocks(f, rows, 64, seed=rows) for f, rows in (("q4_1", 20), ("q4_1", 3), ("q8_0", 17))]
    plain, bias = np.random.default_rng(2).standard_normal((2, 10, 64)).astype(np.float32), np.arange(17, dtype="f4")
    tensors = [*(tensor for tensor, _ in parts), host(plain[0]), host(plain[1], "bf16")]
    packed = device.linear(tensors, [None, None, host(bias), None, host(np.ones(10))])
    assert [matrix.format for matrix in packed.matrices] == ["q4_1", "q8_0", "f32", "bf16"]
    out = OneOp(device, x, lambda ops, ctx, x: ops.linear(x, packed)).rows(range(9))
    codes = np.concatenate([values for _, values in parts])
    assert np.allclose(out[:, :23], round_to_int8(x) @ codes[:23].T, rtol=1e-5, atol=1e-5)
    assert np.allclose(out[:, 23:40], round_to_int8(x) @ codes[23:].T + bias, rtol=1e-5, atol=1e-5)
    assert np.allclose(out[:, 40:50], x @ plain[0].T, rtol=1e-4, atol=1e-4)
    assert np.allclose(out[:, 50:], x @ plain[1].T + 1.0, rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_rows_and_threads_do_not_change_bits(isa, number_format):
    cols = whole(number_format, 96)
    x = np.random.default_rng(1).standard_normal((100, cols)).astype(np.float32)
    tensor, _ = random_blocks(number_format, 210, cols)
    outputs = []
    for threads in (1, 2, 3):
        device = NativeDevice(threads=threads, isa=isa)
        packed = device.linear([tensor])
        op = OneOp(device, x, lambda ops, ctx, x, w=packed: ops.linear(x, w), max_tokens=100)
        outputs.append(op.rows(range(100)))
        for count in (1, 2, 3, 5, 6, 7, 8, 12, 13, 33, 49):
            assert np.array_equal(op.rows(range(count)), outputs[0][:count])
    assert np.array_equal(outputs[0], outputs[1]) and np.array_equal(outputs[0], outputs[2])


def test_instruction_sets_with_fused_multiply_add_agree_to_the_bit():
    """The integers are exact, and the floats around them are the same operations."""
    fused = [isa for isa in ISAS if isa != "portable"]
    for number_format in FORMATS:
        cols = whole(number_format, 96)
        x = np.random.default_rng(1).standard_normal((7, cols)).astype(np.float32)
        tensor, _ = random_blocks(number_format, 40, cols)
        results = []
        for isa in fused:
            device = NativeDevice(threads=1, isa=isa)
            packed = device.linear([tensor])
            results.append(OneOp(device, x, lambda ops, ctx, x, w=packed: ops.linear(x, w)).rows(range(7)))
        assert all(np.array_equal(result, results[0]) for result in results)


def test_one_rounding_serves_all_products_of_a_format():
    device = NativeDevice(threads=1)
    first, second = (device.linear([random_blocks("q4_1", 16, 32)[0]]) for _ in range(2))
    third = device.linear([random_blocks("q8_0", 16, 32)[0]])
    ops = RecordingOps()
    x = ops.embed(step_context().token_ids, device.embedding(host(np.zeros((4, 32)))))
    for weight in (first, second, third):
        ops.linear(x, weight)
    kinds = [i.kind for i in ops.instructions]
    assert kinds.count(OpKind.QUANTIZE) == 2 and kinds.count(OpKind.LINEAR) == 3


@pytest.mark.parametrize("head_dim", [16, 64])
def test_roundings_to_int8_join_the_ops_before_them(head_dim):
    device = NativeDevice(threads=1)
    square, wide = (random_blocks("q4_1", rows, 64)[0] for rows in (64, 192))
    heads = 64 // head_dim
    ops = RecordingOps()
    context = step_context()
    x = ops.embed(context.token_ids, device.embedding(square))
    spec = AttentionSpec(0, heads, heads, head_dim, 1.0)
    qkv = ops.linear(ops.rms_norm(x, np.ones(64, np.float32), 1e-5), device.linear([wide]))
    mixed = ops.linear(ops.attend(ops.rope_store(qkv, None, context.positions, spec), spec), device.linear([square]))
    ops.linear(ops.silu_mul(ops.linear(mixed, device.linear([square, square]))), device.linear([square]))
    apart = [("ATTEND", ""), ("QUANTIZE", "")] if head_dim == 16 else [("ATTEND", "q4_1")]  # half a group, or two
    assert [(i.kind.name, i.rounds) for i in fuse(ops.instructions)] == [
        ("EMBED", ""),
        ("RMS_NORM", "q4_1"),
        ("LINEAR", ""),
        ("ROPE_STORE", ""),
        *apart,
        ("LINEAR", ""),
        ("QUANTIZE", ""),
        ("LINEAR", ""),
        ("SILU_MUL", "q4_1"),
        ("LINEAR", ""),
    ]
