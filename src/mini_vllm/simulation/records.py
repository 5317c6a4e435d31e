"""What became of each request, and the figures of a whole run. Filled by whoever replays; read by reports.

This module must not know engines or clocks.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.types import StepStats, TokenDelta


@dataclass(slots=True)
class RequestRecord:
    """One request from its arrival to its end, in seconds from the beginning."""

    name: str
    arrival: float
    num_prompt: int
    max_tokens: int
    priority: int = 0
    key: str = ""
    replica: int = 0
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    finish_reason: str | None = None
    num_output: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    num_retries: int = 0  # sent to another replica because its own died
    longest_gap: float = 0.0  # between two tokens
    error: str | None = None
    text: str = ""
    num_resent: int = field(default=0, repr=False)  # tokens that a retry makes again and the client has already

    @property
    def ttft(self) -> float | None:
        """Time to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two."""
        if self.first_token is None or self.last_token is None or self.num_output < 2:
            return None
        return (self.last_token - self.first_token) / (self.num_output - 1)

    @property
    def latency(self) -> float | None:
        """From arrival to end."""
        return None if self.finished is None else self.finished - self.arrival

    def take(self, delta: TokenDelta, gaps: "array[float]") -> None:
        """Book the tokens of a delta; `gaps` gets the time since the token before each."""
        count = len(delta.token_ids)
        if self.num_resent:
            resent = min(count, self.num_resent)
            self.num_resent -= resent
            count -= resent
        if count:
            now = delta.time
            if self.last_token is None:
                self.first_token = now
            else:
                gap = now - self.last_token
                gaps.append(gap)
                if gap > self.longest_gap:
                    self.longest_gap = gap
            self.last_token = now
            self.num_output += count
        if delta.metrics is not None:
            self.num_cached = max(self.num_cached, delta.num_cached_tokens)
            if self.started is None:
                self.started = delta.metrics.started
        if delta.finish_reason is not None:
            self.num_preemptions += delta.num_preemptions
            self.finished, self.finish_reason, self.error = delta.time, delta.finish_reason, delta.error


@dataclass(slots=True)
class StepTotals:
    """Sums over the steps of one engine."""

    num_steps: int = 0
    num_sequences: int = 0
    num_tokens: int = 0
    busy_seconds: float = 0.0
    peak_blocks: int = 0
    blocks_total: int = 0
    preemptions: int = 0

    def add(self, stats: StepStats) -> None:
        """Count a step that computed something."""
        if not stats.num_sequences:
            return
        self.num_steps += 1
        self.num_sequences += stats.num_sequences
        self.num_tokens += stats.num_tokens
        self.busy_seconds += stats.seconds
        self.preemptions += stats.num_preempted
        self.blocks_total = stats.blocks_total
        if stats.blocks_used > self.peak_blocks:
            self.peak_blocks = stats.blocks_used


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request must keep to count as good, in seconds; None: anything goes."""

    ttft: float | None = None
    itl: float | None = None  # of the mean time between its tokens


@dataclass(slots=True, kw_only=True)
class Run:
    """A finished replay."""

    requests: list[RequestRecord]
    gaps: "array[float]"  # between consecutive tokens of a request, all requests together
    steps: list[StepTotals]  # one per replica
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    seconds: float = 0.0  # that the replay took, whatever its own clock says
    about: dict[str, Any] = field(default_factory=dict)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Of sorted values, by the nearest rank; None of none."""
    if not values:
        return None
    return values[min(len(values) - 1, max(0, round(share * (len(values) - 1))))]


def summarise(run: Run, slo: Slo) -> dict[str, Any]:
    """All figures of a run. Times in seconds, rates per second of its own clock."""
    done = [request for request in run.requests if request.finish_reason in ("stop", "length")]
    ends = [request.finished for request in run.requests if request.finished is not None]
    first = min((request.arrival for request in run.requests), default=0.0)
    makespan = max(ends, default=first) - first
    tokens = sum(request.num_output for request in run.requests)
    good = [request for request in done if is_good(request, slo)]
    steps = sum(total.num_steps for total in run.steps)
    peak = max(run.steps, key=lambda total: total.peak_blocks / max(1, total.blocks_total))
    return {
        "requests": len(run.requests),
        "finished": len(done),
        "failed": sum(request.error is not None for request in run.requests),
        "makespan": makespan,
        "prompt_tokens": sum(request.num_prompt for request in run.requests),
        "output_tokens": tokens,
        "output_tokens_per_second": tokens / makespan if makespan else 0.0,
        "requests_per_second": len(done) / makespan if makespan else 0.0,
        "steps": steps,
        "average_batch": sum(total.num_sequences for total in run.steps) / steps if steps else 0.0,
        "busy": sum(total.busy_seconds for total in run.steps) / (makespan * len(run.steps)) if makespan else 0.0,
        "preemptions": sum(total.preemptions for total in run.steps),
        "retries": sum(request.num_retries for request in run.requests),
        "peak_blocks": peak.peak_blocks,
        "blocks_total": peak.blocks_total,
        "prefix_hit_tokens": run.prefix_hit_tokens,
        "prefix_query_tokens": run.prefix_query_tokens,
        "ttft": _spread([request.ttft for request in run.requests if request.ttft is not None]),
        "itl": _spread(run.gaps),
        "tpot": _spread([request.tpot for request in run.requests if request.tpot is not None]),
        "latency": _spread([request.latency for request in done if request.latency is not None]),
        "slo_attainment": len(good) / len(run.requests) if run.requests else 0.0,
        "goodput": len(good) / makespan if makespan else 0.0,
    }


def is_good(request: RequestRecord, slo: Slo) -> bool:
    """Whether a finished request kept to its objectives."""
    if slo.ttft is not None and (request.ttft is None or request.ttft > slo.ttft):
        return False
    return slo.itl is None or request.tpot is None or request.tpot <= slo.itl


def _spread(values: Iterable[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered) if ordered else None
    return {
        "mean": mean,
        "p50": percentile(ordered, 0.5),
        "p90": percentile(ordered, 0.9),
        "p99": percentile(ordered, 0.99),
    }
