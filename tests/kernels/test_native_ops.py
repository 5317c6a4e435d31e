"""Every op of the native library, on every instruction set, against NumPy in float64."""

import numpy as np
import pytest
from kernels.native_cases import FORMATS, ISAS, OneOp, host, rounded

from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.table import AttentionSpec, KVShape

WIDTHS = (1, 5, 16, 33, 64, 100, 201)


@pytest.fixture(params=ISAS)
def device(request):
    return NativeDevice(threads=2, isa=request.param)


def table(rows, width, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal((rows, width)) * scale).astype(np.float32)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("width", WIDTHS)
def test_embed_reads_rows_of_the_packed_table(device, number_format, width):
    values = table(35, width)
    embedding = device.embedding(host(values, number_format))

    def build(ops, ctx, x):
        return ops.embed(ctx.token_ids, embedding, scale=1.7)

    scale = rounded(np.float32([1.7]), number_format)[0]
    tokens = [0, 34, 16, 15, 1, 34]
    out = OneOp(device, values, build).rows(tokens)
    assert np.array_equal(out, rounded(values, number_format)[tokens] * scale)


def test_embed_positions_reads_rows_by_position(device):
    values = table(40, 24)
    positions = device.embedding(host(values, "f16"))

    def build(ops, ctx, x):
        return ops.embed_positions(ctx.positions, positions)

    out = OneOp(device, table(3, 8), build).rows([2, 0, 1, 2])
    assert np.array_equal(out, rounded(values, "f16")[:4])


@pytest.mark.parametrize("width", WIDTHS)
def test_add(device, width):
    values = table(9, width)
    other = device.embedding(host(table(9, width, seed=1)))

    def build(ops, ctx, x):
        return ops.add(x, ops.embed(ctx.token_ids, other))

    assert np.array_equal(OneOp(device, values, build).rows(range(9)), values + table(9, width, seed=1))


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(device, width):
    values, weight = table(9, width, scale=3.0), device.vector(host(table(1, width, seed=1)[0]), offset=1.0)
    out = OneOp(device, values, lambda ops, ctx, x: ops.rms_norm(x, weight, 1e-5)).rows(range(9))
    x = values.astype(np.float64)
    expected = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * (table(1, width, seed=1)[0] + 1.0)
    assert np.allclose(out, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(device, width):
    values = table(9, width, scale=3.0) + 5.0
    weight, bias = (device.vector(host(table(1, width, seed=s)[0])) for s in (1, 2))
    out = OneOp(device, values, lambda ops, ctx, x: ops.layer_norm(x, weight, bias, 1e-5)).rows(range(9))
    x = values.astype(np.float64)
    centred = x - x.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5 if width > 1 else 2e-3)


@pytest.mark.parametrize("head_dim", (8, 12, 80))
def test_qk_norm_leaves_values_alone(device, head_dim):
    spec = AttentionSpec(0, 3, 1, head_dim, 1.0)
    values = table(5, 5 * head_dim)
    q_weight, k_weight = (device.vector(host(table(1, head_dim, seed=s)[0])) for s in (1, 2))
    shape = KVShape(1, 1, head_dim, 1, 16, "f32")
    op = OneOp(device, values, lambda ops, ctx, x: ops.qk_norm(x, q_weight, k_weight, 1e-6, spec), shape=shape)
    out = op.rows(range(5))
    heads = values.reshape(5, 5, head_dim).astype(np.float64)
    normed = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6)
    expected = np.concatenate([normed[:, :3] * q_weight, normed[:, 3:4] * k_weight, heads[:, 4:]], axis=1)
    assert np.allclose(out, expected.reshape(5, -1), rtol=2e-6, atol=2e-6)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale", (0.01, 1.0, 30.0))
