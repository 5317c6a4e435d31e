"""Which architectures run natively, and what to say about the others. Must not know: weights, op tables.

To add a Llama-like model: a module with `spec(config)`, a line in `_FAMILIES`, a row in tests/parity.
"""

from collections.abc import Callable
from typing import Any

from mini_vllm.errors import INSTALL_TORCH, ModelError, UnsupportedModelError
from mini_vllm.models import gemma2, gemma3, gpt2, llama, mistral, phi3, qwen2, qwen3
from mini_vllm.models.configuration import Config, mapping
from mini_vllm.models.spec import ModelInfo

_FAMILIES: dict[str, Callable[[Config], Any]] = {
    "gemma2": gemma2.spec,
    "gemma3_text": gemma3.spec,
    "gpt2": gpt2.spec,
    "llama": llama.spec,
    "ministral": mistral.spec,
    "mistral": mistral.spec,
    "phi3": phi3.spec,
    "qwen2": qwen2.spec,
    "qwen3": qwen3.spec,
}

NOT_NATIVE = "architecture_not_native"  # the code of an error that the fallback may still turn into success

_RECURRENT = (
    "mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "recurrent_gemma", "jamba", "zamba", "zamba2",
    "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "lfm2", "lfm2_moe", "qwen3_next", "xlstm", "minimax",
    "kimi_linear", "plamo2", "olmo_hybrid", "qwen3_5_text", "qwen3_5_moe_text",
)  # fmt: skip


def native_architectures() -> tuple[str, ...]:
    """The model types with a native implementation."""
    return tuple(sorted(_FAMILIES))


def model_spec(config: Config) -> Any:
    """The family's spec of this config; `UnsupportedModelError` by name, with what would run it."""
    refuse_impossible(config)
    model_type = config["model_type"]
    if model_type not in _FAMILIES:
        raise UnsupportedModelError(
            f"{model_type!r} has no native implementation (native: {', '.join(native_architectures())}); "
            f"try --executor hf, which needs transformers: {INSTALL_TORCH}",
            code=NOT_NATIVE,
        )
    return _FAMILIES[model_type](config)


def model_info(config: Config) -> ModelInfo:
    """Shapes and limits of a native model, from its config alone."""
    info: ModelInfo = model_spec(config).info
    return info


def refuse_impossible(config: Config) -> None:
    """Raise for what neither the native path nor the fallback can run."""
    if "peft_type" in config:
        raise UnsupportedModelError(
            f"this is a {config['peft_type']} adapter for {config.get('base_model_name_or_path')!r}, not a whole "
            "model; merge it into its base model with PEFT's merge_and_unload, or run it with vLLM"
        )
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError("config.json does not say its model_type; is this the folder of a language model?")
    _refuse_quantised(config)
    if model_type in _RECURRENT:
        raise UnsupportedModelError(
            f"{model_type!r} keeps a recurrent or convolutional state, and this engine only a KV cache; "
            "run it with transformers, vLLM or llama.cpp"
        )
    if any(f"{sense}_config" in config for sense in ("vision", "audio", "speech_encoder")):
        raise UnsupportedModelError(
            f"{model_type!r} takes images or sound, and this engine text only; run it with transformers or vLLM, "
            "or export its language model alone"
        )
    if config.get("is_encoder_decoder"):
        raise UnsupportedModelError(
            f"{model_type!r} has an encoder, and this engine runs decoders only; run it with transformers"
        )


def _refuse_quantised(config: Config) -> None:
    if settings := mapping(config, "quantization_config") or mapping(config, "compression_config"):
        method = settings.get("quant_method") or "an unnamed method"
        raise UnsupportedModelError(
            f"the weights are quantised with {method}, which is not supported; take the model's unquantised or GGUF "
            "version, or run this one with vLLM"
        )
