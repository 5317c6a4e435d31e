"""Models as plain functions over the op table, their registry, and loading. Only the fallback needs torch."""

from pathlib import Path
from typing import TYPE_CHECKING

from mini_vllm.errors import INSTALL_TORCH, MissingDependencyError
from mini_vllm.models.loading import LoadedModel, WeightSummary, greedy_head_bytes, load_model, summarise_weights
from mini_vllm.models.registry import NOT_NATIVE, model_info, native_architectures, refuse_impossible
from mini_vllm.models.source import Checkpoint
from mini_vllm.models.spec import ModelInfo

if TYPE_CHECKING:
    from mini_vllm.models.hf import FallbackModel

__all__ = [
    "NOT_NATIVE",
    "Checkpoint",
    "LoadedModel",
    "ModelInfo",
    "WeightSummary",
    "greedy_head_bytes",
    "load_fallback",
    "load_model",
    "model_info",
    "native_architectures",
    "refuse_impossible",
    "summarise_weights",
]


def load_fallback(
    path: str | Path, *, device: str = "cpu", dtype: str = "auto", threads: int | None = None
) -> "FallbackModel":
    """Any other causal LM through transformers' own modules; see `mini_vllm.models.hf.load_fallback`."""
    try:
        from mini_vllm.models import hf
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise MissingDependencyError(f"the hf executor needs {error.name}: {INSTALL_TORCH}") from error
    return hf.load_fallback(path, device=device, dtype=dtype, threads=threads)
