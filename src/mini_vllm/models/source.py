"""Where a model's weights come from: `Survey` checks a checkpoint without reading it, `Loader` makes the weights.

Both have the same face, so a model is built twice: once to learn of every missing, unexpected and mis-shaped tensor
before any work is done, and once in earnest, tensor by tensor. Must not know: file formats, architectures.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mini_vllm.errors import WeightsError
from mini_vllm.kernels.table import Device, Weight
from mini_vllm.kernels.tensors import FORMATS, HostTensor
from mini_vllm.layers import RopeSpec, rope_tables

_DTYPE_FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Checkpoint(Protocol):
    """What is needed of `weights.open_checkpoint(path)`."""

    path: Path
    layout: str  # "hf" or "gguf"
    config: dict[str, Any]

    def names(self) -> frozenset[str]:
        """All tensors that hold weights, by their Hugging Face names."""

    def get(self, name: str) -> HostTensor:
        """One tensor, a view of the file where possible."""


class WeightSource(Protocol):
    """What a model's `build` asks for. Names end before `.weight` and `.bias` where a product has both."""

    def linear(self, names: Sequence[str], sizes: Sequence[int], width: int, *, bias: bool = False) -> Weight:
        """Products [sizes[i], width], fused along their rows."""

    def conv1d(self, name: str, size: int, width: int) -> Weight:
        """A product with bias that Hugging Face stores transposed, [width, size] (GPT-2)."""

    def vector(self, name: str, size: int, offset: float = 0.0) -> Weight:
        """A norm weight or bias, plus offset."""

    def embedding(self, name: str, shape: tuple[int, int]) -> Weight:
        """A table [V, H]."""

    def rope(self, spec: RopeSpec, max_len: int) -> Weight:
        """cos and sin tables."""

    def same(self, name: str, other: str) -> bool:
        """Whether `name` needs no weight of its own: the file lacks it, or holds a copy of `other`."""


class Names:
    """The tensors of a checkpoint, and which of them were asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._names = checkpoint.names()
        self._used: set[str] = set()

    def find(self, name: str) -> HostTensor | None:
        """The tensor, or None; remembers that it was asked for."""
        if name not in self._names:
            return None
        self._used.add(name)
        return self._checkpoint.get(name)

    def same(self, name: str, other: str) -> bool:
        """See `WeightSource.same`."""
        first, second = self.find(name), self.find(other)
        if first is None or second is None:
            return first is None
        return first.format == second.format and np.array_equal(first.data, second.data)

    def unexpected(self) -> list[str]:
        """Tensors that nobody asked for."""
        return sorted(self._names - self._used)


class Survey:
    """Reads only names and shapes, and gives no weights."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._names = Names(checkpoint)
        self._path = checkpoint.path
        self._transposed = checkpoint.layout == "hf"
        self._missing: list[str] = []
        self._misshapen: list[str] = []
        self.num_parameters = 0

    def linear(self, names: Sequence[str], sizes: Sequence[int], width: int, *, bias: bool = False) -> Weight:
        """See `WeightSource.linear`."""
        for name, size in zip(names, sizes, strict=True):
            self._check(f"{name}.weight", (size, width))
            if bias:
                self._check(f"{name}.bias", (size,))

    def conv1d(self, name: str, size: int, width: int) -> Weight:
        """See `WeightSource.conv1d`."""
        self._check(f"{name}.weight", (width, size) if self._transposed else (size, width))
        self._check(f"{name}.bias", (size,))

    def vector(self, name: str, size: int, offset: float = 0.0) -> Weight:
        """See `WeightSource.vector`."""
        self._check(name, (size,))

    def embedding(self, name: str, shape: tuple[int, int]) -> Weight:
        """See `WeightSource.embedding`."""
        self._check(name, shape)

    def rope(self, spec: RopeSpec, max_len: int) -> Weight:
        """See `WeightSource.rope`."""

    def same(self, name: str, other: str) -> bool:
        """See `WeightSource.same`."""
        return self._names.same(name, other)

    def raise_problems(self) -> None:
        """One `WeightsError` that names every kind of problem found."""
        problems = [
            f"{len(found)} {kind} ({_first_few(found)})"
            for kind, found in (
                ("missing", self._missing),
                ("mis-shaped", self._misshapen),
                ("unexpected", self._names.unexpected()),
            )
            if found
        ]
        if problems:
            raise WeightsError(
                f"the tensors of {self._path} do not fit its config.json: {'; '.join(problems)}; "
                "get the model's files again"
            )

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = self._names.find(name)
        if tensor is None:
            hint = " although tie_word_embeddings is false" if name == "lm_head.weight" else ""
            self._missing.append(name + hint)
        elif tensor.shape != shape:
            self._misshapen.append(f"{name} is {list(tensor.shape)}, not {list(shape)}")
        else:
            self.num_parameters += tensor.num_elements


