"""Phi-3 and Phi-3.5 mini (Abdin et al., 2024): Llama whose file holds fused products; LongRoPE for long contexts."""

from dataclasses import replace
from typing import Any

from mini_vllm.models.configuration import SLIDING, Config, activation, mapping, windows
from mini_vllm.models.spec import DecoderSpec, llama_like


def spec(config: Config) -> DecoderSpec:
    """From a `Phi3Config`."""
    activation(config, "hidden_act", "silu", ["silu"])
    plain = llama_like(longrope_by_its_name(config), norm_eps=1e-5)
    return replace(plain, fused_projections=True, windows=windows(config, [SLIDING] * plain.num_layers))


def longrope_by_its_name(config: Config) -> dict[str, Any]:
    """The config with rope types "su" and "yarn" called longrope: the first Phi-3 files used those words for it."""
    renamed = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, **config}
    for key in ("rope_scaling", "rope_parameters"):
        rope = mapping(config, key)
        if (rope.get("rope_type") or rope.get("type")) in ("su", "yarn"):
            renamed[key] = {**rope, "rope_type": "longrope"}
    return renamed
