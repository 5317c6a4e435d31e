"""Reading a config.json: numbers with a range, rope rules, layer types. Hugging Face's keys, old and new spellings.

A config comes from a stranger's file, so every value is checked and an error names the key. Must not know: weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.errors import ModelError, UnsupportedModelError
from mini_vllm.layers import RopeSpec
from mini_vllm.layers.rope import ROPE_KINDS

Config = Mapping[str, Any]

FULL, SLIDING = "full_attention", "sliding_attention"


def integer(config: Config, key: str, default: int | None = None, *, high: int = 2**31) -> int:
    """An int in 1 … high; a missing or null key takes the default, and without one it is an error."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= high:
        raise ModelError(f"config.json has {key} = {value!r:.80}; it must be a whole number from 1 to {high}")
    return value


def number(config: Config, key: str, default: float, *, positive: bool = False) -> float:
    """A finite number ≥ 0 (> 0 if positive); a missing or null key takes the default."""
    value = config.get(key)
    value = default if value is None else value
    if not _is_number(value) or value < 0 or (positive and value == 0):
        bound = "above 0" if positive else "that is not negative"
        raise ModelError(f"config.json has {key} = {value!r:.80}; it must be a number {bound}")
    return float(value)


def numbers(config: Config, key: str) -> tuple[float, ...]:
    """A list of finite numbers; empty where missing or null."""
    values = config.get(key) or []
    if not isinstance(values, list | tuple) or not all(map(_is_number, values)):
        raise ModelError(f"config.json has {key} = {values!r:.80}; it must be a list of numbers")
    return tuple(map(float, values))


def mapping(config: Config, key: str) -> Config:
    """A JSON object; empty where missing or null."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise ModelError(f"config.json has {key} = {value!r:.80}; it must be an object")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def flag(config: Config, key: str, *, default: bool = False) -> bool:
    """A truth value; a missing or null key takes the default."""
    value = config.get(key)
    return default if value is None else bool(value)


def activation(config: Config, key: str, default: str, accepted: Sequence[str]) -> str:
    """The name of the activation function; one that this engine lacks is refused."""
    name = str(config.get(key) or default)
    if name not in accepted:
        raise UnsupportedModelError(
            f"{key} is {name!r}, which the native {config.get('model_type')} does not compute "
            f"(it has {', '.join(accepted)}); --executor hf runs it"
        )
    return name


def layer_types(config: Config, num_layers: int, default: Sequence[str]) -> tuple[str, ...]:
    """`full_attention` or `sliding_attention` for each layer; other kinds are refused."""
    kinds = config.get("layer_types") or default
    if not isinstance(kinds, Sequence) or len(kinds) != num_layers:
        raise ModelError(
            f"config.json has layer_types = {kinds!r:.80}; it must list a type for each of {num_layers} layers"
        )
    if unknown := {str(kind) for kind in kinds} - {FULL, SLIDING}:
        raise UnsupportedModelError(
            f"layer_types has {', '.join(sorted(unknown))}; only {FULL} and {SLIDING} layers run here; try transformers"
        )
    return tuple(kinds)


def windows(config: Config, kinds: Sequence[str]) -> tuple[int, ...]:
    """The window of each layer in tokens; 0 for full attention."""
    if config.get("sliding_window") is None:
        return (0,) * len(kinds)
    window = integer(config, "sliding_window")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def rope_spec(config: Config, *, head_dim: int, layer_type: str = FULL, theta: float = 10000.0) -> RopeSpec:
    """The rotation rule of layers of one type, from `rope_parameters` (new) or `rope_scaling` + `rope_theta` (old)."""
    raw = mapping(config, "rope_scaling") or mapping(config, "rope_parameters")
    raw = mapping(raw, layer_type) if {FULL, SLIDING} & set(raw) else raw
    kind = str(raw.get("rope_type") or raw.get("type") or "default")
    if kind not in ROPE_KINDS:
        raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported: {', '.join(sorted(ROPE_KINDS))}")
    max_position = integer(config, "max_position_embeddings", 2048)
    original = integer(raw, "original_max_position_embeddings", max_position)
    original = integer(config, "original_max_position_embeddings", original)
    partial = number(raw, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    optional = {key: number(raw, key, 0.0) for key in _OPTIONAL_NUMBERS if raw.get(key) is not None}
    return RopeSpec(
        dim=_rotated(head_dim, partial),
        theta=number(raw, "rope_theta", number(config, "rope_theta", theta), positive=True),
        kind=kind,
        max_position=max_position,
        original_max_position=original,
        factor=number(raw, "factor", max_position / original, positive=True),
        truncate=flag(raw, "truncate", default=True),
        short_factors=numbers(raw, "short_factor"),
        long_factors=numbers(raw, "long_factor"),
        factors=numbers(raw, "factors"),
        **optional,
    )


_OPTIONAL_NUMBERS = (
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


def _rotated(head_dim: int, partial: float) -> int:
    dim = int(head_dim * partial)
    if dim < 2 or dim % 2 or dim > head_dim:
        raise UnsupportedModelError(f"{dim} of {head_dim} head dimensions are rotated; it must be an even number")
    return dim
