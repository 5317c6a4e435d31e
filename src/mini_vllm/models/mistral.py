"""Mistral and Ministral (Jiang et al., 2023): Llama whose layers may see only the last `sliding_window` tokens."""

from dataclasses import replace

from mini_vllm.models.configuration import SLIDING, Config, activation, layer_types, windows
from mini_vllm.models.spec import DecoderSpec, llama_like


def spec(config: Config) -> DecoderSpec:
    """From a `MistralConfig` or `MinistralConfig`; the window holds everywhere unless layer_types say otherwise."""
    activation(config, "hidden_act", "silu", ["silu"])
    plain = llama_like(config)
    kinds = layer_types(config, plain.num_layers, [SLIDING] * plain.num_layers)
    return replace(plain, windows=windows(config, kinds))
