"""Which number formats are understood, and the two doors through which they are turned into floats.

To add a format: its decoder in a file here, its size in kernels.tensors.FORMATS, a line in `_BLOCK_DECODERS`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_vllm.errors import UnsupportedModelError, WeightsError
from mini_vllm.kernels.tensors import FORMATS, HostTensor
from mini_vllm.quantization import floats, k_blocks, legacy

Floats = npt.NDArray[np.float32]
_Decoder = Callable[[npt.NDArray[np.uint8], Floats], None]

_FLOAT_DECODERS: dict[str, _Decoder] = {
    "f32": floats.decode_f32,
    "f16": floats.decode_f16,
    "bf16": floats.decode_bf16,
}
_BLOCK_DECODERS: dict[str, _Decoder] = {
    "q4_0": legacy.decode_q4_0,
    "q4_1": legacy.decode_q4_1,
    "q5_0": legacy.decode_q5_0,
    "q5_1": legacy.decode_q5_1,
    "q8_0": legacy.decode_q8_0,
    "q2_k": k_blocks.decode_q2_k,
    "q3_k": k_blocks.decode_q3_k,
    "q4_k": k_blocks.decode_q4_k,
    "q5_k": k_blocks.decode_q5_k,
    "q6_k": k_blocks.decode_q6_k,
}
_ENCODERS: dict[str, Callable[[Floats], npt.NDArray[np.uint8]]] = {
    "f32": lambda values: values.astype("<f4", copy=False).view(np.uint8),
    "f16": floats.encode_f16,
    "bf16": floats.encode_bf16,
}

# Elements per slice: small enough that a slice and its temporaries stay in cache, whatever the tensor's size.
_SLICE = 2**16


def check_supported(format: str, *, where: str) -> None:
    """Refuse a format that this engine cannot compute with, by name; `where` begins the message."""
    if format in FORMATS:
        return
    known = ", ".join(name.upper() for name in FORMATS)
    raise UnsupportedModelError(
        f"{where} has the number format {format.upper()}, which is not supported; take a file of the same model in "
        f"Q4_K_M, Q8_0 or F16 (supported: {known})"
    )


def dequantize(tensor: HostTensor) -> Floats:
    """The tensor's values in float32, in its shape, C-contiguous. Never a view of the tensor's own bytes.

    Beside the result it uses a few hundred KiB, whatever the size.
    """
    _check_size(tensor)
    result = np.empty(tensor.shape, dtype=np.float32)
    flat = result.reshape(-1)
    for _ in _decoded_slices(tensor, lambda start, stop: flat[start:stop]):
        pass  # each slice is decoded in place
    return result


def convert(tensor: HostTensor, format: str) -> HostTensor:
    """The tensor in "f32", "f16" or "bf16", rounded to nearest even; itself if it already has the format.

    Converts in slices: beside the result it uses a few hundred KiB.
    """
    if format not in _ENCODERS:
        raise UnsupportedModelError(f"cannot convert {tensor.name!r} to {format!r}; choose f32, f16 or bf16")
    if tensor.format == format:
        return tensor
    if format == "f32":
        return HostTensor(tensor.name, "f32", tensor.shape, dequantize(tensor).reshape(-1).view(np.uint8))
    _check_size(tensor)
    width = FORMATS[format][1]
    data = np.empty(tensor.num_elements * width, dtype=np.uint8)
    scratch = np.empty(_SLICE, dtype=np.float32)
    for start, values in _decoded_slices(tensor, lambda start, stop: scratch[: stop - start]):
        data[start * width : (start + values.size) * width] = _ENCODERS[format](values)
    return HostTensor(tensor.name, format, tensor.shape, data)


def _decoded_slices(tensor: HostTensor, target: Callable[[int, int], Floats]) -> Iterator[tuple[int, Floats]]:
    """Decode slice after slice into `target(start, stop)`; yields each slice's first element and its values."""
    elements, width = FORMATS[tensor.format]
    total = tensor.num_elements
    data: Any = np.ascontiguousarray(tensor.data).reshape(-1)
    for start in range(0, total, _SLICE):
        stop = min(start + _SLICE, total)
        out = target(start, stop)
        piece = data[start // elements * width : stop // elements * width]
        if elements == 1:
            _FLOAT_DECODERS[tensor.format](piece, out)
        else:
            _BLOCK_DECODERS[tensor.format](piece.reshape(-1, width), out.reshape(-1, elements))
        yield start, out


def _check_size(tensor: HostTensor) -> None:
    check_supported(tensor.format, where=f"tensor {tensor.name!r}")
    elements, width = FORMATS[tensor.format]
    expected = tensor.num_elements // elements * width
    rows_fit = not tensor.shape or tensor.shape[-1] % elements == 0
    if tensor.data.size != expected or not rows_fit:
        raise WeightsError(
            f"tensor {tensor.name!r} of shape {list(tensor.shape)} has {tensor.data.size} bytes; "
            f"{tensor.format.upper()} needs {expected}, in rows of whole blocks of {elements}"
        )
