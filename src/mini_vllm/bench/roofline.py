"""What a machine allows for a model's shape: ideal overlap of arithmetic and memory, attention and prefill included.

    step of b streams   max(bytes read / bandwidth, operations / peak)
    bytes read          all weights once + K and V of every stream's history
    operations          2 per weight and token, in the weights' arithmetic; 4 per head dimension, query and key of
                        attention, in bfloat16 (float32 for float32 weights)
    prefill of t        operations alone; half of the t x t square is masked; one row of logits

Must not know how anything is measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.bench.limits import Limits
from mini_vllm.bench.workloads import Work
from mini_vllm.kernels.tensors import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a gated decoder with grouped-query attention; the output head may be the embedding."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Shape":
        """From config.json's keys."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            num_layers=config["num_hidden_layers"],
            hidden_size=hidden,
            intermediate_size=config["intermediate_size"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocab_size=config["vocab_size"],
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all products of all layers."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Weights of the product that gives the logits."""
        return self.hidden_size * self.vocab_size

    def attention_operations(self, num_pairs: float) -> float:
        """Of all layers, for so many pairs of a query and a key."""
        return 4.0 * self.num_layers * self.num_heads * self.head_dim * num_pairs

    def kv_bytes(self, num_tokens: float, element_bytes: int) -> float:
        """K and V of so many tokens."""
        return 2.0 * self.num_layers * self.num_kv_heads * self.head_dim * num_tokens * element_bytes


@dataclass(frozen=True, slots=True)
class Weights:
    """Number formats: of the layers' products, of the head, of K and V; keys of `FORMATS`."""

    layers: str
    head: str
    kv: str = "bf16"

    def step_bytes(self, shape: Shape) -> float:
        """All weights, read once."""
        return shape.layer_weights * _bytes_per_weight(self.layers) + shape.head_weights * _bytes_per_weight(self.head)

    @property
    def arithmetic(self) -> str:
        """The peak rate that bounds the products: "f32", "bf16" or "int8" (block formats)."""
        return {"f32": "f32", "f16": "f32", "bf16": "bf16"}.get(self.layers, "int8")


SMOLLM2 = Shape(
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
)
TINYLLAMA = Shape(
    num_layers=22,
    hidden_size=2048,
    intermediate_size=5632,
    num_heads=32,
    num_kv_heads=4,
    head_dim=64,
    vocab_size=32000,
)


def limit(work: Work, shape: Shape, weights: Weights, limits: Limits) -> float:
    """Most tokens per second of this work, in the unit of `Work.rate`."""
    if work.kind == "prompt":
        return work.prompt_len / prefill_seconds(work.prompt_len, shape, weights, limits)
    step = step_seconds(work.batch, average_history(work), shape=shape, weights=weights, limits=limits)
    if work.kind == "decode":
        return 1 / step
    prefill = work.batch * prefill_seconds(work.prompt_len, shape, weights, limits)
    return work.batch * work.new_tokens / (prefill + work.new_tokens * step)


def average_history(work: Work) -> float:
    """Tokens of a stream that a decode step of this work finds."""
    return work.prompt_len + work.new_tokens / 2


def step_bytes(batch: int, history: float, *, shape: Shape, weights: Weights) -> float:
    """What one step of `batch` streams with `history` tokens each reads: all weights, and all K and V."""
    return weights.step_bytes(shape) + shape.kv_bytes(batch * history, FORMATS[weights.kv][1])


def step_seconds(batch: int, history: float, *, shape: Shape, weights: Weights, limits: Limits) -> float:
    """Least time of one step of `batch` streams with `history` tokens each."""
    num_bytes = step_bytes(batch, history, shape=shape, weights=weights)
    products = 2.0 * batch * (shape.layer_weights + shape.head_weights) / limits.peaks[weights.arithmetic]
    attention = shape.attention_operations(batch * history) / limits.peaks[_attention_arithmetic(weights)]
    return max(num_bytes / limits.bandwidth_at(num_bytes), products + attention)


def prefill_seconds(num_tokens: int, shape: Shape, weights: Weights, limits: Limits) -> float:
    """Least time from a prompt to its first token."""
    products = 2.0 * (num_tokens * shape.layer_weights + shape.head_weights) / limits.peaks[weights.arithmetic]
    return products + shape.attention_operations(num_tokens**2 / 2) / limits.peaks[_attention_arithmetic(weights)]


def _attention_arithmetic(weights: Weights) -> str:
    return "f32" if weights.arithmetic == "f32" else "bf16"


def _bytes_per_weight(format: str) -> float:
    elements, num_bytes = FORMATS[format]
    return num_bytes / elements
