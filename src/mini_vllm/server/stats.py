"""Rates and memory for `/stats`. Must not know HTTP."""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mini_vllm.server.protocol.models import Stats
from mini_vllm.types import EngineStats

WINDOW_SECONDS = 5.0
MEGABYTE = 2**20


class StatsView:
    """The engine's counters as the numbers that people watch. `sample` must be called about once a second.

    `facts` says what computes: keys `instruction_set` and `threads`, absent where the engine does not tell.
    """

    def __init__(
        self,
        engine_stats: Callable[[], EngineStats],
        clock: Callable[[], float] = time.monotonic,
        *,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._engine_stats = engine_stats
        self._facts = facts
        self._clock = clock
        self._started = clock()
        self._samples: deque[tuple[float, int]] = deque()  # (time, output tokens), oldest first

    def sample(self) -> None:
        """Remember how many tokens there are now."""
        now = self._clock()
        while len(self._samples) > 1 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()
        self._samples.append((now, self._engine_stats().output_tokens))

    def read(self) -> Stats:
        """Everything, as of now."""
        stats, facts = self._engine_stats(), self._facts()
        used, total = process_memory(), machine_memory()
        is_busy = stats.running > 0 and stats.last_step is not None
        return Stats(
            active_requests=stats.running,
            queue_depth=stats.waiting,
            tokens_per_second=round(self._rate(stats.output_tokens), 2),
            batch_size=stats.last_step.num_sequences if is_busy and stats.last_step else 0,
            gpu_memory_used_mb=round(used / MEGABYTE, 1),
            gpu_memory_total_mb=round(total / MEGABYTE, 1),
            gpu_memory_pct=round(100 * used / total, 2) if total else 0.0,
            total_tokens_generated=stats.output_tokens,
            uptime_seconds=round(self._clock() - self._started, 3),
            kv_blocks_used=stats.blocks_used,
            kv_blocks_cached=stats.blocks_cached,
            kv_blocks_total=stats.blocks_total,
            preemptions=stats.preemptions,
            requests_accepted=stats.accepted,
            requests_finished_stop=stats.finished_stop,
            requests_finished_length=stats.finished_length,
            requests_finished_abort=stats.finished_abort,
            requests_finished_error=stats.finished_error,
            prompt_tokens=stats.prompt_tokens,
            prefix_hit_tokens=stats.prefix_hit_tokens,
            steps=stats.steps,
            instruction_set=facts.get("instruction_set"),
            threads=int(facts["threads"]) if "threads" in facts else None,
        )

    def _rate(self, num_tokens: int) -> float:
        if not self._samples:
            return 0.0
        then, num_then = self._samples[0]
        elapsed = self._clock() - then
        return (num_tokens - num_then) / elapsed if elapsed > 0 else 0.0


def process_memory() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def machine_memory() -> int:
    """Bytes of memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
