"""What the tests of the native device share: single ops as programs, ragged steps, references in NumPy."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mini_vllm.kernels.inputs import StepInputs
from mini_vllm.kernels.native import NativeDevice
from mini_vllm.kernels.native_abi import bind_library
from mini_vllm.kernels.native_memory import Memory
from mini_vllm.kernels.table import AttentionSpec, ForwardContext, KVShape
from mini_vllm.kernels.tensors import HostTensor

ISAS = bind_library().mv_isa_names().decode().split()
FORMATS = ("f32", "f16", "bf16")

Build = Callable[[Any, ForwardContext, Any], Any]


def host(values: np.ndarray, number_format: str = "f32") -> HostTensor:
    """Values rounded to a number format."""
    values = np.ascontiguousarray(values, np.float32)
    if number_format == "bf16":
        raw: np.ndarray = to_bf16_bits(values)
    else:
        raw = values.astype({"f32": np.float32, "f16": np.float16}[number_format])
    return HostTensor("test", number_format, values.shape, raw.reshape(-1).view(np.uint8))


def to_bf16_bits(values: np.ndarray) -> np.ndarray:
    """Round to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(values: np.ndarray, number_format: str) -> np.ndarray:
    """Values as the format holds them, in float32; "q8" has a scale for each last dimension."""
    if number_format == "q8":
        peak = np.abs(values).max(axis=-1, keepdims=True).astype(np.float32)
        codes = np.rint(values * (np.float32(127) / peak))
        return (codes * (peak / np.float32(127))).astype(np.float32)
    if number_format == "bf16":
        return (to_bf16_bits(values).astype(np.uint32) << 16).view(np.float32).reshape(values.shape)
    return values.astype({"f32": np.float32, "f16": np.float16}[number_format]).astype(np.float32)


def poison(memory: Memory) -> None:
    """Every number in it becomes NaN, in any of the formats."""
    ctypes.memset(memory.address, 0xFF, memory.num_bytes)


def ids(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


class RaggedStep:
    """Sequences with histories, laid over shuffled blocks: (already computed, new tokens) each."""

    def __init__(self, chunks: Sequence[tuple[int, int]], block_size: int, *, spare_blocks: int = 2, seed: int = 0):
        self.block_size = block_size
        lengths = [start + count for start, count in chunks]
        needed = [-(-length // block_size) for length in lengths]
        order = np.random.default_rng(seed).permutation(sum(needed) + spare_blocks)
        self.num_blocks = len(order)
        self.tables = np.full((len(chunks), max(needed) + 1), -1, np.int32)  # -1 past the end: must be ignored
        for r, count in enumerate(needed):
            self.tables[r, :count] = order[sum(needed[:r]) : sum(needed[:r]) + count]
        self.lengths = lengths

    def inputs(self, ranges: Sequence[tuple[int, int, int]], token_ids: np.ndarray) -> StepInputs:
        """Rows for (sequence, first position, end position) each, all of them with outputs."""
        positions = np.concatenate([np.arange(a, b) for _, a, b in ranges])
        rows = np.concatenate([np.full(b - a, r) for r, a, b in ranges])
        blocks = self.tables[rows, positions // self.block_size]
        counts = [b - a for _, a, b in ranges]
        return StepInputs(
            token_ids=ids(token_ids),
            positions=ids(positions),
            slots=ids(blocks * self.block_size + positions % self.block_size),
            query_starts=ids(np.concatenate([[0], np.cumsum(counts)])),
            seq_lens=ids([b for _, _, b in ranges]),
            block_tables=np.ascontiguousarray(self.tables[[r for r, _, _ in ranges]]),
            logit_rows=ids(np.arange(len(positions))),
        )


class OneOp:
    """Feeds rows of a table through `build` and returns what comes out, over poisoned buffers."""

    def __init__(
        self,
        device: NativeDevice,
        table: np.ndarray,
        build: Build,
        *,
        shape: KVShape | None = None,
        max_tokens: int = 64,
        max_logit_rows: int = 8,
    ) -> None:
        embedding = device.embedding(host(table))

        class Model:
            def hidden(self, ops: Any, ctx: ForwardContext) -> Any:
                return build(ops, ctx, ops.embed(ctx.token_ids, embedding))

            def logits(self, ops: Any, hidden: Any) -> Any:
                return ops.rms_norm(hidden, np.ones(hidden.width, np.float32), 1e-5)

        self.store = device.kv_store(shape or KVShape(1, 1, 4, 4, 64, "f32"))
        poison(self.store.memory)
        self.program = device.compile(
            Model(), self.store, max_tokens=max_tokens, max_rows=max_tokens, max_logit_rows=max_logit_rows
        )

    def run(self, inputs: StepInputs) -> np.ndarray:
        for memory in (*self.program._buffers, self.program._hidden, self.program._logits):
            poison(memory)
        out = self.program.run(inputs).copy()
        assert np.isnan(self.program._hidden_rows[len(out) :]).all(), "wrote rows that do not exist"
        return out

    def rows(self, token_ids: Sequence[int]) -> np.ndarray:
        """One sequence at positions 0 …"""
        step = RaggedStep([(0, len(token_ids))], self.store.shape.block_size, spare_blocks=0)
        return self.run(step.inputs([(0, 0, len(token_ids))], ids(token_ids)))


def reference_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    positions: np.ndarray,
    spec: AttentionSpec,
    *,
    number_format: str = "f32",
) -> np.ndarray:
    """q [n, heads, D] at positions; k, v [m, kv heads, D] at 0 … m - 1. float64; of a "bf16" store, scaled queries and
    weights (relative to a power of two) are rounded to bfloat16 too, of a "q8" store queries to 15 bits and a sign.
    """
    out = np.zeros(q.shape)
    group = spec.num_heads // spec.num_kv_heads
    log2_e = np.float32(np.log2(np.e))
    factor = np.float32(spec.scale) * (1 if spec.softcap else log2_e)
    scaled = q * np.float32(factor)
    if number_format == "bf16":
        scaled = rounded(scaled, "bf16")
    if number_format == "q8":
        unit = np.abs(scaled).max(axis=-1, keepdims=True) / np.float32(32767)
        scaled = np.rint(scaled / unit) * unit
    for i, position in enumerate(positions):
        first = max(0, position - spec.window + 1) if spec.window else 0
        for h in range(spec.num_heads):
            keys, values = (x[first : position + 1, h // group].astype(np.float64) for x in (k, v))
            scores = keys @ scaled[i, h].astype(np.float64)
            if spec.softcap:
                scores = spec.softcap * np.tanh(scores / spec.softcap) * log2_e
            weights = np.exp2(scores - np.ceil(scores.max()))
            if number_format == "bf16":
                weights = rounded(weights, "bf16").astype(np.float64)
            out[i, h] = weights @ values / weights.sum()
    return out