def test_activations(device, width, scale):
    values = table(7, 2 * width, scale=scale)
    gate, up = values[:, :width].astype(np.float64), values[:, width:]
    tolerance = {"rtol": 4e-6, "atol": 1e-7 * scale}
    out = OneOp(device, values, lambda ops, ctx, x: ops.silu_mul(x)).rows(range(7))
    assert np.allclose(out, gate * sigmoid(gate) * up, **tolerance)
    out = OneOp(device, values, lambda ops, ctx, x: ops.gelu_mul(x)).rows(range(7))
    assert np.allclose(out, gelu_tanh(gate) * up, rtol=4e-6, atol=4e-7 * scale * scale)
    out = OneOp(device, values, lambda ops, ctx, x: ops.gelu(x)).rows(range(7))
    assert np.allclose(out, gelu_tanh(values.astype(np.float64)), rtol=4e-6, atol=4e-7 * scale)


def test_activations_at_extremes(device):
    values = np.float32([[-1e30, -200.0, -88.0, -0.0, 88.0, 200.0, 1e30, 1e-40]])
    out = OneOp(device, values, lambda ops, ctx, x: ops.gelu(x)).rows([0])
    assert np.array_equal(out[0, 3:7], np.float32([0.0, 88.0, 200.0, 1e30]))
    assert np.abs(out[0, :3]).max() == 0.0


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 16), (17, 33), (50, 100), (160, 7), (95, 64), (33, 577)])
def test_linear(device, number_format, rows, cols):
    values, weight = table(61, cols), table(rows, cols, seed=1)
    packed = device.linear([host(weight, number_format)])
    out = OneOp(device, values, lambda ops, ctx, x: ops.linear(x, packed)).rows(range(61))
    if number_format == "bf16":  # such weights take their inputs in bfloat16 too
        values = rounded(values, "bf16")
    expected = values.astype(np.float64) @ rounded(weight, number_format).astype(np.float64).T
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5 * np.sqrt(cols))


def test_bfloat16_weights_take_inputs_rounded_to_the_nearest_even_bfloat16(device):
    """One column of weight 1: what comes out is the input as the product saw it."""
    step = 2.0**-7  # between neighbouring bfloat16 numbers from 1 to 2
    values = np.float32([1.0, 1.0 + step / 2, 1.0 + 1.5 * step, 1.0 + 0.51 * step, -1.0 - step / 2, 3e38, np.inf, 0.0])
    packed = device.linear([host(np.ones((1, 1)), "bf16")])
    out = OneOp(device, values[:, None], lambda ops, ctx, x: ops.linear(x, packed)).rows(range(8))[:, 0]
    rounded_values = np.float32([1.0, 1.0, 1.0 + 2 * step, 1.0 + step, -1.0, rounded(np.float32([3e38]), "bf16")[0]])
    assert np.array_equal(out[:6], rounded_values) and out[6] == np.inf and out[7] == 0.0


def test_linear_fuses_parts_with_their_biases(device):
    values, weight, bias = table(5, 20), table(41, 20, seed=1), table(1, 41, seed=2)[0]
    parts = [host(weight[:13], "f16"), host(weight[13:14], "f16"), host(weight[14:], "f16")]
    packed = device.linear(parts, [host(bias[:13]), None, host(bias[14:], "f32")])
    out = OneOp(device, values, lambda ops, ctx, x: ops.linear(x, packed)).rows(range(5))
    bias[13] = 0.0
    expected = values.astype(np.float64) @ rounded(weight, "f16").astype(np.float64).T + bias
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_linear_of_mixed_formats_keeps_every_value(device):
    values, weight = table(5, 20), table(24, 20, seed=1)
    packed = device.linear([host(weight[:8], "bf16"), host(weight[8:16], "f16"), host(weight[16:])])
    kept = np.concatenate([rounded(weight[:8], "bf16"), rounded(weight[8:16], "f16"), weight[16:]])
    out = OneOp(device, values, lambda ops, ctx, x: ops.linear(x, packed)).rows(range(5))
    expected = values.astype(np.float64) @ kept.astype(np.float64).T
    expected[:, :8] = rounded(values, "bf16").astype(np.float64) @ kept[:8].astype(np.float64).T
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_residual_fused_into_a_product_has_the_bits_of_a_separate_add(device):
    values, weight = table(30, 48), table(48, 48, seed=1)
    packed = device.linear([host(weight)])
    fused = OneOp(device, values, lambda ops, ctx, x: ops.add(x, ops.linear(x, packed)))
    plain = OneOp(device, values, lambda ops, ctx, x: ops.linear(x, packed))
    assert len(fused.program._keep[2].instructions) == 3
    assert np.array_equal(fused.rows(range(30)), values + plain.rows(range(30)))


