"""Random small models of every family, made with transformers, and what transformers says about a sequence.

`FAMILIES` maps a name to its config; `make_model` builds it with widened initialisation, `save_model` writes it to a
folder as safetensors (no tokenizer: token ids in, token ids out), `MemoryCheckpoint` is the same without a disk.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from mini_vllm.kernels.tensors import HostTensor

VOCAB = 131  # no multiple of anything
MAX_LEN = 256

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LAYERS_4 = {"num_hidden_layers": 4}
_HEAD_16 = {"head_dim": 16}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


def llama(**changes: Any) -> transformers.PreTrainedConfig:
    return transformers.LlamaConfig(**{**SIZES, **changes})


def longrope(original: int) -> dict[str, Any]:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [1.0 + 0.5 * i for i in range(8)],
        "factor": 4.0,
    }
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


def _alternating(layers: int) -> list[str]:
    return ["sliding_attention" if layer % 2 else "full_attention" for layer in range(layers)]


FAMILIES: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama": llama,
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "llama-mha": lambda: llama(num_key_value_heads=4),
    "llama-mqa-biased": lambda: llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "llama-head-dim": lambda: llama(head_dim=24),
    "llama-llama3": lambda: llama(rope_parameters=dict(_LLAMA3)),
    "llama-yarn": lambda: llama(rope_parameters=dict(_YARN)),
    "llama-yarn-mscale": lambda: llama(
        rope_parameters={**_YARN, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 16}
    ),
    "llama-linear": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
    "llama-dynamic": lambda: llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=24),
    "mistral-full": lambda: transformers.MistralConfig(**SIZES, sliding_window=None),
    "ministral": lambda: transformers.MinistralConfig(
        **SIZES, **_HEAD_16, sliding_window=24, layer_types=_alternating(2)
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **{**SIZES, **_LAYERS_4}, use_sliding_window=True, sliding_window=24, max_window_layers=2
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
    "qwen3-window": lambda: transformers.Qwen3Config(
        **SIZES,
        **_HEAD_16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=24,
        layer_types=_alternating(2),
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES,
        **_HEAD_16,
        sliding_window=24,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=0.3,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 3},
        **_HEAD_16,
        sliding_window=24,
        sliding_window_pattern=3,
        query_pre_attn_scalar=4,
    ),
    "gemma3-scaled": lambda: transformers.Gemma3TextConfig(
        **SIZES,
        **_HEAD_16,
        sliding_window=24,
        layer_types=_alternating(2),
        query_pre_attn_scalar=4,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "phi3": lambda: transformers.Phi3Config(**SIZES, sliding_window=24),
    "phi3-short": lambda: transformers.Phi3Config(**SIZES, **longrope(original=MAX_LEN)),
    "phi3-partial": lambda: transformers.Phi3Config(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    ),
    "gpt2": lambda: _gpt2(),
    "gpt2-untied": lambda: _gpt2(tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True, n_inner=80),
}


def _gpt2(**changes: Any) -> transformers.PreTrainedConfig:
    sizes = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": MAX_LEN}
    return transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0, **changes)


# Seeds whose greedy output varies most, where 0 is close to repeating itself.
_SEEDS = {"qwen3": 4, "qwen3-window": 1, "gemma2": 2, "gemma3": 2, "gemma3-scaled": 5}


@functools.cache
def make_model(name: str) -> transformers.PreTrainedModel:
    """The family's model in float32 with eager attention (the only kind that honours soft caps)."""
    return randomise(FAMILIES[name](), seed=_SEEDS.get(name, 0))


def randomise(config: transformers.PreTrainedConfig, *, seed: int = 0) -> transformers.PreTrainedModel:
    """A model of this config with weights wide enough that greedy decoding does not repeat one token."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    # Tied: small embeddings, or each token predicts itself. Learned positions as small as the tokens they are added to.
    small = 0.02 if config.tie_word_embeddings else 0.1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" in name or "wte" in name or "wpe" in name:
                parameter.normal_(std=small)
            elif parameter.dim() > 1:
                parameter.normal_(std=2.0 * min(parameter.shape) ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def save_model(model: transformers.PreTrainedModel, folder: Path, *, max_shard_size: str = "50GB") -> Path:
    """Write config.json, generation_config.json and safetensors; returns the folder."""
    model.save_pretrained(folder, safe_serialization=True, max_shard_size=max_shard_size)
    return folder


class MemoryCheckpoint:
    """The checkpoint that opening the saved model would give, from its state in memory."""

    layout = "hf"

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self.path = Path("/memory")
        self.config: dict[str, Any] = model.config.to_dict()
        tied = set(model.all_tied_weights_keys)
        self.tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def get(self, name: str) -> HostTensor:
        tensor = self.tensors[name]
        formats = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
        data = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
        return HostTensor(name=name, format=formats[tensor.dtype], shape=tuple(tensor.shape), data=data)


@dataclass(frozen=True)
class Continuation:
    """What an engine said: greedy tokens and the logits that each was chosen from."""

    token_ids: tuple[int, ...]  # [n]
    logits: np.ndarray  # [n, V]


def assert_equals_transformers(
    model: transformers.PreTrainedModel, prompt: tuple[int, ...], continuation: Continuation
) -> None:
    """Greedy tokens and the logits at each step are transformers'.

    One forward over prompt + continuation is enough: the model is causal, so if at every step transformers' argmax
    after the same tokens is our token, then by induction its greedy decoding would have produced ours.
    """
    expected = reference_logits(model, prompt, continuation.token_ids)
    assert tuple(expected.argmax(axis=-1).tolist()) == continuation.token_ids
    tolerance = 1e-4 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(continuation.logits, expected, rtol=0, atol=tolerance)
    if len(continuation.token_ids) >= 64:
        assert len(set(continuation.token_ids)) >= 10, "a reference that repeats itself proves nothing"


@functools.lru_cache(maxsize=64)
def reference_logits(
    model: transformers.PreTrainedModel, prompt: tuple[int, ...], token_ids: tuple[int, ...]
) -> np.ndarray:
    """transformers' logits that precede each of token_ids. [len(token_ids), V]"""
    with torch.inference_mode():
        output = model(torch.tensor([prompt + token_ids[:-1]]), use_cache=False)
    return output.logits[0, len(prompt) - 1 :].numpy()


def make_prompts(lengths: tuple[int, ...], *, seed: int = 1) -> list[tuple[int, ...]]:
    """Random prompts of these lengths, without special ids."""
    generator = np.random.default_rng(seed)
    return [tuple(generator.integers(3, VOCAB, size=length).tolist()) for length in lengths]


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Small products only lose by threads, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
