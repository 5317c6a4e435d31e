"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on q, k and v, and windows on the upper layers if asked."""

from dataclasses import replace

from mini_vllm.models.configuration import FULL, SLIDING, Config, activation, flag, layer_types, number, windows
from mini_vllm.models.spec import DecoderSpec, llama_like


def spec(config: Config) -> DecoderSpec:
    """From a `Qwen2Config`."""
    activation(config, "hidden_act", "silu", ["silu"])
    plain = llama_like(config)
    return replace(plain, qkv_bias=True, windows=upper_windows(config, plain.num_layers))


def upper_windows(config: Config, num_layers: int) -> tuple[int, ...]:
    """Windows per layer: none without use_sliding_window, else as layer_types or from max_window_layers upward."""
    if not flag(config, "use_sliding_window"):
        return (0,) * num_layers
    first = number(config, "max_window_layers", 28)
    kinds = [SLIDING if layer >= first else FULL for layer in range(num_layers)]
    return windows(config, layer_types(config, num_layers, kinds))
