"""Super-blocks of 256 elements: groups of 16 or 32 whose scales (and minima) are themselves small integers (ggml's K).

x = (d * scale) * q [- dmin * minimum]. Layouts follow ggml's `block_q2_K` … `block_q6_K`. Products are formed in the
order of ggml's own dequantisation, so that float32 results agree to the last bit.
"""

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]  # [N, bytes per block]
Floats = npt.NDArray[np.float32]  # [N, 256]


def decode_q2_k(blocks: Blocks, out: Floats) -> None:
    """16 bytes of 4-bit scale and minimum, 64 bytes of 2-bit codes, d, dmin; 16 groups of 16."""
    scales, packed = blocks[:, :16], blocks[:, 16:80]
    d, dmin = _half(blocks, 80), _half(blocks, 82)
    scale = d * (scales & np.uint8(15)).astype(np.float32)  # [N, 16]
    minimum = dmin * (scales >> np.uint8(4)).astype(np.float32)
    groups = out.reshape(-1, 16, 16)
    groups[:] = _crumbs(packed).reshape(-1, 16, 16)
    groups *= scale[:, :, None]
    groups -= minimum[:, :, None]


def decode_q3_k(blocks: Blocks, out: Floats) -> None:
    """32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of 6-bit scales, d; 16 groups of 16, q - 4."""
    third, packed, scales = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    low = np.concatenate([scales[:, :8] & np.uint8(15), scales[:, :8] >> np.uint8(4)], axis=1)  # [N, 16]
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)
    high = ((scales[:, None, 8:] >> shifts[:, None]) & np.uint8(3)).reshape(-1, 16)
    scale = (low | (high << np.uint8(4))).astype(np.float32) - 32.0
    scale *= _half(blocks, 108)
    bits = ((third[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)).reshape(-1, 256)
    groups = out.reshape(-1, 16, 16)
    groups[:] = (_crumbs(packed) + (bits << np.uint8(2))).reshape(-1, 16, 16)
    groups -= 4.0
    groups *= scale[:, :, None]


def decode_q4_k(blocks: Blocks, out: Floats) -> None:
    """d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles; 8 groups of 32."""
    _scaled_with_minimum(blocks, _nibble_groups(blocks[:, 16:144]), out)


def decode_q5_k(blocks: Blocks, out: Floats) -> None:
    """d, dmin, 12 bytes of 6-bit scales and minima, 32 bytes of fifth bits, 128 bytes of nibbles; 8 groups of 32."""
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)  # [N, 8, 32]
    _scaled_with_minimum(blocks, _nibble_groups(blocks[:, 48:176]) | (fifth << np.uint8(4)), out)


def decode_q6_k(blocks: Blocks, out: Floats) -> None:
    """128 bytes of nibbles, 64 bytes of upper crumbs, 16 signed scales, d; 16 groups of 16, q - 32."""
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], dtype=np.uint8)[:, None]
    crumbs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    low = (nibbles & np.uint8(15)).reshape(-1, 256)
    high = (crumbs & np.uint8(3)).reshape(-1, 256)
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)  # [N, 16]
    groups = out.reshape(-1, 16, 16)
    groups[:] = (low | (high << np.uint8(4))).reshape(-1, 16, 16)
    groups -= 32.0
    groups *= scale[:, :, None]


def _half(blocks: Blocks, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)  # [N, 1]


def _crumbs(packed: Blocks) -> Blocks:
    """64 bytes of 2-bit codes → [N, 256]: each half of 32 bytes gives its lowest pairs first."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)).reshape(-1, 256)


def _nibble_groups(packed: Blocks) -> Blocks:
    """128 bytes → [N, 8, 32]: each 32 bytes give their low nibbles, then their high ones."""
    shifts = np.array([0, 4], dtype=np.uint8)[:, None]
    return ((packed.reshape(-1, 4, 1, 32) >> shifts) & np.uint8(15)).reshape(-1, 8, 32)


def _scaled_with_minimum(blocks: Blocks, codes: Blocks, out: Floats) -> None:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    groups[:] = codes
    groups *= (_half(blocks, 0) * scales)[:, :, None]
    groups -= (_half(blocks, 2) * minima)[:, :, None]


def _six_bit_pairs(packed: Blocks) -> tuple[Floats, Floats]:
    """12 bytes → 8 scales and 8 minima of 6 bits. [N, 8] each

    Bytes 0-3 and 4-7 hold the first four of each in their lower 6 bits; the last four have their lower 4 bits in the
    nibbles of bytes 8-11 and their upper 2 bits on top of bytes 0-3 and 4-7.
    """
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    top = np.uint8(0x30)
    scales = np.concatenate([first & np.uint8(63), (rest & np.uint8(15)) | ((first >> np.uint8(2)) & top)], axis=1)
    minima = np.concatenate([second & np.uint8(63), (rest >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)
