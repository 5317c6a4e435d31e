"""Runs plans: inputs, model, sampler, outputs. Doors: `LocalExecutor`, `load_executor`."""

from mini_vllm.runner.executor import LocalExecutor
from mini_vllm.runner.loading import load_executor
from mini_vllm.runner.model_runner import ModelRunner

__all__ = ["LocalExecutor", "ModelRunner", "load_executor"]
