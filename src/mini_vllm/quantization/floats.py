"""Floating-point formats of 16 bits: float16 and bfloat16, to float32 and back, rounded to nearest even."""

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def decode_f32(data: Bytes, out: Floats) -> None:
    """Bytes [4n] into out [n]."""
    out[:] = data.view("<f4")


def decode_f16(data: Bytes, out: Floats) -> None:
    """Bytes [2n] into out [n]. Exact."""
    out[:] = data.view("<f2")


def decode_bf16(data: Bytes, out: Floats) -> None:
    """Bytes [2n] into out [n]. Exact: bfloat16 is the upper half of float32."""
    np.left_shift(data.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")


def encode_f16(values: Floats) -> Bytes:
    """[n] to bytes [2n], to nearest even; beyond 65504 it becomes infinite, as everywhere."""
    with np.errstate(over="ignore"):
        return values.astype("<f2").view(np.uint8)


def encode_bf16(values: Floats) -> Bytes:
    """[n] to bytes [2n], to nearest even; NaN stays NaN, overflow becomes infinite."""
    bits = values.view(np.uint32)
    # Adding half a unit less one, plus the last kept bit, carries exactly when rounding to even goes up.
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype("<u2")
    nan = np.isnan(values)
    if nan.any():
        # A payload in the lower half only would round to infinity, so set the quiet bit.
        rounded[nan] = ((bits[nan] >> np.uint32(16)) | np.uint32(0x40)).astype("<u2")
    return rounded.view(np.uint8)
