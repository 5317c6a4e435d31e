"""Turn GGUF metadata into the keys of a Hugging Face config.json (and generation_config.json).

Knows the settings of each architecture that is read; knows nothing of where the file came from.

Rope scaling is given the way config.json writes it, in "rope_scaling": {"rope_type": "linear" | "yarn" | "longrope",
"factor": …}, with one kind of our own: files of Llama 3.1 and later carry their scaling as a tensor `rope_freqs.weight`
instead of parameters. It becomes {"rope_type": "factors", "factors": [f_0 … f_(R/2 - 1)]}, which means: inverse
frequency i, theta ** (-2i/R), is divided by f_i, and nothing else changes. The tensor is then not listed by name.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mini_vllm.errors import UnsupportedModelError, WeightsError
from mini_vllm.weights.gguf_metadata import Fields
from mini_vllm.weights.mapping import FAMILIES, Family

_Shapes = Mapping[str, tuple[int, ...]]  # GGUF tensor name → shape, outermost first


def read_family(path: Path, metadata: Mapping[str, Any]) -> tuple[str, Family]:
    """The file's architecture, or an error that lists those that are read."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise WeightsError(f"{path}: general.architecture is {architecture!r:.80}; it must be a name")
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"{path}: architecture {architecture[:40]!r} is not supported in GGUF files; "
            f"supported: {', '.join(FAMILIES)}"
        )
    return architecture, FAMILIES[architecture]


