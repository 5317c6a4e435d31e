"""Llama 1 to 3, TinyLlama, SmolLM2 (Touvron et al., 2023): the plain decoder, biases where the config says so."""

from dataclasses import replace

from mini_vllm.models.configuration import Config, activation, flag
from mini_vllm.models.spec import DecoderSpec, llama_like


def spec(config: Config) -> DecoderSpec:
    """From a `LlamaConfig`."""
    activation(config, "hidden_act", "silu", ["silu"])
    bias = flag(config, "attention_bias")
    return replace(llama_like(config), qkv_bias=bias, output_bias=bias, mlp_bias=flag(config, "mlp_bias"))
