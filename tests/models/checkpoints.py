"""Checkpoints in memory whose tensors are NumPy arrays of zeros: enough for names and shapes."""

from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.kernels.tensors import HostTensor


class ZeroCheckpoint:
    """`shapes` name → shape, all float32 zeros."""

    layout = "hf"
    path = Path("some/folder")

    def __init__(self, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
        self.config = config
        self.shapes = shapes

    def names(self) -> frozenset[str]:
        return frozenset(self.shapes)

    def get(self, name: str) -> HostTensor:
        shape = self.shapes[name]
        return HostTensor(name, "f32", shape, np.zeros(int(np.prod(shape)) * 4, dtype=np.uint8))


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        **changes,
    }


def llama_shapes() -> dict[str, tuple[int, ...]]:
    shapes = {"model.embed_tokens.weight": (50, 32), "model.norm.weight": (32,), "lm_head.weight": (50, 32)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (32,),
            f"{prefix}.post_attention_layernorm.weight": (32,),
            f"{prefix}.self_attn.q_proj.weight": (32, 32),
            f"{prefix}.self_attn.k_proj.weight": (16, 32),
            f"{prefix}.self_attn.v_proj.weight": (16, 32),
            f"{prefix}.self_attn.o_proj.weight": (32, 32),
            f"{prefix}.mlp.gate_proj.weight": (48, 32),
            f"{prefix}.mlp.up_proj.weight": (48, 32),
            f"{prefix}.mlp.down_proj.weight": (32, 48),
        }
    return shapes
