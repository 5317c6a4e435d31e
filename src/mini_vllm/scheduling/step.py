"""A plan while it is being made: the budget that is left, and chunks that can still be taken back.

This module must not know why a sequence is served or refused.
"""

from mini_vllm.scheduling.costs import StepLoad
from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.scheduling.trace import WaitReason
from mini_vllm.types import Admission, Chunk, StepPlan


class PlanDraft:
    """What the next step will do, so far."""

    def __init__(self, *, budget: int) -> None:
        self.budget = budget  # tokens that this step may still compute
        self.num_owing_one = 0  # sequences that owe one token and have not been asked yet
        self.num_hit_tokens = 0  # prompt tokens of sequences first started here that were in the prefix cache
        self.num_promised = 0  # blocks that running sequences still lack for their known tokens
        self.num_preempted = 0
        self.num_decodes = 0  # sequences that owe one token and were served
        self.has_prefill = False  # whether somebody was served more than one token
        self.evicted: list[int] = []  # sequences whose block tables were closed
        self.preempted: list[tuple[int, int]] = []  # victim, for whom
        self.waits: list[tuple[int, WaitReason]] = []  # who got nothing, and why
        self.num_pending = 0  # of them, those that wait for a prefix
        self.num_waiting = self.num_running = 0  # when the plan was made, as all these:
        self.blocks_used = self.blocks_cached = 0
        self.blocks_shared = 0  # held by more than one sequence
        self.halt: WaitReason | None = None  # why nobody else was admitted
        self.started: list[tuple[int, int]] = []  # who got a row, tokens found in the cache
        self._load: StepLoad | None = None  # of the chunks, once somebody has asked
        self._chunks: dict[int, Chunk] = {}
        self._admitted: list[Admission] = []

    def serve(self, chunk: Chunk) -> None:
        """Give a sequence its chunk, out of the budget."""
        self._chunks[chunk.seq_id] = chunk
        self.budget -= len(chunk.token_ids)

    def note_prefill(self, seq_id: int) -> None:
        """The chunk just served is prefill: it counts towards the time that the step has for that."""
        chunk = self._chunks[seq_id]
        self.has_prefill = True
        if self._load is not None:
            self._load = self._load.with_chunk(chunk.start, len(chunk.token_ids), samples=chunk.samples)

    def wait_for_prefix(self, seq_id: int) -> None:
        """Its next block is being computed by another; those behind it may start."""
        self.num_pending += 1
        self.waits.append((seq_id, "prefix"))

    def refuse(self, seq_id: int, reason: WaitReason) -> None:
        """The first in the queue cannot start, so nobody behind it does."""
        self.waits.append((seq_id, reason))
        self.halt = reason

    def load(self) -> StepLoad:
        """What the step computes so far. Ask only when all that owe one token were served."""
        if self._load is None:
            self._load = StepLoad.of(self._chunks.values())
        return self._load

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
                cache_salt=request.cache_salt,
            )
        )

    def take_back(self, seq_id: int, *, asker: int) -> None:
        """A preempted sequence loses the chunk that it may already have, and the budget returns."""
        self.num_preempted += 1
        self.evicted.append(seq_id)
        self.preempted.append((seq_id, asker))
        self._load = None
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
