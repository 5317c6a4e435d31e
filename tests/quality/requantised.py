"""A checkpoint with its products in another number format, quantised by the `gguf` package rather than by us."""

import gguf
import numpy as np

from mini_vllm import quantization
from mini_vllm.kernels.tensors import HostTensor

QUANTISED = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1,
}


def quantise(tensor: HostTensor, form: str) -> HostTensor:
    """The tensor in a format of `QUANTISED`."""
    values = quantization.dequantize(tensor)
    blocks = np.ascontiguousarray(gguf.quantize(values, QUANTISED[form]))
    return HostTensor(tensor.name, form, tensor.shape, blocks.reshape(-1).view(np.uint8))


class Requantised:
    """`weights.Checkpoint`: every matrix of another checkpoint in `form`. Vectors and `keep` stay as they are."""

    def __init__(self, checkpoint, form: str, *, keep: tuple[str, ...] = ()) -> None:
        self.path, self.layout = checkpoint.path, checkpoint.layout
        self.config, self.generation_config = checkpoint.config, checkpoint.generation_config
        self.tokenizer_metadata = checkpoint.tokenizer_metadata
        self._checkpoint, self._form, self._keep = checkpoint, form, keep

    def names(self) -> frozenset[str]:
        return self._checkpoint.names()

    def get(self, name: str) -> HostTensor:
        tensor = self._checkpoint.get(name)
        if len(tensor.shape) < 2 or name in self._keep or tensor.format == self._form:
            return tensor
        return quantise(tensor, self._form)

    def close(self) -> None:
        """The checkpoint below belongs to whoever opened it."""