def read_config(
    path: Path, metadata: Mapping[str, Any], shapes: _Shapes, factors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """config.json's keys for this file.

    `shapes`: every tensor's shape by its GGUF name. `factors`: the values of the `rope_freqs`, `rope_factors_long` and
    `rope_factors_short` tensors, where the file has them.
    """
    architecture, family = read_family(path, metadata)
    fields = Fields(path, metadata, architecture)
    if fields.integer("expert_count", default=0, low=0):
        raise UnsupportedModelError(f"{path}: mixtures of experts are not supported; take a dense model")
    config: dict[str, Any] = {"architectures": [family.class_name], "model_type": family.model_type}
    config["vocab_size"] = _vocabulary(path, shapes)
    config["tie_word_embeddings"] = "output.weight" not in shapes
    if architecture == "gpt2":
        return config | _gpt2(fields, shapes)
    config |= _decoder(fields, shapes)
    config |= _rope(fields, config["head_dim"], factors)
    return config | _EXTRAS[architecture](fields, config, shapes)


def read_generation_config(metadata: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json's keys: every id that ends a turn, and the sampling defaults a file may carry."""
    found: dict[str, Any] = {}
    ends = [tokenizer.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    if ids := list(dict.fromkeys(token_id for token_id in ends if type(token_id) is int)):
        found["eos_token_id"] = ids
    if type(bos := tokenizer.get("tokenizer.ggml.bos_token_id")) is int:
        found["bos_token_id"] = bos
    for key, name in _SAMPLING.items():
        value = metadata.get("general.sampling." + key)
        if type(value) in (int, float):
            found[name] = value
    return found


_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def _vocabulary(path: Path, shapes: _Shapes) -> int:
    shape = shapes.get("token_embd.weight")
    if shape is None or len(shape) != 2:
        raise WeightsError(f"{path}: tensor 'token_embd.weight' is missing or not a matrix; the file is incomplete")
    return shape[0]


def _num_layers(fields: Fields, shapes: _Shapes) -> int:
    # Each layer has tensors, so the number of tensors bounds what a broken file can make us allocate.
    return fields.integer("block_count", high=max(1, len(shapes)))


def _heads(fields: Fields) -> tuple[int, int]:
    num_heads = fields.integer("attention.head_count", high=2**16)
    num_kv_heads = fields.integer("attention.head_count_kv", default=num_heads, high=2**16)
    if num_heads % num_kv_heads:
        raise WeightsError(f"{fields.path}: {num_heads} query heads cannot share {num_kv_heads} key-value heads")
    return num_heads, num_kv_heads


def _decoder(fields: Fields, shapes: _Shapes) -> dict[str, Any]:
    hidden_size = fields.integer("embedding_length")
    num_heads, num_kv_heads = _heads(fields)
    head_dim = fields.integer("attention.key_length", default=max(1, hidden_size // num_heads), high=2**16)
    if fields.integer("attention.value_length", default=head_dim) != head_dim:
        raise UnsupportedModelError(f"{fields.path}: keys and values of different sizes are not supported")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": _num_layers(fields, shapes),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": fields.integer("context_length"),
        "rms_norm_eps": _epsilon(fields, "attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
    }


def _epsilon(fields: Fields, key: str) -> float:
    # Written as float32; seven digits give back the decimal that was meant (1e-05, not 9.99999974e-06).
    return float(f"{fields.real(key):.7g}")


def _rope(fields: Fields, head_dim: int, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    rotated = fields.integer("rope.dimension_count", default=head_dim, high=head_dim)
    found: dict[str, Any] = {"rope_theta": fields.real("rope.freq_base", default=10000.0), "rope_scaling": None}
    if rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    if "rope_freqs" in factors:
        found["rope_scaling"] = {"rope_type": "factors", "factors": _half(fields, factors, "rope_freqs", rotated)}
    elif "rope_factors_long" in factors and "rope_factors_short" in factors:
        found |= _longrope(fields, factors, rotated)
    else:
        found["rope_scaling"] = _scaling(fields)
    return found


def _half(fields: Fields, factors: Mapping[str, list[float]], name: str, rotated: int) -> list[float]:
    values = factors[name]
    if len(values) != rotated // 2 or not all(0.0 < value < float("inf") for value in values):
        raise WeightsError(f"{fields.path}: tensor {name + '.weight'!r} must hold {rotated // 2} positive factors")
    return values


def _longrope(fields: Fields, factors: Mapping[str, list[float]], rotated: int) -> dict[str, Any]:
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": _half(fields, factors, "rope_factors_long", rotated),
        "short_factor": _half(fields, factors, "rope_factors_short", rotated),
    }
    if fields.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = fields.real("rope.scaling.attn_factor")
    original = fields.integer("rope.scaling.original_context_length", default=fields.integer("context_length"))
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _scaling(fields: Fields) -> dict[str, Any] | None:
    factor = fields.real("rope.scaling.factor", default=fields.real("rope.scale_linear", default=1.0))
    kind = fields.text("rope.scaling.type", default="none" if factor == 1.0 else "linear")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModelError(f"{fields.path}: rope scaling {kind[:40]!r} is not supported; linear and yarn are")
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    if fields.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length")
    if fields.has("rope.scaling.attn_factor"):
        # llama.cpp multiplies yarn's own factor by this one; config.json gives the product.
        scaling["attention_factor"] = fields.real("rope.scaling.attn_factor") * (1.0 + 0.1 * math.log(max(factor, 1.0)))
    for key in ("beta_fast", "beta_slow"):
        if fields.has(f"rope.scaling.yarn_{key}"):
            scaling[key] = fields.real(f"rope.scaling.yarn_{key}")
    return scaling


def _llama(fields: Fields, config: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    found: dict[str, Any] = {"attention_bias": "blk.0.attn_q.bias" in shapes, "mlp_bias": "blk.0.ffn_up.bias" in shapes}
    if fields.has("attention.sliding_window"):
        found |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
        found["sliding_window"] = fields.integer("attention.sliding_window")
    return found


def _qwen2(fields: Fields, config: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    return {"use_sliding_window": False}


def _qwen3(fields: Fields, config: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    return {"use_sliding_window": False, "attention_bias": "blk.0.attn_q.bias" in shapes}


def _phi3(fields: Fields, config: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    window = fields.integer("attention.sliding_window", default=0, low=0)
    found: dict[str, Any] = {"sliding_window": window or None}
    if "original_max_position_embeddings" not in config:
        found["original_max_position_embeddings"] = config["max_position_embeddings"]
    return found


def _gemma2(fields: Fields, config: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    return _gemma(fields, config, full_every=2, largest=46) | {
        "attn_logit_softcapping": fields.real("attn_logit_softcapping", default=50.0),
        "final_logit_softcapping": fields.real("final_logit_softcapping", default=30.0),
    }


def _gemma3(fields: Fields, config: dict[str, Any], shapes: _Shapes) -> dict[str, Any]:
    softcap = fields.real("final_logit_softcapping") if fields.has("final_logit_softcapping") else None
    return _gemma(fields, config, full_every=6, largest=62) | {
        "rope_theta": fields.real("rope.freq_base", default=1e6),
        "rope_local_base_freq": fields.real("rope.freq_base_swa", default=10000.0),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": softcap,
    }


def _gemma(fields: Fields, config: dict[str, Any], *, full_every: int, largest: int) -> dict[str, Any]:
    """What both share. The query scale is not in these files: the largest of each family divides by another size."""
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    scalar: float = config["hidden_size"] // config["num_attention_heads"] if num_layers == largest else head_dim
    if fields.has("attention.scale"):
        scalar = float(f"{fields.real('attention.scale') ** -2:.6g}")
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": fields.integer("attention.sliding_window", default=4096),
        "layer_types": _layer_types(fields, num_layers, full_every),
    }


def _layer_types(fields: Fields, num_layers: int, full_every: int) -> list[str]:
    pattern = fields.flags("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != num_layers:
            raise WeightsError(
                f"{fields.path}: attention.sliding_window_pattern has {len(pattern)} entries for {num_layers} layers"
            )
        sliding = pattern
    else:
        every = pattern or full_every
        sliding = [(layer + 1) % every != 0 for layer in range(num_layers)]
    return ["sliding_attention" if windowed else "full_attention" for windowed in sliding]


_EXTRAS: dict[str, Callable[[Fields, dict[str, Any], _Shapes], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}


def _gpt2(fields: Fields, shapes: _Shapes) -> dict[str, Any]:
    num_heads, _ = _heads(fields)
    context = fields.integer("context_length")
    return {
        "n_embd": fields.integer("embedding_length"),
        "n_inner": fields.integer("feed_forward_length"),
        "n_layer": _num_layers(fields, shapes),
        "n_head": num_heads,
        "n_positions": context,
        "n_ctx": context,
        "layer_norm_epsilon": _epsilon(fields, "attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }
