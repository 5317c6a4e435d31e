"""Models as plain functions over the op table, their registry, and loading. Only the fallback needs torch."""

from mini_vllm.models.loading import LoadedModel, load_model
from mini_vllm.models.registry import NOT_NATIVE, model_info, native_architectures, refuse_impossible
from mini_vllm.models.source import Checkpoint
from mini_vllm.models.spec import ModelInfo

__all__ = [
    "NOT_NATIVE",
    "Checkpoint",
    "LoadedModel",
    "ModelInfo",
    "load_model",
    "model_info",
    "native_architectures",
    "refuse_impossible",
]