class Loader:
    """Makes weights on a device. At most one product's tensors are held beside what the device keeps.

    `dtype` "auto" keeps the file's number formats, another converts. A format that the device cannot keep becomes
    float32. Fused parts may differ in format. Norms and biases are always float32.
    """

    def __init__(self, checkpoint: Checkpoint, device: Device, dtype: str) -> None:
        self._names = Names(checkpoint)
        self._device = device
        self._dtype = dtype
        self._transposed = checkpoint.layout == "hf"
        self.weight_bytes = 0

    def linear(self, names: Sequence[str], sizes: Sequence[int], width: int, *, bias: bool = False) -> Weight:
        """See `WeightSource.linear`."""
        parts = [self._keepable(self._take(f"{name}.weight")) for name in names]
        biases = [self._float32(f"{name}.bias") for name in names] if bias else None
        return self._device.linear(self._counted(parts), biases)

    def conv1d(self, name: str, size: int, width: int) -> Weight:
        """See `WeightSource.conv1d`."""
        tensor = self._take(f"{name}.weight")
        if self._transposed:
            tensor = transpose(tensor)
        return self._device.linear(self._counted([self._keepable(tensor)]), [self._float32(f"{name}.bias")])

    def vector(self, name: str, size: int, offset: float = 0.0) -> Weight:
        """See `WeightSource.vector`."""
        return self._device.vector(self._float32(name), offset)

    def embedding(self, name: str, shape: tuple[int, int]) -> Weight:
        """See `WeightSource.embedding`."""
        return self._device.embedding(*self._counted([self._keepable(self._take(name))]))

    def rope(self, spec: RopeSpec, max_len: int) -> Weight:
        """See `WeightSource.rope`."""
        return self._device.rope(*rope_tables(spec, max_len=max_len))

    def same(self, name: str, other: str) -> bool:
        """See `WeightSource.same`."""
        return self._names.same(name, other)

    def _take(self, name: str) -> HostTensor:
        tensor = self._names.find(name)
        assert tensor is not None, f"{name}: the survey found it"
        return tensor

    def _keepable(self, tensor: HostTensor) -> HostTensor:
        return convert(tensor, kept_format(tensor.format, self._device, self._dtype))

    def _float32(self, name: str) -> HostTensor:
        return self._counted([convert(self._take(name), "f32")])[0]

    def _counted(self, tensors: list[HostTensor]) -> list[HostTensor]:
        self.weight_bytes += sum(tensor.data.nbytes for tensor in tensors)
        return tensors


def kept_format(file_format: str, device: Device, dtype: str) -> str:
    """The number format in which a device keeps a product's weights of the file, see `Loader`."""
    target = _DTYPE_FORMATS.get(dtype, file_format)
    return target if target in device.weight_formats else "f32"


def convert(tensor: HostTensor, target: str) -> HostTensor:
    """The tensor in another number format; itself when it has it already."""
    if tensor.format == target:
        return tensor
    from mini_vllm import quantization

    return quantization.convert(tensor, target)


def transpose(tensor: HostTensor) -> HostTensor:
    """[N, K] → [K, N] for formats of whole numbers of bytes per element."""
    elements, size = FORMATS[tensor.format]
    assert elements == 1, tensor.format
    matrix = np.frombuffer(tensor.data, dtype=f"u{size}").reshape(tensor.shape)
    data = np.ascontiguousarray(matrix.T).view(np.uint8).reshape(-1)
    return HostTensor(name=tensor.name, format=tensor.format, shape=tensor.shape[::-1], data=data)


def _first_few(items: list[str], limit: int = 5) -> str:
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
