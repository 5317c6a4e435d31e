"""Parts that layers need before any op runs: rotary position tables. NumPy only; no op table, no weights."""

from mini_vllm.layers.rope import RopeSpec, inverse_frequencies, rope_tables

__all__ = ["RopeSpec", "inverse_frequencies", "rope_tables"]
