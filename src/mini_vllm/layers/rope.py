"""Rotary position embedding: inverse frequencies and cos/sin tables, with every scaling that changes them.

A position p turns the pair (i, i + R/2) of a head by the angle p * inv_freq[i]. Scalings stretch inv_freq so that a
model reads further than it was trained for. Those that Hugging Face recomputes per batch (dynamic, longrope) are
fixed here by the maximum length, because a cached K must not depend on who else is in the batch.
Must not know: weights, models, op tables.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import ModelError

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """One rotation rule. Lengths are in tokens; `dim` is R, the rotated dimensions of a head."""

    dim: int
    theta: float = 10000.0
    kind: str = "default"  # a key of ROPE_KINDS
    max_position: int  # the config's max_position_embeddings
    original_max_position: int  # length of pre-training (equal to max_position unless the config says otherwise)
    factor: float = 1.0
    attention_factor: float | None = None  # multiplies cos and sin (yarn, longrope); None: the paper's formula
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn
    truncate: bool = True  # yarn: round the bounds of the ramp to whole dimensions
    short_factors: tuple[float, ...] = ()  # longrope, [R/2]
    long_factors: tuple[float, ...] = ()  # longrope, [R/2]
    factors: tuple[float, ...] = ()  # factors: divisors of inv_freq that a GGUF file carries itself, [R/2]


def rope_tables(spec: RopeSpec, *, max_len: int) -> tuple[Float32Array, Float32Array]:
    """cos and sin of positions 0 … max_len - 1, each [max_len, R/2].

    The angle is rounded to float32 before the cosine, as Hugging Face's modules do: at position 10,000 the rounding
    is larger than any other difference.
    """
    inv_freq, attention_factor = inverse_frequencies(spec, max_len=max_len)
    angles = np.arange(max_len, dtype=np.float32)[:, None] * inv_freq[None, :]
    scale = np.float32(attention_factor)
    return np.cos(angles) * scale, np.sin(angles) * scale


def inverse_frequencies(spec: RopeSpec, *, max_len: int) -> tuple[Float32Array, float]:
    """inv_freq [R/2] and the factor for cos and sin, for sequences of at most max_len tokens."""
    try:
        with np.errstate(all="ignore"):
            inv_freq, attention_factor = ROPE_KINDS[spec.kind](spec, max_len)
            inv_freq = inv_freq.astype(np.float32)
    except ArithmeticError as error:
        raise _bad_numbers(spec) from error
    if not (np.isfinite(inv_freq).all() and math.isfinite(attention_factor)):
        raise _bad_numbers(spec)
    return inv_freq, attention_factor


def _powers(theta: float, dim: int) -> Float32Array:
    """theta^(2i / R) for i in 0 … R/2 - 1, in float32."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers: Float32Array = np.power(np.float32(theta), exponents)
    return powers


def _default(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    return np.float32(1.0) / _powers(spec.theta, spec.dim), 1.0


def _factors(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    """A divisor per pair, given as numbers: how GGUF files carry Llama 3's scaling."""
    _check_count(spec.factors, spec)
    inv_freq, _ = _default(spec, max_len)
    divisors: Float32Array = np.asarray(spec.factors, dtype=np.float32)
    return inv_freq / divisors, 1.0


def _linear(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    """Position interpolation (Chen et al., 2023): positions divided by the factor."""
    return np.float32(1.0) / _powers(spec.theta, spec.dim) / np.float32(spec.factor), 1.0


def _dynamic(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    """NTK-aware scaling with the base for sequences of max_len, whatever the sequence."""
    length = max(max_len, spec.max_position)
    stretch = spec.factor * length / spec.max_position - (spec.factor - 1.0)
    theta = spec.theta * stretch ** (spec.dim / (spec.dim - 2))
    return np.float32(1.0) / _powers(theta, spec.dim), 1.0


def _llama3(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    """Llama 3.1: long wavelengths divided by the factor, short ones kept, a smooth blend between."""
    inv_freq, _ = _default(spec, max_len)
    turns = spec.original_max_position * inv_freq / np.float32(2 * math.pi)  # full turns within the training length
    blend = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0).astype(np.float32)
    return (1 - blend) * inv_freq / np.float32(spec.factor) + blend * inv_freq, 1.0


def _yarn(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    """YaRN (Peng et al., 2023): interpolate slow dimensions, keep fast ones, a linear ramp between."""

    def dimension_of(turns: float) -> float:
        return spec.dim * math.log(spec.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(spec.dim // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
    inv_freq, _ = _default(spec, max_len)
    return inv_freq / np.float32(spec.factor) * ramp + inv_freq * (1 - ramp), _yarn_attention_factor(spec)


def _yarn_attention_factor(spec: RopeSpec) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(spec.factor) + 1.0 if spec.factor > 1 else 1.0

    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return mscale(spec.mscale) / mscale(spec.mscale_all_dim)
    return mscale(1.0)


def _longrope(spec: RopeSpec, max_len: int) -> tuple[Float32Array, float]:
    """LongRoPE (Ding et al., 2024): a divisor per dimension; the long set if max_len exceeds the training length."""
    factors = spec.long_factors if max_len > spec.original_max_position else spec.short_factors
    _check_count(factors, spec)
    attention_factor = spec.attention_factor
    if attention_factor is None:
        grown = math.log(spec.factor) / math.log(spec.original_max_position) if spec.factor > 1 else 0.0
        attention_factor = math.sqrt(1 + grown)
    return np.float32(1.0) / (np.asarray(factors, dtype=np.float32) * _powers(spec.theta, spec.dim)), attention_factor


def _bad_numbers(spec: RopeSpec) -> ModelError:
    return ModelError(f"the rope parameters give frequencies that are not numbers: {spec}")


def _check_count(factors: tuple[float, ...], spec: RopeSpec) -> None:
    if len(factors) != spec.dim // 2 or not all(factor > 0 for factor in factors):
        raise ModelError(f"rope type {spec.kind!r} needs {spec.dim // 2} positive factors and has {len(factors)}")


ROPE_KINDS: dict[str, Callable[[RopeSpec, int], tuple[Float32Array, float]]] = {
    "default": _default,
    "factors": _factors,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
