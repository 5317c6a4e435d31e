"""A model in one GGUF file (or several parts of one), read as if it were a Hugging Face checkpoint."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.errors import WeightsError
from mini_vllm.kernels.tensors import HostTensor
from mini_vllm.quantization import dequantize
from mini_vllm.weights.gguf import GGUFFile, TensorSpan
from mini_vllm.weights.gguf_config import read_config, read_family, read_generation_config
from mini_vllm.weights.gguf_metadata import read_tokenizer

_FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)


class GGUFCheckpoint:
    """See `weights.Checkpoint`. Values are read when asked for; `get` returns views where contents do not differ."""

    layout = "gguf"

    def __init__(self, path: Path) -> None:
        self._files = [GGUFFile(part) for part in part_paths(path)]
        self.path = path
        metadata = self._files[0].metadata
        self._family = read_family(path, metadata)[1]
        spans = self._collect()
        factors = {name: _factor_values(spans, name) for name in _FACTORS if name + ".weight" in spans}
        shapes = {name: span.shape for name, (_, span) in spans.items()}
        self.config: dict[str, Any] = read_config(path, metadata, shapes, factors)
        self.tokenizer_metadata = read_tokenizer(path, metadata)
        self.generation_config = read_generation_config(metadata, self.tokenizer_metadata or {})
        self.config |= _special_ids(self.generation_config)
        self._check_vocabulary()
        self._spans = {
            self._family.hf_name(name): found
            for name, found in spans.items()
            if name.removesuffix(".weight") not in _FACTORS
        }

    def names(self) -> frozenset[str]:
        """Hugging Face names of all tensors; one that the architecture does not have keeps its GGUF name."""
        return frozenset(self._spans)

    def get(self, name: str) -> HostTensor:
        """The tensor of that name."""
        if name not in self._spans:
            raise WeightsError(f"{self.path}: there is no tensor {name!r}")
        file, span = self._spans[name]
        tensor = HostTensor(name, span.format, span.shape, file.data(span))
        heads = self.config.get("num_attention_heads", 1)
        return self._family.hf_content(
            tensor, num_heads=heads, num_kv_heads=self.config.get("num_key_value_heads", heads)
        )

    def close(self) -> None:
        """Unmap the files once no view is held."""
        for file in self._files:
            file.close()

    def _collect(self) -> dict[str, tuple[GGUFFile, TensorSpan]]:
        spans: dict[str, tuple[GGUFFile, TensorSpan]] = {}
        for file in self._files:
            for name, span in file.tensors.items():
                if name in spans:
                    raise WeightsError(f"{file.path}: tensor {name!r} is also in {spans[name][0].path.name}")
                spans[name] = (file, span)
        return spans

    def _check_vocabulary(self) -> None:
        tokens = (self.tokenizer_metadata or {}).get("tokenizer.ggml.tokens", ())
        if len(tokens) > self.config["vocab_size"]:
            raise WeightsError(
                f"{self.path}: there are {len(tokens)} tokens but the embedding has {self.config['vocab_size']} rows"
            )


def part_paths(path: Path) -> list[Path]:
    """All files of a model that may be split as NAME-00001-of-00003.gguf; any part may be named."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, _, total = match.groups()
    parts = [path.with_name(f"{stem}-{index:05d}-of-{total}.gguf") for index in range(1, int(total) + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing or not parts:
        raise WeightsError(
            f"{path}: the model has {int(total)} parts and {', '.join(missing[:3]) or 'none'} is missing"
        )
    return parts


def _factor_values(spans: Mapping[str, tuple[GGUFFile, TensorSpan]], name: str) -> list[float]:
    file, span = spans[name + ".weight"]
    if len(span.shape) != 1 or span.shape[0] > 2**16:
        raise WeightsError(f"{file.path}: tensor {span.name!r} has the shape {list(span.shape)}; it must be a vector")
    values: list[float] = dequantize(HostTensor(span.name, span.format, span.shape, file.data(span))).tolist()
    return values


def _special_ids(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: generation_config[key] for key in ("bos_token_id", "eos_token_id") if key in generation_config}
