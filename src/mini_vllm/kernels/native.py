"""Device "native": our C++ library on the CPU. Needs NumPy and libmini_vllm.so only.

Weights stay in the number format of their file. Those in float32 and float16 (widened where they are used) are
multiplied by float32 activations; those in bfloat16 by activations rounded to bfloat16; those in Q8_0, Q4_0 and Q4_1
by activations rounded to int8 with a scale per row and group of 32. Attention reads K and V as they are stored; where
that is bfloat16, queries and softmax weights are rounded to it too, where it is int8, to 15 bits and a sign. All else
is float32, the residual too, and so are all sums but int8's products. Every result has the same bits whatever the
batch, the chunking and the threads.
"""

import os
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from mini_vllm.config import MAX_THREADS
from mini_vllm.errors import ConfigError, UnsupportedModelError
from mini_vllm.kernels.native_abi import FORMATS, STORE_FORMATS, bind_library
from mini_vllm.kernels.native_memory import (
    LinearWeight,
    NativeStore,
    PackedMatrix,
    RopeTables,
    screen_bytes,
    to_float32,
)
from mini_vllm.kernels.native_program import NativeProgram, Team
from mini_vllm.kernels.native_threads import default_threads
from mini_vllm.kernels.table import KVShape, Model
from mini_vllm.kernels.tensors import HostTensor

MAX_HEAD_DIM = 1024  # as in csrc/kernel_table.h


class NativeDevice:
    """See `kernels.table.Device`. `isa`: "avx512", "avx2" or "portable"; default $MINI_VLLM_ISA, else the best.

    "none" computes nothing: kernels return at once and logits stay zero. It shows what a step costs beside kernels.
    """

    name = "native"
    weight_formats = frozenset(FORMATS)
    store_dtypes = frozenset(STORE_FORMATS)

    def __init__(self, *, threads: int | None = None, isa: str | None = None) -> None:
        self._library = bind_library()
        names = self._library.mv_isa_names().decode().split()
        self.isa = (os.environ.get("MINI_VLLM_ISA") or names[0]) if isa is None else isa
        if self.isa not in (*names, "none"):
            raise ConfigError(
                f"isa is {self.isa!r:.50}, which cannot run here; choose one of {', '.join(names)}", param="isa"
            )
        count = default_threads() if threads is None else threads
        if not 1 <= count <= MAX_THREADS:
            raise ConfigError(f"threads is {count}; it must be from 1 to {MAX_THREADS}", param="threads")
        self._team = Team(self._library, count)

    @property
    def team(self) -> Team:
        """The compute threads, for others (the sampler) to share between steps."""
        return self._team

    def linear(self, parts: Sequence[HostTensor], bias: Sequence[HostTensor | None] | None = None) -> LinearWeight:
        """See `Device.linear`. Neighbouring parts of one format become one matrix."""
        biases = [None] * len(parts) if bias is None else list(bias)
        matrices = [
            PackedMatrix(self._library, [part for part, _ in run], _fuse_biases(run))
            for run in (list(run) for _, run in groupby(zip(parts, biases, strict=True), lambda pair: pair[0].format))
        ]
        return LinearWeight(tuple(matrices))

    def embedding(self, table: HostTensor) -> PackedMatrix:
        """See `Device.embedding`: one packed copy serves look-ups and the tied head."""
        return PackedMatrix(self._library, [table], None)

    def vector(self, tensor: HostTensor, offset: float = 0.0) -> npt.NDArray[np.float32]:
        """See `Device.vector`."""
        return np.ascontiguousarray(to_float32(tensor) + np.float32(offset))

    def rope(self, cos: npt.NDArray[np.float32], sin: npt.NDArray[np.float32]) -> RopeTables:
        """See `Device.rope`."""
        return RopeTables(np.ascontiguousarray(cos, np.float32), np.ascontiguousarray(sin, np.float32))

    def greedy_head_bytes(self, head_format: str, rows: int, cols: int) -> int:
        """See `Device.greedy_head_bytes`."""
        return screen_bytes(self._library, head_format, rows, cols)

    def kv_store(self, shape: KVShape) -> NativeStore:
        """See `Device.kv_store`. Memory is taken from the system as blocks are written."""
        if shape.head_dim > MAX_HEAD_DIM:
            raise UnsupportedModelError(
                f"head_dim is {shape.head_dim}; the native kernels hold at most {MAX_HEAD_DIM}; use --executor torch"
            )
        return NativeStore(self._library, shape)

    def compile(
        self, model: Model, store: NativeStore, *, max_tokens: int, max_rows: int, max_logit_rows: int
    ) -> NativeProgram:
        """See `Device.compile`."""
        limits = (max_tokens, max_rows, max_logit_rows)
        return NativeProgram(self._library, self._team, self.isa, model, store, limits)

    def describe(self) -> dict[str, str]:
        """See `Device.describe`."""
        return {
            "op_table": "native",
            "instruction_set": self.isa,
            "threads": str(self._team.threads),
            "weights": " ".join(sorted(self.weight_formats)),
            "compute": "float32; inputs of products in bfloat16 for bfloat16 weights, in int8 for quantised ones",
        }


def _fuse_biases(run: Sequence[tuple[HostTensor, HostTensor | None]]) -> npt.NDArray[np.float32] | None:
    """Biases of the parts of one matrix end to end, zeros where a part has none."""
    if all(own is None for _, own in run):
        return None
    return np.concatenate(
        [np.zeros(part.shape[0], np.float32) if own is None else to_float32(own) for part, own in run]
    )
