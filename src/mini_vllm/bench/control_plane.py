"""What the scheduler itself costs: plan() and commit() without any executor, at growing numbers of sequences.

Must not know models.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.kvcache import KVCache
from mini_vllm.scheduling import MeasuredCosts, Scheduler, Trace
from mini_vllm.types import Request, SamplingParams, SequenceOutput, StepResult

SIZES = (32, 256, 1024, 2048)
GOALS_MS = {256: 1.0, 2048: 8.0}
_STEPS, _PROMPT = 60, 64


def rows(sizes: tuple[int, ...] = SIZES) -> Iterator[dict[str, Any]]:
    """Milliseconds of plan() + commit() of a decode step of so many sequences, with costs learned and steps traced."""
    for size in sizes:
        times = sorted(decode_steps(size))
        median, best = statistics.median(times), times[0]
        goal = GOALS_MS.get(size)
        yield {
            "sequences": size,
            "median_ms": round(median, 3),
            "best_ms": round(best, 3),
            "us_per_sequence": round(1e3 * median / size, 3),
            "goal_ms": goal,
            "reached": None if goal is None else median <= goal,
        }


def decode_steps(size: int) -> Iterator[float]:
    """Milliseconds of each of some steps in which `size` sequences decode."""
    config = SchedulerConfig(max_num_seqs=size, max_num_batched_tokens=max(2048, 2 * size), max_waiting=size)
    cache = KVCache.from_config(CacheConfig(), num_blocks=20 * size)
    scheduler = Scheduler(config, cache, max_model_len=2048, costs=MeasuredCosts(), trace=Trace())
    for index in range(size):
        scheduler.add(
            Request(
                request_id=f"r{index}",
                parent_id=f"r{index}",
                prompt_token_ids=tuple(range(index * 1000, index * 1000 + _PROMPT)),
                params=SamplingParams(max_tokens=1000),
                max_tokens=1000,
            )
        )
    num_timed = 0
    while num_timed < _STEPS:
        begun = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter() - begun
        outputs = tuple([SequenceOutput(chunk.seq_id, (7,)) for chunk in plan.chunks if chunk.samples])
        begun = time.perf_counter()
        scheduler.commit(plan, StepResult(plan.step_id, outputs))
        if plan.num_tokens == len(plan.chunks) == size:
            num_timed += 1
            yield 1e3 * (planned + time.perf_counter() - begun)


def render(found: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [f"{'sequences':>9} {'median':>10} {'best':>10} {'each':>9}  goal"]
    for row in found:
        goal = "" if row["goal_ms"] is None else f"≤ {row['goal_ms']:g} ms: {'yes' if row['reached'] else 'NO'}"
        lines.append(
            f"{row['sequences']:>9} {row['median_ms']:>7.3f} ms {row['best_ms']:>7.3f} ms "
            f"{row['us_per_sequence']:>6.2f} µs  {goal}".rstrip()
        )
    return "\n".join(lines) + "\n"
