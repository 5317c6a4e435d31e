"""A plan while it is being made: the budget that is left, and chunks that can still be taken back.

This module must not know why a sequence is served or refused.
"""

from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.types import Admission, Chunk, StepPlan


class PlanDraft:
    """What the next step will do, so far."""

    def __init__(self, *, budget: int) -> None:
        self.budget = budget  # tokens that this step may still compute
        self.num_owing_one = 0  # sequences that owe one token and have not been asked yet
        self.num_hit_tokens = 0  # prompt tokens of sequences first started here that were in the prefix cache
        self.num_promised = 0  # blocks that running sequences still lack for their known tokens
        self.num_preempted = 0
        self.evicted: list[int] = []  # sequences whose block tables were closed
        self._chunks: dict[int, Chunk] = {}
        self._admitted: list[Admission] = []

    def serve(self, chunk: Chunk) -> None:
        """Give a sequence its chunk, out of the budget."""
        self._chunks[chunk.seq_id] = chunk
        self.budget -= len(chunk.token_ids)

    def admit(self, sequence: Sequence) -> None:
        """Tell the executor about a sequence, once in its life."""
        if sequence.is_known:
            return
        sequence.is_known = True
        request = sequence.request
        self._admitted.append(
            Admission(
                seq_id=sequence.seq_id,
                prompt_token_ids=request.prompt_token_ids,
                params=request.params,
                eos_token_ids=request.eos_token_ids,
                stop_token_ids=request.stop_token_ids,
                noise_key=request.noise_key,
                pooling=request.pooling,
            )
        )

    def take_back(self, seq_id: int) -> None:
        """A preempted sequence loses the chunk that it may already have, and the budget returns."""
        self.num_preempted += 1
        self.evicted.append(seq_id)
        chunk = self._chunks.pop(seq_id, None)
        if chunk is not None:
            self.budget += len(chunk.token_ids)

    def freeze(self, step_id: int, *, released: tuple[int, ...]) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step_id=step_id,
            chunks=tuple(self._chunks.values()),
            admitted=tuple(self._admitted),
            evicted=tuple(self.evicted),
            released=released,
        )
