"""A random Llama of four layers in memory, as a checkpoint: no files, no torch."""

from pathlib import Path

import numpy as np

from mini_vllm.kernels.tensors import HostTensor

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 211, 64, 96, 4, 4, 2, 16
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


class TinyCheckpoint:
    """`weights.Checkpoint`, of random values wide enough for lively outputs. `form`: f32, f16 or bf16."""

    path = Path("tiny")
    layout = "hf"
    tokenizer_metadata = None

    def __init__(self, form="f32", **changes):
        self.config = {**CONFIG, **changes}
        self.generation_config = {}
        self.form = form
        self._rng = np.random.default_rng(11)
        self._tensors = {}
        self._add("model.embed_tokens.weight", VOCAB, HIDDEN, scale=1.0)
        for layer in range(LAYERS):
            base = f"model.layers.{layer}."
            for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
                self._add(f"{base}self_attn.{name}_proj.weight", rows, HIDDEN, scale=0.25)
            self._add(f"{base}self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM, scale=0.25)
            for name in ("gate", "up"):
                self._add(f"{base}mlp.{name}_proj.weight", INTERMEDIATE, HIDDEN, scale=0.25)
            self._add(f"{base}mlp.down_proj.weight", HIDDEN, INTERMEDIATE, scale=0.25)
            for name in ("input_layernorm", "post_attention_layernorm"):
                self._add(f"{base}{name}.weight", HIDDEN, scale=0.5)
        self._add("model.norm.weight", HIDDEN, scale=0.5)

    def names(self):
        return frozenset(self._tensors)

    def get(self, name):
        return self._tensors[name]

    def close(self):
        """Nothing is open."""

    def _add(self, name, *shape, scale):
        values = (self._rng.normal(0, scale, shape) + (len(shape) == 1)).astype(np.float32)
        if self.form == "bf16":
            raw = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            raw = values.astype({"f32": np.float32, "f16": np.float16}[self.form])
        self._tensors[name] = HostTensor(name, self.form, shape, raw.reshape(-1).view(np.uint8))
