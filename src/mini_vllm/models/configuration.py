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


def integer(config: Config, key: str, default: int | None = None) -> int:
    """A positive int; a missing key takes the default, and without one it is an error."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ModelError(f"config.json has {key} = {value!r}; it must be a positive whole number")
    return value


def number(config: Config, key: str, default: float) -> float:
    """A finite number ≥ 0; a missing or null key takes the default."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ModelError(f"config.json has {key} = {value!r}; it must be a number that is not negative")
    return float(value)


def flag(config: Config, key: str, *, default: bool = False) -> bool:
    """A truth value; a missing or null key takes the default."""
    value = config.get(key)
    return default if value is None else bool(value)


def activation(config: Config, key: str, default: str, accepted: Sequence[str]) -> str:
    """The name of the activation function; one that this engine lacks is refused."""
    name = config.get(key) or default
    if name not in accepted:
        raise UnsupportedModelError(
            f"{key} is {name!r}, which the native {config.get('model_type')} does not compute "
            f"(it has {', '.join(accepted)}); --executor hf runs it"
        )
    return str(name)


def layer_types(config: Config, num_layers: int, default: Sequence[str]) -> tuple[str, ...]:
    """`full_attention` or `sliding_attention` for each layer; other kinds are refused."""
    kinds = tuple(config.get("layer_types") or default)
    if len(kinds) != num_layers:
        raise ModelError(f"config.json has {len(kinds)} layer_types for {num_layers} layers")
    if unknown := set(kinds) - {FULL, SLIDING}:
        raise UnsupportedModelError(
            f"layer_types has {sorted(map(str, unknown))}; only {FULL} and {SLIDING} layers run here; try transformers"
        )
    return kinds


def windows(config: Config, kinds: Sequence[str]) -> tuple[int, ...]:
    """The window of each layer in tokens; 0 for full attention."""
    if config.get("sliding_window") is None:
        return (0,) * len(kinds)
    window = integer(config, "sliding_window")
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def rope_spec(config: Config, *, head_dim: int, layer_type: str = FULL, theta: float = 10000.0) -> RopeSpec:
    """The rotation rule of layers of one type, from `rope_parameters` (new) or `rope_scaling` + `rope_theta` (old)."""
    raw = config.get("rope_scaling") or config.get("rope_parameters") or {}
    raw = raw.get(layer_type) or {} if {FULL, SLIDING} & set(raw) else raw
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported: {', '.join(sorted(ROPE_KINDS))}")
    max_position = integer(config, "max_position_embeddings", 2048)
    original = integer(raw, "original_max_position_embeddings", max_position)
    original = integer(config, "original_max_position_embeddings", original)
    partial = number(raw, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    optional = {key: float(raw[key]) for key in _OPTIONAL_NUMBERS if raw.get(key) is not None}
    return RopeSpec(
        dim=_rotated(head_dim, partial),
        theta=number(raw, "rope_theta", number(config, "rope_theta", theta)),
        kind=kind,
        max_position=max_position,
        original_max_position=original,
        factor=number(raw, "factor", max_position / original),
        truncate=flag(raw, "truncate", default=True),
        short_factors=tuple(raw.get("short_factor") or ()),
        long_factors=tuple(raw.get("long_factor") or ()),
        factors=tuple(raw.get("factors") or ()),
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
