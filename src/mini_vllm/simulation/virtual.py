"""A clock that only moves when told, and an executor that costs time instead of computing.

This module must not know traffic or reports.
"""

from mini_vllm.scheduling import CostModel, StepLoad
from mini_vllm.types import SequenceOutput, StepPlan, StepResult


class VirtualClock:
    """Seconds since the beginning of a simulation."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """What the scheduler reads."""
        return self.now


class SimulatedExecutor:
    """Says how long a plan takes by a cost model, and answers with made-up tokens.

    The token at position p of a request is `noise_key + p - prompt length`: unique to the request, and known
    beforehand, so that the next turn of a conversation can hold it and find it in the prefix cache.
    """

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self.slowdown = 1.0  # steps take this many times as long
        self._bases: dict[int, int] = {}  # seq_id -> its first output token less its position

    def run(self, plan: StepPlan) -> StepResult:
        """Tokens for all chunks that are sampled, and what the step takes."""
        for seq_id in plan.released:
            del self._bases[seq_id]
        for admission in plan.admitted:
            self._bases[admission.seq_id] = admission.noise_key - len(admission.prompt_token_ids)
        bases = self._bases
        outputs = [
            SequenceOutput(chunk.seq_id, (bases[chunk.seq_id] + chunk.start + len(chunk.token_ids),))
            for chunk in plan.chunks
            if chunk.samples
        ]
        seconds = self.costs.seconds(StepLoad.of(plan.chunks)) * self.slowdown if plan.chunks else 0.0
        return StepResult(plan.step_id, tuple(outputs), seconds)

    def reset(self) -> None:
        """Forget every sequence."""
        self._bases.clear()
