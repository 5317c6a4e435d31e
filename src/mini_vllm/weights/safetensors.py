"""The safetensors container: a JSON header, then the tensors' bytes, mapped. Every offset is checked before use.

Knows nothing of models. Format: https://huggingface.co/docs/safetensors, little-endian, no holes, no overlaps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.errors import UnsupportedModelError
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.weights.mapped import Cursor, MappedFile, check_no_overlap

_MAX_HEADER = 100 * 10**6  # bytes; the format's own limit

# dtype → bits per element. Those in _FORMATS can be computed with, F64 is converted, the others are refused by name.
_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64,
    "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
_FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header. `start` and `stop` are absolute, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """One mapped safetensors file: `entries` by name, `get` for contents."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        self.entries: Mapping[str, Entry] = _read_entries(Cursor(self._file))

    def get(self, name: str, *, rename: str | None = None) -> HostTensor:
        """The tensor, named `rename` if given: a view, or a copy where the bytes are unaligned or F64 (made f32)."""
        entry = self.entries[name]
        name = rename or name
        if entry.dtype not in _WIDTHS:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} is {entry.dtype}; weights in F32, F16 or BF16 are needed "
                "(take the checkpoint that was not quantised, or a GGUF file of the model)"
            )
        data = self._file.view(entry.start, entry.stop - entry.start)
        if data.ctypes.data % _WIDTHS[entry.dtype]:
            data = data.copy()
        if entry.dtype == "F64":
            with np.errstate(over="ignore"):
                return HostTensor(name, "f32", entry.shape, data.view("<f8").astype("<f4").view(np.uint8))
        return HostTensor(name, _FORMATS[entry.dtype], entry.shape, data)

    def close(self) -> None:
        """Unmap once no view is held."""
        self._file.close()


def _read_entries(cursor: Cursor) -> dict[str, Entry]:
    length = cursor.unpack("Q", "header length")
    if length > _MAX_HEADER:
        raise cursor.fail(f"header length is {length}; at most {_MAX_HEADER} bytes are allowed")
    header = _parse_header(cursor, cursor.array("u1", length, "header").tobytes())
    base = cursor.position
    entries = {name: _entry(cursor, name, value, base) for name, value in header.items() if name != "__metadata__"}
    spans = [(entry.start, entry.stop, name) for name, entry in entries.items()]
    check_no_overlap(cursor.path, spans)
    covered = base + sum(stop - start for start, stop, _ in spans)
    if covered != cursor.size:
        raise cursor.fail(f"its tensors cover {covered - base} of {cursor.size - base} data bytes; all must be covered")
    return entries


def _parse_header(cursor: Cursor, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise cursor.fail(f"the header cannot be read ({error})") from None
    if not isinstance(header, dict):
        raise cursor.fail("the header is not a JSON object")
    return header


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is listed twice")
    return found


def _entry(cursor: Cursor, name: str, value: Any, base: int) -> Entry:
    try:
        dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise cursor.fail(f"tensor {name!r} must have dtype, shape and two data_offsets") from None
    if not isinstance(dtype, str) or dtype not in _DTYPE_BITS:
        raise cursor.fail(f"tensor {name!r} has the unknown dtype {dtype!r:.40}")
    if not isinstance(shape, list) or len(shape) > 16 or not all(_is_size(size) for size in shape):
        raise cursor.fail(f"tensor {name!r} has the shape {shape!r:.80}; it must be a list of sizes")
    if not (_is_size(start) and _is_size(stop) and start <= stop <= cursor.size - base):
        raise cursor.fail(
            f"tensor {name!r} has data_offsets {[start, stop]!r:.80} but there are {cursor.size - base} data bytes"
        )
    bits = _DTYPE_BITS[dtype]
    for size in shape:  # Python integers: the product cannot wrap
        bits *= size
    if bits != 8 * (stop - start):
        raise cursor.fail(
            f"tensor {name!r} ({dtype}, {shape}) needs {bits // 8} bytes but its offsets give {stop - start}"
        )
    return Entry(dtype, tuple(shape), base + start, base + stop)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
