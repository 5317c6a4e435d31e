"""Native attention over ragged batches, on every instruction set, against NumPy in float64."""

import numpy as np
import pytest
from kernels.native_cases import FORMATS, ISAS, OneOp, RaggedStep, reference_attention, rounded

from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.table import AttentionSpec, KVShape

# (already computed, new tokens) of each sequence: decodes, prefills, a chunk in the middle, all around block edges
RAGGED = [(0, 1), (16, 1), (0, 17), (5, 16), (63, 1), (0, 33), (31, 9), (255, 2), (250, 20), (300, 1)]


class Attention:
    """rope-free attention whose q, k and v rows come straight from a table [rows, (heads + 2 kv heads) D]."""

    def __init__(self, device, spec, step, rows, *, number_format="f32"):
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.spec, self.step, self.number_format = spec, step, number_format
        self.table = np.random.default_rng(7).standard_normal((rows, width)).astype(np.float32)
        shape = KVShape(2, spec.num_kv_heads, spec.head_dim, step.num_blocks, step.block_size, number_format)

        def build(ops, ctx, x):
            return ops.attend(ops.rope_store(x, None, ctx.positions, spec), spec)

        self.op = OneOp(device, self.table, build, shape=shape, max_tokens=1024)

    def run(self, ranges, tokens):
        return self.op.run(self.step.inputs(ranges, tokens))

    def expected(self, tokens, positions):
        """Of one sequence whose row at position p is table[tokens[p]]."""
        spec, d = self.spec, self.spec.head_dim
        rows = self.table[tokens].reshape(len(tokens), -1, d)
        q, k, v = np.split(rows, [spec.num_heads, spec.num_heads + spec.num_kv_heads], axis=1)
        k, v = rounded(k, self.number_format), rounded(v, self.number_format)
        out = reference_attention(q[positions], k, v, positions, spec, number_format=self.number_format)
        return out.reshape(len(positions), -1)


def check_ragged(device, spec, *, block_size=16, number_format="f32", chunks=RAGGED):
    step = RaggedStep(chunks, block_size)
    attention = Attention(device, spec, step, 97, number_format=number_format)
    tokens = [np.random.default_rng(r).integers(0, 97, length) for r, length in enumerate(step.lengths)]
    before = [(r, 0, start) for r, (start, _) in enumerate(chunks) if start]
    if before:
        attention.run(before, np.concatenate([tokens[r][:start] for r, _, start in before]))
    now = [(r, start, start + count) for r, (start, count) in enumerate(chunks)]
    out = attention.run(now, np.concatenate([tokens[r][a:b] for r, a, b in now]))
    expected = np.concatenate([attention.expected(tokens[r], np.arange(a, b)) for r, a, b in now])
    tolerance = 1e-4 if number_format == "q8" else 2e-5  # there queries and weights have 15 bits
    near = np.abs(out - expected) <= tolerance * (1 + np.abs(expected))
    if number_format == "bf16":  # a weight may lie in the middle between two numbers of the format
        assert near.mean() > 0.99
        near |= np.abs(out - expected) <= 2**-8
    assert near.all(), np.abs(out - expected).max()


@pytest.fixture(params=ISAS)
def device(request):
    return NativeDevice(threads=2, isa=request.param)


@pytest.mark.parametrize("number_format", (*FORMATS, "q8"))
@pytest.mark.parametrize("block_size", (1, 7, 16, 48))
def test_block_sizes_and_formats(device, number_format, block_size):
    check_ragged(device, AttentionSpec(1, 6, 2, 32, 32**-0.5), block_size=block_size, number_format=number_format)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (5, 5), (9, 3), (8, 1), (14, 2)])
def test_grouped_heads(device, num_heads, num_kv_heads):
    check_ragged(device, AttentionSpec(0, num_heads, num_kv_heads, 16, 0.25))


@pytest.mark.parametrize("head_dim", (4, 5, 20, 33, 80, 128))
@pytest.mark.parametrize("number_format", ("bf16", "q8"))
def test_head_sizes(device, head_dim, number_format):
    check_ragged(device, AttentionSpec(0, 2, 1, head_dim, head_dim**-0.5), number_format=number_format)


@pytest.mark.parametrize("window", (1, 2, 15, 24, 64, 200))
@pytest.mark.parametrize("block_size", (7, 16))
@pytest.mark.parametrize("number_format", ("f32", "q8"))
def test_sliding_window(device, window, block_size, number_format):
    spec = AttentionSpec(0, 4, 2, 16, 0.25, window=window)
    check_ragged(device, spec, block_size=block_size, number_format=number_format)


@pytest.mark.parametrize("number_format", ("f32", "q8"))
def test_soft_cap(device, number_format):
    check_ragged(device, AttentionSpec(0, 4, 2, 16, 2.0, softcap=5.0), number_format=number_format)


def test_one_long_history_is_split_over_threads(device):
    check_ragged(device, AttentionSpec(0, 2, 1, 16, 0.25), chunks=[(900, 1)])
    check_ragged(device, AttentionSpec(0, 2, 1, 16, 0.25, window=300), chunks=[(900, 3)])


def test_large_scores_do_not_overflow(device):
    check_ragged(device, AttentionSpec(0, 2, 1, 16, 100.0), chunks=[(40, 3), (0, 70)])
