"""Counters of a scheduler since its start. They never decrease."""

from dataclasses import dataclass, field
from typing import Any

from mini_vllm.scheduling.sequence import Sequence
from mini_vllm.types import Chunk, EngineStats, FinishReason


def _none_finished() -> dict[FinishReason, int]:
    return {"stop": 0, "length": 0, "abort": 0, "error": 0}


@dataclass(slots=True)
class Counters:
    """accepted == sum of finished + sequences that run or wait."""

    steps: int = 0
    accepted: int = 0
    finished: dict[FinishReason, int] = field(default_factory=_none_finished)
    rejected: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0  # of sequences whose prompt has been read to its end
    output_tokens: int = 0
    prefix_query_tokens: int = 0  # prompt tokens looked up, when a sequence is started for the first time
    prefix_hit_tokens: int = 0  # of those, found
    forwards: int = 0
    drafts: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by position: 0 is the first guess of a step

    def count(self, chunk: Chunk, sequence: Sequence, *, num_new: int) -> None:
        """A chunk has given its sequence `num_new` tokens."""
        self.output_tokens += num_new
        self.forwards += chunk.samples
        if len(sequence.token_ids) - num_new == sequence.num_prompt:
            self.prompt_tokens += sequence.num_prompt
        if chunk.num_drafts:
            self.drafts += chunk.num_drafts
            accepted = sequence.last_accepted
            self.accepted_at += [0] * (accepted - len(self.accepted_at))
            for position in range(accepted):
                self.accepted_at[position] += 1

    def with_state(self, **state: Any) -> EngineStats:
        """The engine's stats: these counters, and its state now."""
        return EngineStats(
            steps=self.steps,
            accepted=self.accepted,
            finished_stop=self.finished["stop"],
            finished_length=self.finished["length"],
            finished_abort=self.finished["abort"],
            finished_error=self.finished["error"],
            rejected=self.rejected,
            preemptions=self.preemptions,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            prefix_query_tokens=self.prefix_query_tokens,
            prefix_hit_tokens=self.prefix_hit_tokens,
            forwards=self.forwards,
            drafts=self.drafts,
            drafts_accepted=sum(self.accepted_at),
            drafts_accepted_at=tuple(self.accepted_at),
            **state,
        )
