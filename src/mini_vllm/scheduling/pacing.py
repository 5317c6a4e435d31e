"""How much prefill a step may hold beside sequences that decode, so that nobody's next token comes late.

Whoever decodes waits for the whole step. So a step's predicted time is kept to the target for the time between tokens
(`itl_target_ms`), by cutting prefill to what fits. This module must not know queues or blocks' contents.
"""

from mini_vllm.scheduling.costs import CostModel
from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.scheduling.step import PlanDraft

GRANULE = 8  # tokens: chunks are multiples of it, so that kernels' tiles of rows are full
MARGIN = 0.7  # of the target is aimed at: steps vary, and the way from a step to its reader takes time too


class Pacer:
    """Cuts chunks to a target time per step by a cost model.

    With nobody decoding there is no limit. Progress is certain: a step's first prefill gets a block, however slow.
    Beyond that a chunk need not end with a block: late in a long prompt a whole one may take a third of the target.
    """

    def __init__(self, costs: CostModel, *, target: float, block_size: int) -> None:
        """`target`: seconds per step."""
        self._costs = costs
        self._target = target * MARGIN
        self._block_size = block_size
        self._granule = min(GRANULE, block_size)

    def most(self, sequence: Sequence, num_tokens: int, draft: PlanDraft) -> int:
        """How many of `num_tokens` owed tokens to compute now: what fits, a block at least; 0 if no time is left."""
        if not draft.num_decodes or num_tokens <= 1:
            return num_tokens
        if self._seconds(sequence, num_tokens, draft) <= self._target:
            return num_tokens
        low, high = 0, -(-num_tokens // self._granule)  # granules: low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._seconds(sequence, middle * self._granule, draft) <= self._target:
                low = middle
            else:
                high = middle
        most = low * self._granule
        if most < self._block_size:
            most = 0 if draft.has_prefill else self._block_size
        return min(num_tokens, most)

    def _seconds(self, sequence: Sequence, num_tokens: int, draft: PlanDraft) -> float:
        samples = num_tokens == sequence.num_owed
        return self._costs.seconds(draft.load().with_chunk(sequence.num_computed, num_tokens, samples=samples))