def test_logits_are_soft_capped(device):
    values, weight = table(3, 20), table(70, 20, seed=1, scale=10.0)
    packed = device.embedding(host(weight))
    out = OneOp(device, values, lambda ops, ctx, x: ops.logits(x, packed, 30.0)).rows(range(3))
    expected = 30.0 * np.tanh(values.astype(np.float64) @ weight.astype(np.float64).T / 30.0)
    assert np.abs(expected).max() > 29.0 and np.abs(expected).min() < 3.0
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_half_precision_weights_survive_at_their_extremes(device):
    """Denormals, the largest number, infinities and NaN of each 16-bit format are widened exactly."""
    for number_format, dtype in (("f16", np.float16), ("bf16", np.uint16)):
        codes = np.arange(0, 65536, 7, dtype=np.uint16)
        raw = codes.view(dtype)
        exact = raw.astype(np.float32) if number_format == "f16" else (codes.astype(np.uint32) << 16).view(np.float32)
        tensor = host(np.zeros((len(codes), 1)), number_format)
        tensor.data[:] = raw.view(np.uint8)
        packed = device.linear([tensor])
        out = OneOp(device, np.float32([[1.0]]), lambda ops, ctx, x, w=packed: ops.linear(x, w)).rows([0])[0]
        normal = ~(np.abs(exact) < 1.2e-38)  # float32 denormals count as zero in products
        assert np.array_equal(out[normal], exact[normal], equal_nan=True)
        assert np.all(out[~normal] == 0.0)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize(("head_dim", "rotated"), [(8, 8), (12, 4), (80, 80), (64, 0)])
def test_rope_rotates_halves_and_stores_rounded_keys(device, number_format, head_dim, rotated):
    """Read back through attention over one key: softmax of one score is 1, so the output is V but for two roundings."""
    spec = AttentionSpec(1, 2, 1, head_dim, 1.0)
    values = table(6, 4 * head_dim)
    angles = np.arange(10)[:, None] / 50.0 ** (np.arange(max(rotated, 2) // 2) / max(rotated, 2))[None]
    rope = device.rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)) if rotated else None
    shape = KVShape(2, 1, head_dim, 5, 16, number_format)
    op = OneOp(device, values, lambda ops, ctx, x: ops.rope_store(x, rope, ctx.positions, spec), shape=shape)
    out = op.rows(range(6)).reshape(6, 2, head_dim)
    q = values[:, : 2 * head_dim].reshape(6, 2, head_dim).astype(np.float64)
    if rotated:
        half = rotated // 2
        cos, sin = np.cos(angles[:6])[:, None], np.sin(angles[:6])[:, None]
        a, b = q[..., :half].copy(), q[..., half:rotated].copy()
        q[..., :half], q[..., half:rotated] = a * cos - b * sin, b * cos + a * sin
    assert np.allclose(out, q, rtol=1e-5, atol=1e-6)

    def attend(ops, ctx, x):
        return ops.attend(ops.rope_store(x, rope, ctx.positions, spec), spec)

    first = OneOp(device, values, attend, shape=shape).rows([3]).reshape(2, head_dim)
    stored = rounded(values, number_format)[3, 3 * head_dim :]
    assert np.allclose(first, np.stack([stored] * 2), rtol=2.5e-7, atol=0)
