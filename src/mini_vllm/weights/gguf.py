"""The GGUF container: metadata and where each tensor lies. Every read is bounded by the file.

Knows nothing of architectures or tokenizers; names and shapes are the file's (shapes turned outermost first). Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import UnsupportedModelError, WeightsError
from mini_vllm.kernels.tensors import FORMATS
from mini_vllm.quantization import check_supported
from mini_vllm.weights.mapped import Cursor, MappedFile, check_no_overlap

# Value type id → (name, struct code). Strings and arrays have no code.
_VALUE_TYPES: dict[int, tuple[str, str]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "B"),
    8: ("string", ""),
    9: ("array", ""),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_STRING, _ARRAY = 8, 9

# Tensor type id → name.
_TENSOR_TYPES: dict[int, str] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
    20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
    29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0",
}  # fmt: skip

_MAX_DIMS = 4
_SMALLEST_ENTRY = 8 + 1 + 4 + 1  # bytes of the shortest metadata entry: length, key, type, value
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # length, name, number of dims, one dim, type, offset


@dataclass(frozen=True, slots=True)
class MetadataArray:
    """An array value: its declared element type and its elements (a list of str, or a NumPy array)."""

    element_type: str
    values: Any

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Where a tensor lies. `shape` is outermost first; `offset` is absolute, in bytes."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GGUFFile:
    """One mapped GGUF file. `metadata` maps keys to Python scalars, strings and `MetadataArray`s."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        cursor = Cursor(self._file)
        num_tensors, num_entries = _read_header(cursor)
        self.metadata: Mapping[str, Any] = _read_metadata(cursor, num_entries)
        self.tensors: Mapping[str, TensorSpan] = _read_tensors(cursor, num_tensors, _alignment(cursor, self.metadata))

    def data(self, span: TensorSpan) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapping. [num_bytes]"""
        return self._file.view(span.offset, span.num_bytes)

    def close(self) -> None:
        """Unmap once no view is held."""
        self._file.close()


def _read_header(cursor: Cursor) -> tuple[int, int]:
    if cursor.unpack("I", "magic") != int.from_bytes(b"GGUF", "little"):
        raise WeightsError(f"{cursor.path}: not a GGUF file (it does not begin with GGUF)")
    version = cursor.unpack("I", "version")
    if version not in (2, 3):
        big_endian = version and version % 65536 == 0
        reason = "it is big-endian" if big_endian else f"its version is {version}"
        raise UnsupportedModelError(f"{cursor.path}: {reason}; little-endian GGUF versions 2 and 3 are read")
    num_tensors = cursor.unpack("Q", "tensor_count")
    num_entries = cursor.unpack("Q", "metadata_kv_count")
    cursor.check_count(num_entries, _SMALLEST_ENTRY, "metadata_kv_count")
    cursor.check_count(num_tensors, _SMALLEST_TENSOR, "tensor_count")
    return num_tensors, num_entries


def _read_metadata(cursor: Cursor, num_entries: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_entries):
        key = cursor.text(f"key of metadata entry {index}")
        if not key or key in metadata:
            raise cursor.fail(f"metadata entry {index} has {'a repeated' if key else 'an empty'} key {key!r}")
        metadata[key] = _read_value(cursor, cursor.unpack("I", f"type of {key}"), key)
    return metadata


def _read_value(cursor: Cursor, type_id: int, field: str) -> Any:
    if type_id == _STRING:
        return cursor.text(field)
    if type_id == _ARRAY:
        return _read_array(cursor, field)
    name, code = _value_type(cursor, type_id, field)
    value = cursor.unpack(code, field)
    return bool(value) if name == "bool" else value


def _read_array(cursor: Cursor, field: str) -> MetadataArray:
    type_id = cursor.unpack("I", f"element type of {field}")
    count = cursor.unpack("Q", f"length of {field}")
    name, code = _value_type(cursor, type_id, field)
    if type_id == _ARRAY:
        raise cursor.fail(f"{field} is an array of arrays, which no known model uses")
    if type_id == _STRING:
        return MetadataArray(name, cursor.texts(cursor.check_count(count, 8, f"length of {field}"), field))
    dtype = np.dtype(code).newbyteorder("<")
    cursor.check_count(count, dtype.itemsize, f"length of {field}")
    values = cursor.array(dtype.str, count, field)
    return MetadataArray(name, values.astype(bool) if name == "bool" else values)


def _value_type(cursor: Cursor, type_id: int, field: str) -> tuple[str, str]:
    if type_id not in _VALUE_TYPES:
        raise cursor.fail(f"{field} has the unknown value type {type_id}")
    return _VALUE_TYPES[type_id]


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}; it must be a power of two from 8 to 2^20")
    return alignment


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, TensorSpan]:
    relative: dict[str, TensorSpan] = {}
    for index in range(num_tensors):
        span = _read_tensor(cursor, index, alignment)
        if span.name in relative:
            raise cursor.fail(f"tensor {span.name!r} is listed twice")
        relative[span.name] = span
    base = -(-cursor.position // alignment) * alignment
    tensors = {name: _placed(cursor, span, base) for name, span in relative.items()}
    check_no_overlap(cursor.path, ((span.offset, span.offset + span.num_bytes, name) for name, span in tensors.items()))
    return tensors


def _read_tensor(cursor: Cursor, index: int, alignment: int) -> TensorSpan:
    name = cursor.text(f"name of tensor {index}")
    if not name:
        raise cursor.fail(f"tensor {index} has an empty name")
    num_dims = cursor.unpack("I", f"number of dimensions of {name!r}")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.fail(f"{name!r} has {num_dims} dimensions; 1 to {_MAX_DIMS} are possible")
    shape = tuple(cursor.unpack("Q", f"dimension {axis} of {name!r}") for axis in range(num_dims))[::-1]
    if 0 in shape:
        raise cursor.fail(f"{name!r} has the shape {list(shape)}, in which a dimension is zero")
    format = _tensor_format(cursor, cursor.unpack("I", f"type of {name!r}"), name)
    offset = cursor.unpack("Q", f"offset of {name!r}")
    if offset % alignment:
        raise cursor.fail(f"{name!r} starts at {offset}, which is no multiple of the alignment {alignment}")
    return TensorSpan(name, format, shape, offset, _num_bytes(cursor, name, format, shape))


def _tensor_format(cursor: Cursor, type_id: int, name: str) -> str:
    if type_id not in _TENSOR_TYPES:
        raise cursor.fail(f"{name!r} has the unknown tensor type {type_id}")
    format = _TENSOR_TYPES[type_id]
    check_supported(format, where=f"{cursor.path}: tensor {name!r}")
    return format


def _num_bytes(cursor: Cursor, name: str, format: str, shape: tuple[int, ...]) -> int:
    elements, width = FORMATS[format]
    if shape[-1] % elements:
        raise cursor.fail(
            f"rows of {name!r} have {shape[-1]} elements; {format.upper()} needs a multiple of {elements}"
        )
    count = 1
    for size in shape:  # Python integers: the product cannot wrap
        count *= size
    return count // elements * width


def _placed(cursor: Cursor, span: TensorSpan, base: int) -> TensorSpan:
    start = base + span.offset
    if start + span.num_bytes > cursor.size:
        raise cursor.fail(
            f"{span.name!r} needs bytes {start} to {start + span.num_bytes} but the file has {cursor.size}"
        )
    return TensorSpan(span.name, span.format, span.shape, start, span.num_bytes)
