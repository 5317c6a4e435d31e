"""Gemma 2 (2024): scaled embeddings, norms by 1 + w around each branch, soft caps, every other layer windowed."""

from dataclasses import replace

from mini_vllm.errors import UnsupportedModelError
from mini_vllm.models.configuration import FULL, SLIDING, Config, activation, flag, layer_types, number, windows
from mini_vllm.models.spec import DecoderSpec, llama_like


def spec(config: Config) -> DecoderSpec:
    """From a `Gemma2Config`."""
    plain = gemma_like(config)
    kinds = [FULL if layer % 2 else SLIDING for layer in range(plain.num_layers)]
    return replace(
        plain,
        windows=windows({"sliding_window": 4096, **config}, layer_types(config, plain.num_layers, kinds)),
        attention_softcap=number(config, "attn_logit_softcapping", 0.0 if "attn_logit_softcapping" in config else 50.0),
        logit_softcap=number(config, "final_logit_softcapping", 0.0 if "final_logit_softcapping" in config else 30.0),
    )


def gemma_like(config: Config, *, theta: float = 1e4) -> DecoderSpec:
    """What Gemma 2 and 3 share."""
    activation(config, "hidden_activation", "gelu_pytorch_tanh", ["gelu_pytorch_tanh"])
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModelError("use_bidirectional_attention is set: this is an encoder; run it with transformers")
    plain, bias = llama_like(config, head_dim=256, tied=True, theta=theta), flag(config, "attention_bias")
    return replace(
        plain,
        activation="gelu_tanh",
        qkv_bias=bias,
        output_bias=bias,
        post_norms=True,
        norm_offset=1.0,
        embed_scale=plain.hidden_size**0.5,
        attention_scale=number(config, "query_pre_attn_scalar", 256.0, positive=True) ** -0.5,
    )
