"""Writes a scheduler's steps into a trace. This module must not know why anything was decided."""

from mini_vllm.kvcache import KVCache
from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.scheduling.step import PlanDraft
from mini_vllm.scheduling.trace import RequestRecord, StepRecord, Trace
from mini_vllm.types import StepPlan, StepStats


class Recorder:
    """One scheduler's hand in a trace. A new scheduler starts the trace anew: its sequences count from 0."""

    def __init__(self, trace: Trace, cache: KVCache) -> None:
        self._trace = trace
        self._cache = cache
        self._ended: list[tuple[int, str]] = []  # since the last step
        self._num_evicted = 0  # cached blocks overwritten until the last step
        trace.begin()

    def arrived(self, sequence: Sequence) -> None:
        """A request was accepted."""
        request = sequence.request
        self._trace.request(
            RequestRecord(
                seq_id=sequence.seq_id,
                request_id=request.request_id,
                parent_id=request.parent_id,
                arrival=request.arrival,
                num_prompt=sequence.num_prompt,
                max_tokens=request.max_tokens,
                priority=request.priority,
                key=request.key,
            )
        )

    def ended(self, sequence: Sequence) -> None:
        """A sequence has its finish reason."""
        assert sequence.finish_reason is not None
        self._ended.append((sequence.seq_id, sequence.finish_reason))

    def step(self, plan: StepPlan, stats: StepStats, draft: PlanDraft, *, began: float) -> None:
        """A step was committed."""
        before, self._num_evicted = self._num_evicted, self._cache.num_evicted
        record = StepRecord(
            stats=stats,
            began=began,
            chunks=tuple(
                [(chunk.seq_id, chunk.start, len(chunk.token_ids), chunk.num_drafts) for chunk in plan.chunks]
            ),
            waits=tuple(draft.waits),
            halt=draft.halt,
            started=tuple(draft.started),
            preempted=tuple(draft.preempted),
            finished=tuple(self._ended),
            blocks_shared=draft.blocks_shared,
            blocks_evicted=self._num_evicted - before,
        )
        self._ended.clear()
        self._trace.step(record)
