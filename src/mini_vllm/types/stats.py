"""Measurements, as values. Rates and percentiles are computed by whoever reads them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One scheduler step."""

    step_id: int
    kind: str  # "prefill", "decode", "mixed" or "idle": a label for people
    num_tokens: int
    num_sequences: int
    num_waiting: int
    num_running: int
    num_preempted: int
    blocks_used: int  # referenced by running sequences
    blocks_cached: int  # free, but still holding a prefix
    blocks_total: int
    prefix_hit_tokens: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's state now, and its counters since start. Counters never decrease.

    accepted == finished_stop + finished_length + finished_abort + finished_error + running + waiting.
    """

    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0
    steps: int = 0
    accepted: int = 0
    finished_stop: int = 0
    finished_length: int = 0
    finished_abort: int = 0
    finished_error: int = 0
    rejected: int = 0  # never accepted, because the queue was full
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    forwards: int = 0  # of one sequence, that chose a token: without guesses as many as output tokens
    drafts: int = 0  # guesses that were verified
    drafts_accepted: int = 0
    drafts_accepted_at: tuple[int, ...] = ()  # by position in the step: 0 is the first guess
    last_step: StepStats | None = None
    uptime_seconds: float = 0.0
