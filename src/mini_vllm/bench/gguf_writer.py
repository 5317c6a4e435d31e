"""Writes GGUF files (version 3): metadata, float tensors, and the block formats Q4_0 and Q8_0.

Tensors are written one at a time, so a file may be larger than memory. Must not know models.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mini_vllm.kernels.tensors import FORMATS
from mini_vllm.quantization.floats import encode_bf16, encode_f16
from mini_vllm.weights.gguf import MetadataArray

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 32
TENSOR_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}
_VALUE_TYPES = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"),
    "f32": (6, "f"), "bool": (7, "B"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor to write: shape outermost first, and the function that gives its bytes when its turn comes."""

    name: str
    format: str
    shape: tuple[int, ...]
    data: Callable[[], Bytes]

    @property
    def num_bytes(self) -> int:
        """In the file."""
        elements, width = FORMATS[self.format]
        return int(np.prod(self.shape, dtype=np.int64)) // elements * width


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorEntry]) -> None:
    """Write a file under another name and rename it, so that an interrupted one is never taken for whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "wb") as file:
        _write_header(file, metadata, tensors)
        for entry in tensors:
            data = np.ascontiguousarray(entry.data()).view(np.uint8).reshape(-1)
            assert data.size == entry.num_bytes, f"{entry.name}: {data.size} bytes, not {entry.num_bytes}"
            file.write(data.data)
            file.write(bytes(-data.size % ALIGNMENT))
    fresh.rename(path)


def _write_header(file: BinaryIO, metadata: Mapping[str, Any], tensors: Sequence[TensorEntry]) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_text(key) + _value(value))
    offset = 0
    for entry in tensors:
        dims = entry.shape[::-1]
        file.write(_text(entry.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        file.write(struct.pack("<IQ", TENSOR_TYPES[entry.format], offset))
        offset += -(-entry.num_bytes // ALIGNMENT) * ALIGNMENT
    file.write(bytes(-file.tell() % ALIGNMENT))


def encode(values: Floats, format: str) -> Bytes:
    """Floats in a format; rows of blocks run along the last dimension."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    return _ENCODERS[format](flat)


def encode_q8_0(flat: Floats) -> Bytes:
    """Blocks of 32: float16 scale = largest magnitude / 127, then rounded signed bytes."""
    blocks = flat.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = _round(blocks * _inverse(scale)).astype(np.int8)
    return np.concatenate([_half(scale), codes.view(np.uint8)], axis=1).reshape(-1)


def encode_q4_0(flat: Floats) -> Bytes:
    """Blocks of 32: float16 scale = the value of largest magnitude / −8, then codes 0 to 15 around 8."""
    blocks = flat.reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = largest / np.float32(-8)
    codes = np.clip(np.floor(blocks * _inverse(scale) + np.float32(8.5)), 0, 15).astype(np.uint8)
    return np.concatenate([_half(scale), codes[:, :16] | codes[:, 16:] << 4], axis=1).reshape(-1)


def random_q4_0(shape: tuple[int, ...], source: np.random.Generator, deviation: float) -> Bytes:
    """Random blocks whose values have about this standard deviation."""
    num_blocks = int(np.prod(shape, dtype=np.int64)) // 32
    blocks = source.integers(0, 256, (num_blocks, 18), dtype=np.uint8)
    blocks[:, :2] = np.array([deviation / 4.6], np.float16).view(np.uint8)  # codes −8 … 7 deviate by 4.6
    return blocks.reshape(-1)


_ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    "f32": lambda flat: flat.astype("<f4", copy=False).view(np.uint8),
    "f16": encode_f16,
    "bf16": encode_bf16,
    "q8_0": encode_q8_0,
    "q4_0": encode_q4_0,
}


def _half(scale: Floats) -> Bytes:
    return scale.astype("<f2").view(np.uint8)  # [blocks, 2]


def _inverse(scale: Floats) -> Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _round(values: Floats) -> Floats:
    return np.trunc(values + np.copysign(np.float32(0.5), values))


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """Type and content. Python integers become u32 (i64 where they do not fit), floats f32."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, MetadataArray):
        return struct.pack("<I", _ARRAY) + _array(value)
    if isinstance(value, bool):
        kind = "bool"
    elif isinstance(value, int):
        kind = "u32" if 0 <= value < 2**32 else "i64"
    else:
        kind = "f32"
    number, code = _VALUE_TYPES[kind]
    return struct.pack("<I" + code, number, value)


def _array(array: MetadataArray) -> bytes:
    if array.element_type == "string":
        return struct.pack("<IQ", _STRING, len(array)) + b"".join(map(_text, array.values))
    number, code = _VALUE_TYPES[array.element_type]
    values = np.asarray(array.values).astype(np.dtype(code).newbyteorder("<"))
    return struct.pack("<IQ", number, len(array)) + values.tobytes()
