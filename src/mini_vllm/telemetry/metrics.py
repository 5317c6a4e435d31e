"""Every metric, once: its name, what it means and where its value comes from. JSON and Prometheus are two views of it.

These hold whenever the engine is idle, and to within a step while it runs:

    requests_accepted_total == sum of requests_finished_total + requests_running + requests_waiting
    time_to_first_token_seconds_count == requests that made a token
    output_tokens_total == time_to_first_token_seconds_count + inter_token_latency_seconds_count

A request here is one sequence: n choices of a prompt are n requests. Must not know HTTP or the library that prints.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mini_vllm.telemetry.histogram import Distribution
from mini_vllm.telemetry.latency import HISTOGRAMS
from mini_vllm.types import EngineStats

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known at one moment."""

    stats: EngineStats
    latencies: Mapping[str, Distribution]
    answers: Mapping[Labels, int] = field(default_factory=dict)  # (method, route, status) -> HTTP answers
    memory_bytes: int = 0
    version: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter or a gauge; with labels, one value for each combination of them."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    read: Callable[[Reading], float | Mapping[Labels, float]]
    labels: Labels = ()


METRICS = (
    Metric("requests_accepted_total", "counter", "Requests taken into the queue.", lambda r: r.stats.accepted),
    Metric("requests_rejected_total", "counter", "Requests refused for a full queue.", lambda r: r.stats.rejected),
    Metric(
        "requests_finished_total",
        "counter",
        "Requests that ended, by how.",
        lambda r: {
            ("stop",): r.stats.finished_stop,
            ("length",): r.stats.finished_length,
            ("abort",): r.stats.finished_abort,
            ("error",): r.stats.finished_error,
        },
        ("reason",),
    ),
    Metric("requests_running", "gauge", "Requests that are being computed.", lambda r: r.stats.running),
    Metric("requests_waiting", "gauge", "Requests in the queue.", lambda r: r.stats.waiting),
    Metric("preemptions_total", "counter", "Times a request lost its blocks.", lambda r: r.stats.preemptions),
    Metric("prompt_tokens_total", "counter", "Tokens of prompts that were read.", lambda r: r.stats.prompt_tokens),
    Metric("output_tokens_total", "counter", "Tokens generated.", lambda r: r.stats.output_tokens),
    Metric(
        "prefix_query_tokens_total",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        lambda r: r.stats.prefix_query_tokens,
    ),
    Metric("prefix_hit_tokens_total", "counter", "Prompt tokens found there.", lambda r: r.stats.prefix_hit_tokens),
    Metric("target_forwards_total", "counter", "Steps of a sequence that chose tokens.", lambda r: r.stats.forwards),
    Metric("drafts_proposed_total", "counter", "Guessed tokens that were verified.", lambda r: r.stats.drafts),
    Metric(
        "drafts_accepted_total",
        "counter",
        "Guessed tokens that stood, by their place among the guesses of a step.",
        lambda r: {(str(at),): count for at, count in enumerate(r.stats.drafts_accepted_at)},
        ("position",),
    ),
    Metric("steps_total", "counter", "Steps of the engine.", lambda r: r.stats.steps),
    Metric(
        "step_sequences",
        "gauge",
        "Sequences in the latest step; 0 when idle.",
        lambda r: r.stats.last_step.num_sequences if r.stats.last_step and r.stats.running else 0,
    ),
    Metric(
        "kv_cache_blocks",
        "gauge",
        "Blocks of the KV cache: used by running requests, free but holding a prefix, or free.",
        lambda r: {
            ("used",): r.stats.blocks_used,
            ("cached",): r.stats.blocks_cached,
            ("free",): r.stats.blocks_total - r.stats.blocks_used - r.stats.blocks_cached,
        },
        ("state",),
    ),
    Metric("uptime_seconds", "gauge", "Time since the engine started.", lambda r: r.stats.uptime_seconds),
    Metric("memory_resident_bytes", "gauge", "Memory that this process holds.", lambda r: r.memory_bytes),
    Metric("http_answers_total", "counter", "HTTP answers.", lambda r: r.answers, ("method", "route", "status")),
    Metric(
        "build_info", "gauge", "1, with what runs as labels.", lambda r: {(r.version, r.model): 1}, ("version", "model")
    ),
)


class Metrics:
    """Reads all metrics from their sources, and counts HTTP answers."""

    def __init__(self, read: Callable[[Mapping[Labels, int]], Reading]) -> None:
        self._read = read
        self._answers: Counter[Labels] = Counter()

    def count_answer(self, method: str, route: str, status: int) -> None:
        """One HTTP answer; `route` is the path's pattern, so that there are few of them."""
        self._answers[method, route, str(status)] += 1

    def as_json(self) -> dict[str, Any]:
        """By name: a number; by label value where there are labels; a summary for histograms, in seconds."""
        reading = self._read(dict(self._answers))
        found: dict[str, Any] = {metric.name: _plain(metric.read(reading)) for metric in METRICS}
        return found | {name: _summary(reading.latencies[name]) for name in HISTOGRAMS}

    def as_prometheus(self) -> bytes:
        """Text exposition format 0.0.4."""
        from mini_vllm.telemetry.prometheus import expose

        return expose(self._read(dict(self._answers)))


def _plain(value: float | Mapping[Labels, float]) -> Any:
    return {" ".join(labels): each for labels, each in value.items()} if isinstance(value, Mapping) else value


def _summary(found: Distribution) -> dict[str, Any]:
    quantiles = {name: found.quantile(share) for name, share in QUANTILES.items()}
    return {"count": found.count, "sum": found.total, **quantiles}
