"""Gemma 3, its text models (2025): Gemma 2 with head norms instead of caps, and a rope of its own for local layers."""

from dataclasses import replace

from mini_vllm.models.configuration import FULL, SLIDING, Config, integer, layer_types, number, rope_spec, windows
from mini_vllm.models.gemma2 import gemma_like
from mini_vllm.models.spec import DecoderSpec

GLOBAL_THETA, LOCAL_THETA = 1e6, 1e4


def spec(config: Config) -> DecoderSpec:
    """From a `Gemma3TextConfig`: five local layers to a global one; rope scaling acts on global layers alone."""
    plain = gemma_like(config, theta=GLOBAL_THETA)
    every = integer(config, "sliding_window_pattern", 6)
    default = [SLIDING if (layer + 1) % every else FULL for layer in range(plain.num_layers)]
    kinds = layer_types(config, plain.num_layers, default)
    nested = config.get("rope_parameters")
    local = {
        "max_position_embeddings": plain.ropes[0].max_position,
        "rope_theta": number(config, "rope_local_base_freq", LOCAL_THETA),
        "rope_parameters": nested if isinstance(nested, dict) and SLIDING in nested else None,
    }
    ropes = {
        FULL: plain.ropes[0],
        SLIDING: rope_spec(local, head_dim=plain.head_dim, layer_type=SLIDING),
    }
    return replace(
        plain,
        qk_norm=True,
        windows=windows({"sliding_window": 4096, **config}, kinds),
        ropes=tuple(ropes[kind] for kind in kinds),
        logit_softcap=number(config, "final_logit_softcapping", 0.0),
    )
