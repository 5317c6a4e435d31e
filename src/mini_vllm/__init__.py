"""mini-vLLM: a small, readable and fast LLM inference engine.

Everything below is imported when it is first used, so that `import mini_vllm` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_vllm import errors, weights
    from mini_vllm.config import EngineConfig
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.engine.llm import LLM
    from mini_vllm.types import CompletionOutput, RequestOutput, SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "errors",
    "weights",
]

_HOMES = {
    "LLM": "mini_vllm.engine.llm",
    "AsyncLLM": "mini_vllm.engine.async_llm",
    "CompletionOutput": "mini_vllm.types",
    "EngineConfig": "mini_vllm.config",
    "RequestOutput": "mini_vllm.types",
    "SamplingParams": "mini_vllm.types",
    "StructuredOutputsParams": "mini_vllm.types",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in __all__:
        value = import_module(f"mini_vllm.{name}")
    else:
        raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
