"""Tiny models of every architecture, written as a Hugging Face folder and as a GGUF file with the `gguf` package.

Names in the GGUF file come from the `gguf` package's own tables, contents from the rules of llama.cpp's converter, so
that our mapping is checked against somebody else's.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS, VOCAB, CONTEXT = 64, 4, 2, 16, 96, 2, 80, 128

Tensors = dict[str, np.ndarray]


def _llama_layer(prefix: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
    }


def _qkv_bias(prefix: str) -> dict[str, tuple[int, ...]]:
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    return {f"{prefix}.self_attn.{part}_proj.bias": (size,) for part, size in sizes.items()}


def _qk_norm(prefix: str) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}


def _gemma_norms(prefix: str) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{place}_feedforward_layernorm.weight": (HIDDEN,) for place in ("pre", "post")}


def _phi3_layer(prefix: str) -> dict[str, tuple[int, ...]]:
    kept = ("layernorm", "o_proj", "down_proj")
    layer = {name: shape for name, shape in _llama_layer(prefix).items() if any(part in name for part in kept)}
    layer[f"{prefix}.self_attn.qkv_proj.weight"] = ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
    layer[f"{prefix}.mlp.gate_up_proj.weight"] = (2 * INNER, HIDDEN)
    return layer


def _gpt2_layer(prefix: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    products = {
        "attn.c_attn": (HIDDEN, 3 * HIDDEN),
        "attn.c_proj": (HIDDEN, HIDDEN),
        "mlp.c_fc": (HIDDEN, INNER),
        "mlp.c_proj": (INNER, HIDDEN),
    }
    for part, shape in products.items():
        shapes[f"{prefix}.{part}.weight"] = shape
        shapes[f"{prefix}.{part}.bias"] = shape[1:]
    for part in ("ln_1", "ln_2"):
        shapes[f"{prefix}.{part}.weight"] = shapes[f"{prefix}.{part}.bias"] = (HIDDEN,)
    return shapes


def layer_shapes(architecture: str, layer: int) -> dict[str, tuple[int, ...]]:
    if architecture == "gpt2":
        return _gpt2_layer(f"transformer.h.{layer}")
    prefix = f"model.layers.{layer}"
    if architecture == "phi3":
        return _phi3_layer(prefix)
    shapes = _llama_layer(prefix)
    if architecture == "qwen2":
        shapes |= _qkv_bias(prefix)
    if architecture in ("qwen3", "gemma3"):
        shapes |= _qk_norm(prefix)
    if architecture.startswith("gemma"):
        shapes |= _gemma_norms(prefix)
    return shapes


def make_tensors(architecture: str, *, tied: bool = True, seed: int = 0) -> Tensors:
    """Random float32 tensors under Hugging Face's names and in its layout."""
    if architecture == "gpt2":
        shapes: dict[str, tuple[int, ...]] = {
            "transformer.wte.weight": (VOCAB, HIDDEN),
            "transformer.wpe.weight": (CONTEXT, HIDDEN),
            "transformer.ln_f.weight": (HIDDEN,),
            "transformer.ln_f.bias": (HIDDEN,),
        }
    else:
        shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes |= layer_shapes(architecture, layer)
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which llama.cpp wants q and k of its llama architecture."""
    split = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def gguf_content(architecture: str, name: str, values: np.ndarray) -> np.ndarray:
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        return interleave(values, HEADS if "q_proj" in name else KV_HEADS)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1.0
    if architecture == "gpt2" and (".attn.c_" in name or ".mlp.c_" in name) and values.ndim == 2:
        return np.ascontiguousarray(values.T)
    return values


def new_writer(path: Path, architecture: str) -> gguf.GGUFWriter:
    """A writer with the settings that every decoder has."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    if architecture == "gpt2":
        writer.add_layer_norm_eps(1e-5)
        return writer
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    return writer


def add_tokenizer(writer: gguf.GGUFWriter, num_tokens: int = VOCAB) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"t{index}" for index in range(num_tokens)])
    writer.add_token_types([1] * num_tokens)
    writer.add_token_merges(["t 1", "t 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_tensors(
    writer: gguf.GGUFWriter, architecture: str, tensors: Tensors, *, quantize: gguf.GGMLQuantizationType | None = None
) -> None:
    """Under the `gguf` package's names; matrices in the given number format, vectors in float32."""
    kind = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(kind, LAYERS)
    for name, values in tensors.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, f"the gguf package does not know {name}"
        content = gguf_content(architecture, name, values)
        if quantize is not None and content.ndim == 2:
            writer.add_tensor(gguf_name, gguf.quants.quantize(content, quantize), raw_dtype=quantize)
        else:
            writer.add_tensor(gguf_name, content)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(path: Path, architecture: str, tensors: Tensors, **options: Any) -> Path:
    """A whole file: settings, a small tokenizer, tensors. `edit` may add to the writer before it is finished."""
    edit = options.pop("edit", None)
    writer = new_writer(path, architecture)
    add_tokenizer(writer)
    if edit is not None:
        edit(writer)
    add_tensors(writer, architecture, tensors, **options)
    finish(writer)
    return path
