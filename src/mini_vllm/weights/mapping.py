"""What each GGUF architecture calls its tensors, and how its contents differ from Hugging Face's.

Names and numbers only: no file is opened here. To add an architecture: a `Family` here, its settings in `gguf_config`.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from mini_vllm.errors import WeightsError
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.quantization import dequantize

_DECODER_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_DECODER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _DECODER_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT2_TENSORS = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_GPT2_LAYER = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d{1,9})\.(\w+)\.(weight|bias)", re.ASCII)
_OTHER_NAME = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture maps to the Hugging Face model type of the same weights."""

    model_type: str
    class_name: str  # of transformers, as in config.json's "architectures"
    tensors: dict[str, str] = field(default_factory=lambda: _DECODER_TENSORS)
    layer: dict[str, str] = field(default_factory=lambda: _DECODER_LAYER)
    layer_prefix: str = "model.layers"
    interleaved_heads: bool = False  # q and k rows lie in the pair order of llama.cpp's rope
    norms_plus_one: bool = False  # norm weights hold 1 + w where Hugging Face holds w

    def hf_name(self, name: str) -> str:
        """The Hugging Face name; a tensor that this family does not have keeps its own, to be refused by that."""
        if match := _LAYER_NAME.fullmatch(name):
            index, part, kind = match.groups()
            return f"{self.layer_prefix}.{int(index)}.{self.layer[part]}.{kind}" if part in self.layer else name
        if match := _OTHER_NAME.fullmatch(name):
            part, kind = match.groups()
            return f"{self.tensors[part]}.{kind}" if part in self.tensors else name
        return name

    def hf_content(self, tensor: HostTensor, *, num_heads: int, num_kv_heads: int) -> HostTensor:
        """The tensor (under its Hugging Face name) with Hugging Face's contents; a view where nothing differs."""
        if self.interleaved_heads and ".q_proj." in tensor.name:
            return split_halves(tensor, num_heads)
        if self.interleaved_heads and ".k_proj." in tensor.name:
            return split_halves(tensor, num_kv_heads)
        if self.norms_plus_one and tensor.name.endswith("norm.weight"):
            return _minus_one(tensor)
        return tensor


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", interleaved_heads=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM"),
    "gemma2": Family("gemma2", "Gemma2ForCausalLM", layer=_GEMMA_LAYER, norms_plus_one=True),
    "gemma3": Family("gemma3_text", "Gemma3ForCausalLM", layer=_GEMMA_LAYER, norms_plus_one=True),
    "phi3": Family("phi3", "Phi3ForCausalLM", layer=_DECODER_LAYER | {"ffn_up": "mlp.gate_up_proj"}),
    "gpt2": Family("gpt2", "GPT2LMHeadModel", tensors=_GPT2_TENSORS, layer=_GPT2_LAYER, layer_prefix="transformer.h"),
}


def split_halves(tensor: HostTensor, num_heads: int) -> HostTensor:
    """Undo llama.cpp's row order: within each head, rows (0, D/2, 1, D/2 + 1, …) go back to 0, 1, 2, …

    Whole rows move, so quantised blocks stay as they are. [heads*D, K] or [heads*D]
    """
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        raise WeightsError(
            f"tensor {tensor.name!r} has {rows} rows, which {num_heads} heads of an even size cannot share"
        )
    pairs = tensor.data.reshape(num_heads, rows // num_heads // 2, 2, -1)
    return HostTensor(tensor.name, tensor.format, tensor.shape, np.swapaxes(pairs, 1, 2).reshape(-1))


def _minus_one(tensor: HostTensor) -> HostTensor:
    values = dequantize(tensor)
    values -= 1.0
    return HostTensor(tensor.name, "f32", tensor.shape, values.reshape(-1).view(np.uint8))
