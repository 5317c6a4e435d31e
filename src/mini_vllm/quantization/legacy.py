"""Block formats of 32 elements with one float16 scale, and in the _1 kinds a float16 minimum (ggml's first generation).

x = d * (q - offset) or x = d * q + m. Layouts follow ggml's `block_q4_0` … `block_q8_0`: the low nibbles of a block's
16 bytes are elements 0 to 15, the high ones 16 to 31.
"""

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]  # [number of blocks, bytes per block]
Floats = npt.NDArray[np.float32]  # [number of blocks, 32]


def decode_q4_0(blocks: Blocks, out: Floats) -> None:
    """d, 16 bytes of nibbles; x = d (q - 8)."""
    _nibbles(blocks[:, 2:], out)
    out -= 8.0
    out *= _half(blocks, 0)


def decode_q4_1(blocks: Blocks, out: Floats) -> None:
    """d, m, 16 bytes of nibbles; x = d q + m."""
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def decode_q5_0(blocks: Blocks, out: Floats) -> None:
    """d, 32 fifth bits, 16 bytes of nibbles; x = d (q - 16)."""
    _nibbles(blocks[:, 6:], out)
    out += _fifth_bits(blocks[:, 2:6])
    out -= 16.0
    out *= _half(blocks, 0)


def decode_q5_1(blocks: Blocks, out: Floats) -> None:
    """d, m, 32 fifth bits, 16 bytes of nibbles; x = d q + m."""
    _nibbles(blocks[:, 8:], out)
    out += _fifth_bits(blocks[:, 4:8])
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def decode_q8_0(blocks: Blocks, out: Floats) -> None:
    """d, 32 signed bytes; x = d q."""
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _half(blocks: Blocks, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)  # [blocks, 1]


def _nibbles(packed: Blocks, out: Floats) -> None:
    np.bitwise_and(packed, np.uint8(15), out=out[:, :16], casting="unsafe", dtype=np.uint8)
    np.right_shift(packed, np.uint8(4), out=out[:, 16:], casting="unsafe", dtype=np.uint8)


def _fifth_bits(packed: Blocks) -> npt.NDArray[np.uint8]:
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)  # [blocks, 32] of 0 or 16
