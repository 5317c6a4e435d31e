"""Qwen3 (Yang et al., 2025): Qwen2 with norms on query and key heads instead of biases."""

from dataclasses import replace

from mini_vllm.models.configuration import Config, activation, flag
from mini_vllm.models.qwen2 import upper_windows
from mini_vllm.models.spec import DecoderSpec, llama_like


def spec(config: Config) -> DecoderSpec:
    """From a `Qwen3Config`."""
    activation(config, "hidden_act", "silu", ["silu"])
    plain = llama_like(config, head_dim=128)
    bias = flag(config, "attention_bias")
    windows = upper_windows(config, plain.num_layers)
    return replace(plain, qk_norm=True, qkv_bias=bias, output_bias=bias, windows=windows)
