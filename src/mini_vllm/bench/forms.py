"""Forms of one model for every engine, made from the default GGUF file: other GGUF types, and a Hugging Face folder.

    python -m mini_vllm.bench.forms [FOLDER]      make all that are missing

Every form holds the same weights, rounded to its type once; what the original keeps in Q8_0 (the embedding, which is
also the head) stays Q8_0 in the 4-bit forms. Must not know engines.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mini_vllm import weights
from mini_vllm.bench.gguf_writer import Bytes, TensorEntry, encode, random_q4_0, write_gguf
from mini_vllm.bench.places import models_folder
from mini_vllm.bench.roofline import TINYLLAMA, Shape
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.quantization import dequantize
from mini_vllm.weights import Checkpoint, open_checkpoint
from mini_vllm.weights.gguf import GGUFFile, MetadataArray, TensorSpan

FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}  # general.file_type
FOLDER_FORMATS = {"f32": ("F32", "float32"), "bf16": ("BF16", "bfloat16")}
DEFAULT_MODEL = "smollm2-135m"


def gguf_form(format: str, folder: Path) -> Path:
    """The model as a GGUF file of this type, made if it is missing. "q4_1" is the default file itself."""
    path = folder / f"smollm2-{format}.gguf"
    if format == "q4_1":
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.symlink_to(weights.pull(DEFAULT_MODEL))
    elif not path.is_file():
        _convert(weights.pull(DEFAULT_MODEL), path, format)
    return path


def folder_form(format: str, folder: Path) -> Path:
    """The model as a Hugging Face folder of float32 ("f32") or bfloat16 weights, without tokenizer files."""
    path = folder / f"smollm2-{format}"
    if not (path / "model.safetensors").is_file():
        checkpoint = open_checkpoint(weights.pull(DEFAULT_MODEL))
        try:
            _write_folder(checkpoint, path, format)
        finally:
            checkpoint.close()
    return path


def tinyllama_form(folder: Path) -> Path:
    """Random Q4_0 weights in the shape of TinyLlama-1.1B, with a vocabulary of made-up words. 619 MB."""
    path = folder / "tinyllama-random-q4_0.gguf"
    if not path.is_file():
        write_random(path, TINYLLAMA, seed=1)
    return path


def write_random(path: Path, shape: Shape, *, seed: int) -> None:
    """A llama of this shape, all matrices Q4_0 and random, scaled so that activations keep their size."""
    source = np.random.default_rng(seed)
    entries = [_random_entry(name, dims, source) for name, dims in _tensor_shapes(shape)]
    write_gguf(path, _llama_metadata(shape), entries)


def _convert(original: Path, path: Path, format: str) -> None:
    file = GGUFFile(original)
    metadata = {**file.metadata, "general.file_type": FILE_TYPES[format]}
    write_gguf(path, metadata, [_converted(file, span, format) for span in file.tensors.values()])
    file.close()


def _converted(file: GGUFFile, span: TensorSpan, format: str) -> TensorEntry:
    if len(span.shape) == 1 or (format == "q4_0" and span.format == "q8_0"):
        return TensorEntry(span.name, span.format, span.shape, lambda: file.data(span))

    def data() -> Bytes:
        return encode(dequantize(HostTensor(span.name, span.format, span.shape, file.data(span))), format)

    return TensorEntry(span.name, format, span.shape, data)


def _write_folder(checkpoint: Checkpoint, path: Path, format: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    kind, dtype = FOLDER_FORMATS[format]
    config = {**checkpoint.config, "torch_dtype": dtype, "tie_word_embeddings": True}
    config.setdefault("architectures", ["LlamaForCausalLM"])
    (path / "config.json").write_text(json.dumps(config, indent=1))
    width = {"f32": 4, "bf16": 2}[format]
    names, header, offset = sorted(checkpoint.names()), {}, 0
    for name in names:
        tensor = checkpoint.get(name)
        end = offset + tensor.num_elements * width
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    fresh = path / "model.safetensors.new"
    with open(fresh, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            out.write(encode(dequantize(checkpoint.get(name)), format).tobytes())
    fresh.rename(path / "model.safetensors")


def _tensor_shapes(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, middle = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", (hidden,)
        yield prefix + "attn_q.weight", (queries, hidden)
        yield prefix + "attn_k.weight", (keys, hidden)
        yield prefix + "attn_v.weight", (keys, hidden)
        yield prefix + "attn_output.weight", (hidden, queries)
        yield prefix + "ffn_norm.weight", (hidden,)
        yield prefix + "ffn_gate.weight", (middle, hidden)
        yield prefix + "ffn_up.weight", (middle, hidden)
        yield prefix + "ffn_down.weight", (hidden, middle)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (shape.vocab_size, hidden)


def _random_entry(name: str, dims: tuple[int, ...], source: np.random.Generator) -> TensorEntry:
    if len(dims) == 1:
        return TensorEntry(name, "f32", dims, lambda: np.ones(dims, np.float32).view(np.uint8))
    return TensorEntry(name, "q4_0", dims, lambda: random_q4_0(dims, source, float(dims[1]) ** -0.5))


def _llama_metadata(shape: Shape) -> dict[str, object]:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [f"▁w{index}" for index in range(shape.vocab_size - len(pieces))]
    types = [2, 3, 3, *[6] * 256, *[1] * (shape.vocab_size - 259)]
    return {
        "general.architecture": "llama",
        "general.name": "random weights",
        "general.file_type": FILE_TYPES["q4_0"],
        "general.quantization_version": 2,
        "llama.block_count": shape.num_layers,
        "llama.context_length": 2048,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": shape.vocab_size,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": MetadataArray("string", pieces),
        "tokenizer.ggml.scores": MetadataArray("f32", -np.arange(shape.vocab_size, dtype=np.float32)),
        "tokenizer.ggml.token_type": MetadataArray("i32", np.array(types, np.int32)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def main(arguments: list[str]) -> int:
    """Make every form."""
    folder = Path(arguments[0]) if arguments else models_folder()
    for format in ("q4_1", *FILE_TYPES):
        print(gguf_form(format, folder), flush=True)
    for format in FOLDER_FORMATS:
        print(folder_form(format, folder), flush=True)
    print(tinyllama_form(folder), f"({shutil.disk_usage(folder).free / 1e9:.0f} GB free)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
