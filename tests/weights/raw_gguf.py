"""GGUF files put together byte by byte, so that any field can be wrong."""

import struct
from pathlib import Path
from typing import Any

CODES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "array": 9, "u64": 10}
PACK = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "B", "u64": "Q"}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, content: Any) -> bytes:
    """The bytes of one value; arrays are ("array", (element kind, items))."""
    if kind == "str":
        return text(content)
    if kind == "array":
        element, items = content
        return struct.pack("<IQ", CODES[element], len(items)) + b"".join(value(element, item) for item in items)
    return struct.pack("<" + PACK[kind], content)


def entry(key: str | bytes, kind: str, content: Any) -> bytes:
    return text(key) + struct.pack("<I", CODES[kind]) + value(kind, content)


def tensor(
    name: str, dims: tuple[int, ...], *, type_id: int = 0, offset: int = 0, num_dims: int | None = None
) -> bytes:
    """One entry of the tensor list; dims innermost first, as the file has them."""
    count = len(dims) if num_dims is None else num_dims
    return (
        text(name)
        + struct.pack("<I", count)
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", type_id, offset)
    )


def header(num_tensors: int, num_entries: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries)


LLAMA: dict[str, tuple[str, Any]] = {
    "general.architecture": ("str", "llama"),
    "llama.block_count": ("u32", 1),
    "llama.context_length": ("u32", 64),
    "llama.embedding_length": ("u32", 32),
    "llama.feed_forward_length": ("u32", 32),
    "llama.attention.head_count": ("u32", 2),
    "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
    "tokenizer.ggml.model": ("str", "llama"),
    "tokenizer.ggml.tokens": ("array", ("str", ["a", "b", "c", "d"])),
    "tokenizer.ggml.scores": ("array", ("f32", [0.0, 1.0, 2.0, 3.0])),
    "tokenizer.ggml.token_type": ("array", ("i32", [1, 1, 1, 1])),
    "tokenizer.ggml.eos_token_id": ("u32", 2),
}
EMBEDDING = tensor("token_embd.weight", (32, 4))
EMBEDDING_BYTES = 4 * 32 * 4


def build(
    path: Path,
    *,
    change: dict[str | bytes, tuple[str, Any] | None] | None = None,
    tensors: list[bytes] | None = None,
    data: int = EMBEDDING_BYTES,
) -> Path:
    """A small llama file. `change` replaces metadata entries, adds new ones, and removes those set to None."""
    metadata = {**LLAMA, **(change or {})}
    entries = [entry(key, *content) for key, content in metadata.items() if content is not None]
    listed = [EMBEDDING] if tensors is None else tensors
    start = header(len(listed), len(entries)) + b"".join(entries) + b"".join(listed)
    path.write_bytes(start + bytes(-len(start) % 32) + bytes(data))
    return path
