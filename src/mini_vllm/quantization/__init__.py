"""Number formats of weights: 16-bit floats and blocks of small integers with scales, to float32 and back.

Doors: `dequantize`, `convert`, `check_supported`. Knows nothing of files, names or models.
"""

from mini_vllm.quantization.registry import check_supported, convert, dequantize

__all__ = ["check_supported", "convert", "dequantize"]
