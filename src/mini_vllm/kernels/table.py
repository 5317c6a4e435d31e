"""The op table: the whole vocabulary in which a model is written, and what an implementation must offer.

A model is a plain function over these ops and nothing else. The native table records the calls once into a flat
program that our library replays for any number of tokens; the torch table computes at once. Nothing here imports torch.

    T = tokens in the step, H = hidden size, D = head size, V = vocabulary
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mini_vllm.kernels.inputs import StepInputs, Succession
from mini_vllm.kernels.tensors import HostTensor

Tensor = Any  # an activation [rows, width], float32; opaque to models
Weight = Any  # a loaded parameter; opaque to models
KVStore = Any  # K and V of every layer; opaque outside its op table


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Shape and rules of one layer's attention."""

    layer: int  # which K and V of the store
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # usually head_dim ** -0.5
    window: int = 0  # 0: full; w: position q sees k with q - w < k <= q
    softcap: float = 0.0  # 0: none; c: scores become c * tanh(score / c)


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a KV store must hold."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int
    dtype: str  # "f32", "f16", "bf16", or "q8": int8 with a float32 scale per token and head

    @property
    def bytes_per_block(self) -> int:
        """K and V of all layers for one block."""
        element = {"f32": 4, "q8": 1}.get(self.dtype, 2)
        scale = 4 if self.dtype == "q8" else 0
        return 2 * self.num_layers * self.num_kv_heads * self.block_size * (self.head_dim * element + scale)


class OpTable(Protocol):
    """The ops a model may call. Activations are float32 [rows, width]; the last argument group is shapes and rules."""

    # embedding and residual
    def embed(self, token_ids: Tensor, weight: Weight, *, scale: float = 1.0) -> Tensor:
        """Rows of the table, times scale (rounded to the weight's own number format when that is 16 bits). [T, H]"""

    def embed_positions(self, positions: Tensor, weight: Weight) -> Tensor:
        """Learned position embeddings (GPT-2). [T, H]"""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""

    # norms
    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        """x / sqrt(mean(x², last) + eps) * weight."""

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight, eps: float) -> Tensor:
        """(x - mean) / sqrt(var + eps) * weight + bias."""

    def qk_norm(self, qkv: Tensor, q_weight: Weight, k_weight: Weight, eps: float, spec: AttentionSpec) -> Tensor:
        """RMS norm of each query and key head of a fused row [q heads | k heads | v heads] (Qwen3, Gemma 3)."""

    # products
    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        """x W^T (+ bias). The weight may be several matrices fused along their rows."""

    # attention
    def rope_store(self, qkv: Tensor, rope: Weight | None, positions: Tensor, spec: AttentionSpec) -> Tensor:
        """Rotate q and k of a fused row (rope None: leave them), write k and v to the store, return q. [T, heads*D]

        Rotation pairs dimension i with i + R/2 (Hugging Face's half-split order), R = rotated dims ≤ D.
        """

    def attend(self, q: Tensor, spec: AttentionSpec) -> Tensor:
        """Softmax attention of each row over its own sequence's history in the store, read in place. [T, heads*D]"""

    # activations
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(left half) * right half."""

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """gelu_tanh(left half) * right half."""

    def gelu(self, x: Tensor) -> Tensor:
        """The tanh form of gelu (GPT-2's gelu_new)."""

    # output
    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """The rows that need an output. [L, width]"""

    def logits(self, x: Tensor, weight: Weight, softcap: float = 0.0) -> Tensor:
        """x W^T in float32, soft-capped. [L, V]"""


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What varies from step to step, as op arguments: opaque handles, or real tensors in the torch table."""

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor


class Model(Protocol):
    """A model written over the op table. Pure: all state is in weights and the KV store."""

    def hidden(self, ops: OpTable, ctx: ForwardContext) -> Tensor:
        """Final hidden states (after the last norm) of ctx.logit_rows. [L, H]"""

    def logits(self, ops: OpTable, hidden: Tensor) -> Tensor:
        """[L, V]"""


class Program(Protocol):
    """A model bound to weights and a KV store, ready to run steps. Not thread-safe: one step at a time."""

    def run(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute the step; return the hidden rows [L, H] of inputs.logit_rows. Valid until the next run."""

    def logits(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Logits [stop - start, V], C-contiguous, of hidden rows start … stop of the last run.

        At most `max_logit_rows` rows at a time. Valid until the next call of run or logits.
        """

    @property
    def max_logit_rows(self) -> int:
        """How many rows one call of logits may ask for."""

    def progress(self) -> int:
        """A number that changes with every op, or every layer, of a running step. May be called from any thread."""


@runtime_checkable
class EagerProgram(Program, Protocol):
    """A program that can work while its caller does something else."""

    def begin(self, inputs: StepInputs) -> bool:
        """Start on the step that the next run is likely to ask for, and return. False: nothing was started.

        Until `run` of the same object, which takes what has been done, or `drop`, its arrays must not change, and
        hidden rows and logits of the last run are not valid.
        """

    def follow(self, inputs: StepInputs, succession: Succession) -> tuple[list[int], bool]:
        """`run` a decode step whose sequences all take their largest logit (inputs.greedy_limit > 0; at most
        max_logit_rows of them), choose those tokens [R], and begin the next step where all sequences go on.

        Also tells whether that was begun: then the arrays of `inputs` have moved on to it by one position, with the
        tokens. A token is -1, and nothing begun, where no logit of a row is a number. What was begun before counts as
        for `run`.
        """

    def drop(self) -> None:
        """Give up the step that was begun, if there is one. K and V that it has stored by then stay."""


class Device(Protocol):
    """One implementation of the op table: makes weights, KV stores and programs. Registered in kernels.registry."""

    name: str  # "native", "torch"
    weight_formats: frozenset[str]  # HostTensor formats it keeps as they are; the loader converts others to f32
    store_dtypes: frozenset[str]  # KV number formats it can hold

    def linear(self, parts: Sequence[HostTensor], bias: Sequence[HostTensor | None] | None = None) -> Weight:
        """A product's weight: parts [N_i, K] fused along rows to [sum N_i, K], with an optional bias per part."""

    def embedding(self, table: HostTensor) -> Weight:
        """A table [V, H] usable both by embed and, when tied, by logits."""

    def vector(self, tensor: HostTensor, offset: float = 0.0) -> Weight:
        """A norm weight or bias [H], in float32, plus offset (Gemma stores w - 1)."""

    def rope(self, cos: npt.NDArray[np.float32], sin: npt.NDArray[np.float32]) -> Weight:
        """Tables [max positions, R/2]."""

    def greedy_head_bytes(self, head_format: str, rows: int, cols: int) -> int:
        """Memory that the first greedy decode step takes, and keeps, for a second copy of an output head [rows, cols]
        of this number format, without bias and soft cap; 0: it makes none.
        """

    def kv_store(self, shape: KVShape) -> KVStore:
        """Uninitialised K and V."""

    def compile(self, model: Model, store: KVStore, *, max_tokens: int, max_rows: int, max_logit_rows: int) -> Program:
        """Bind. max_tokens, max_rows: largest T and R of a step."""

    def describe(self) -> dict[str, str]:
        """Which instruction set, threads and number formats run, for `inspect` and `/stats`."""


DeviceFactory = Callable[..., Device]
