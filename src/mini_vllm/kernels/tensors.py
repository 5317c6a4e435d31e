"""A tensor as it lies in a file: bytes, a number format and a shape. Produced by weights/, consumed by op tables."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Name → (elements per block, bytes per block). The quantised names are GGUF's.
FORMATS: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A row-major tensor in CPU memory, often a view of a mapped file.

    `shape` is in elements, outermost first ([out_features, in_features] for a linear layer). `data` is the raw
    little-endian bytes, uint8 [num_bytes]; for quantised formats, whole blocks along the last dimension.
    """

    name: str
    format: str  # a key of FORMATS
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        count = 1
        for size in self.shape:
            count *= size
        return count
