"""The executor in this process: the door that the engine calls with a plan.

Must not know requests, text or the scheduler's reasons.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from mini_vllm.models import ModelInfo
from mini_vllm.runner.model_runner import ModelRunner
from mini_vllm.types import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExecutor:
    """Runs plans on this machine. One step at a time; not thread-safe."""

    runner: ModelRunner
    info: ModelInfo
    num_blocks: int
    block_size: int
    max_model_len: int  # tokens
    description: dict[str, str]  # which instruction set, threads and number formats run, for people
    clock: Callable[[], float] = time.perf_counter

    def run(self, plan: StepPlan) -> StepResult:
        """Do exactly what the plan says."""
        begin = self.clock()
        outputs = self.runner.run(plan)
        return StepResult(step_id=plan.step_id, outputs=outputs, seconds=self.clock() - begin)

    def progress(self) -> int:
        """A number that changes with every op, or every layer, of a running step. May be called from any thread."""
        return self.runner.progress()

    def op_seconds(self) -> dict[str, float]:
        """Wall time by kind of op since the last call, where the program can tell; the first call begins to measure."""
        return self.runner.op_seconds()

    def reset(self) -> None:
        """Forget every sequence, as after construction. Weights and KV memory stay."""
        self.runner.clear()
