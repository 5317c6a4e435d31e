"""What the native library keeps: packed weights, the KV store, activation buffers. All memory is the library's own.

Must not know the op table's ops or how a program is made.
"""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import ConfigError
from mini_vllm.kernels.native_abi import FORMATS, QUANTIZED, SCREEN_FORMAT, STORE_FORMATS, Matrix, Store
from mini_vllm.kernels.table import KVShape
from mini_vllm.kernels.tensors import HostTensor

_SCREENED = frozenset({"f32", "f16", "bf16", "q8_0"})
_FEWEST_OUTPUTS = 64
_NUMPY_TYPES = {"f32": np.float32, "f16": np.float16}


class Memory:
    """`num_bytes` zeroed bytes at `address`, 64-byte aligned, freed with this object."""

    def __init__(self, library: ctypes.CDLL, num_bytes: int) -> None:
        address = library.mv_alloc(num_bytes)
        if not address:
            raise ConfigError(
                f"cannot allocate {num_bytes} bytes; lower the KV cache (kv_cache_memory, num_blocks) or the "
                "step (max_num_batched_tokens), or take a smaller model"
            )
        self.address: int = address
        self.num_bytes = num_bytes
        weakref.finalize(self, library.mv_free, address, num_bytes).atexit = False

    def floats(self, rows: int, stride: int, width: int) -> npt.NDArray[np.float32]:
        """A view [rows, width] of the first rows x stride float32 numbers; it keeps this memory alive."""
        buffer: Any = (ctypes.c_float * (rows * stride)).from_address(self.address)
        buffer.memory = self
        array: npt.NDArray[np.float32] = np.ctypeslib.as_array(buffer).reshape(rows, stride)
        return array[:, :width]


class PackedMatrix:
    """Rows [N, K] of one number format in panels of 16, with an optional float32 bias [N]."""

    def __init__(self, library: ctypes.CDLL, parts: Sequence[HostTensor], bias: npt.NDArray[np.float32] | None) -> None:
        self.format = parts[0].format
        self.num_rows = sum(part.shape[0] for part in parts)
        self.num_cols = parts[0].shape[1]
        code = FORMATS[self.format]
        self._memory = Memory(library, library.mv_matrix_bytes(code, self.num_rows, self.num_cols))
        self._bias = bias
        self.struct = Matrix(code, self.num_rows, self.num_cols, 0, self._memory.address, None)
        if bias is not None:
            self.struct.bias = bias.ctypes.data
        first = 0
        for part in parts:
            assert part.format == self.format and part.shape[1] == self.num_cols, f"{part.name} beside {parts[0].name}"
            rows = _aligned(part.data)
            library.mv_pack_rows(ctypes.byref(self.struct), first, part.shape[0], rows.ctypes.data)
            first += part.shape[0]

    @property
    def address(self) -> int:
        """Of the struct mv_matrix; valid while this object lives."""
        return ctypes.addressof(self.struct)

    @property
    def is_quantized(self) -> bool:
        """Whether its products take int8 activations."""
        return self.format in QUANTIZED

    @property
    def input_words(self) -> int:
        """32-bit words of one row of activations as its products take them; 0 = K float32 numbers."""
        if self.is_quantized:  # per group of 32 columns 32 bytes, a scale and a term
            return self.num_cols // 32 * 10
        return (self.num_cols + 1) // 2 if self.format == "bf16" else 0

    def round_scale(self, scale: float) -> float:
        """`scale` as this matrix's own number format would hold it, when that has 16 bits."""
        if self.format == "bf16":
            bits = np.float32(scale).view(np.uint32).astype(np.uint64)
            rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
            return float(rounded.astype(np.uint32).view(np.float32))
        return float(np.float16(scale)) if self.format == "f16" else scale


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A product's weight [N, K]: matrices one below the other, each in its own number format."""

    matrices: tuple[PackedMatrix, ...]

    @property
    def num_rows(self) -> int:
        """N."""
        return sum(matrix.num_rows for matrix in self.matrices)

    @property
    def num_cols(self) -> int:
        """K."""
        return self.matrices[0].num_cols


def screen_bytes(library: ctypes.CDLL, head_format: str, rows: int, cols: int) -> int:
    """What a program keeps of a head [rows, cols] to read it in part: its codes of 6 bits, and 12 bytes a row for what
    these miss and for the largest estimates. 0 where it reads all of it: can_screen of csrc/screen.cpp.
    """
    if head_format not in _SCREENED or rows < _FEWEST_OUTPUTS or cols % 32:
        return 0
    return int(library.mv_matrix_bytes(SCREEN_FORMAT, rows, cols)) + 12 * 16 * -(-rows // 16)


@dataclass(frozen=True, slots=True)
class RopeTables:
    """cos and sin [max positions, R/2], float32, C-contiguous."""

    cos: npt.NDArray[np.float32]
    sin: npt.NDArray[np.float32]


class NativeStore:
    """K and V of every layer; csrc/kv_layout.h says where they lie."""

    def __init__(self, library: ctypes.CDLL, shape: KVShape) -> None:
        self.shape = shape
        self.struct = Store(
            STORE_FORMATS[shape.dtype],
            shape.num_layers,
            shape.num_blocks,
            shape.block_size,
            shape.num_kv_heads,
            shape.head_dim,
            None,
        )
        self.memory = Memory(library, library.mv_store_bytes(ctypes.byref(self.struct)))
        self.struct.data = self.memory.address


def to_float32(tensor: HostTensor) -> npt.NDArray[np.float32]:
    """A plain (not quantised) tensor, in float32, C-contiguous."""
    if tensor.format == "bf16":
        bits = _aligned(tensor.data).view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    plain = _aligned(tensor.data).view(_NUMPY_TYPES[tensor.format])
    return np.ascontiguousarray(plain, dtype=np.float32).reshape(tensor.shape)


def _aligned(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes flat and on a 4-byte boundary; a copy only where a file put them elsewhere."""
    flat = np.ascontiguousarray(data).reshape(-1)
    return flat if flat.ctypes.data % 4 == 0 else flat.copy()
