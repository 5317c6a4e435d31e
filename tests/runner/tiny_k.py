"""A random Llama whose matrices mix GGUF's K formats, as files called Q4_K_M do. In memory: no files, no torch."""

from pathlib import Path

import numpy as np
from runner.tiny import CONFIG, VOCAB

from mini_vllm import quantization
from mini_vllm.kernels.tensors import FORMATS, HostTensor

WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 256, 4, 2, 64, 2
# Which format each matrix has; v differs from q and k, which it is fused with.
MIXED = {
    "embed_tokens": "q6_k", "q_proj": "q4_k", "k_proj": "q4_k", "v_proj": "q6_k", "o_proj": "q5_k", "gate_proj": "q4_k",
    "up_proj": "q3_k", "down_proj": "q2_k",
}  # fmt: skip
# Where d and dmin are; how many times d the mean of the minima has to be worth for weights around zero.
_HALVES = {"q2_k": (80, 82, 1.5), "q3_k": (108,), "q4_k": (0, 2, 7.5), "q5_k": (0, 2, 15.5), "q6_k": (208,)}


def random_k_blocks(rng: np.random.Generator, name: str, form: str, shape: tuple[int, int], scale: float) -> HostTensor:
    """Random codes and small scales, with d such that the values' standard deviation is about `scale`."""
    elements, width = FORMATS[form]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // elements, width), dtype=np.uint8)

    def with_scale(d: float) -> HostTensor:
        at, *minimum = _HALVES[form]
        blocks[:, at : at + 2] = np.frombuffer(np.float16(d).tobytes(), np.uint8)
        if minimum:
            blocks[:, minimum[0] : minimum[0] + 2] = np.frombuffer(np.float16(d * minimum[1]).tobytes(), np.uint8)
        return HostTensor(name, form, shape, blocks.reshape(-1))

    spread = float(quantization.dequantize(with_scale(0.01)).std()) / 0.01
    return with_scale(scale / spread)


class TinyKCheckpoint:
    """`weights.Checkpoint`."""

    path = Path("tiny-k")
    layout = "hf"
    tokenizer_metadata = None

    def __init__(self, **changes):
        self.config = {
            **CONFIG, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, **changes,
        }  # fmt: skip
        self.generation_config = {}
        self._rng = np.random.default_rng(12)
        self._tensors = {}
        self._add("model.embed_tokens", VOCAB, 1.0)
        for layer in range(LAYERS):
            base = f"model.layers.{layer}."
            for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
                self._add(f"{base}self_attn.{name}_proj", rows, 0.12)
            self._add(f"{base}self_attn.o_proj", WIDTH, 0.12)
            for name in ("gate", "up", "down"):
                self._add(f"{base}mlp.{name}_proj", WIDTH, 0.12)
            for name in ("input_layernorm", "post_attention_layernorm"):
                self._add_norm(f"{base}{name}.weight")
        self._add_norm("model.norm.weight")

    def names(self):
        return frozenset(self._tensors)

    def get(self, name):
        return self._tensors[name]

    def close(self):
        """Nothing is open."""

    def _add(self, name, rows, scale):
        form = MIXED[name.rsplit(".", 1)[-1]]
        tensor = random_k_blocks(self._rng, f"{name}.weight", form, (rows, WIDTH), scale)
        self._tensors[tensor.name] = tensor

    def _add_norm(self, name):
        values = (self._rng.normal(0, 0.5, WIDTH) + 1).astype(np.float32)
        self._tensors[name] = HostTensor(name, "f32", (WIDTH,), values.view(np.uint8))
