"""A record of every step: who got how many tokens, who waited and why, and what became of the cache's blocks.

Bounded, and cheap to write: a few tuples a step. Reading, exporting and explaining happen elsewhere (`explain.py`,
`export.py`). This module must not know sequences or the scheduler.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Literal

from mini_vllm.types import StepStats

WaitReason = Literal["blocks", "rows", "budget", "itl", "prefix", "batch", "preemption"]
WAIT_REASONS: dict[str, str] = {
    "blocks": "the KV cache had too few free blocks",
    "rows": "all rows were taken (max_num_seqs)",
    "budget": "the step's token budget was used up (max_num_batched_tokens)",
    "itl": "more prefill would have slowed down the sequences that decode (itl_target_ms)",
    "prefix": "another request was computing the same prefix",
    "batch": "the batch before it had not ended (static batching)",
    "preemption": "running sequences had just lost blocks, so nobody was admitted",
}
MAX_REQUESTS = 20_000
STEP_ENTRIES = 8  # a step's own figures take as much memory as so many chunks


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What a trace keeps of a request."""

    seq_id: int
    request_id: str
    parent_id: str
    arrival: float  # seconds, on the clock of the steps
    num_prompt: int
    max_tokens: int
    priority: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. Requests go by seq_id."""

    stats: StepStats
    began: float  # seconds
    chunks: tuple[tuple[int, int, int, int], ...]  # seq_id, start, tokens (drafts included), drafts
    waits: tuple[tuple[int, str], ...]  # seq_id, reason; those behind the last one that was refused are not listed
    halt: str | None  # why admission ended before the queue did; the last of `waits` is the one that was refused
    started: tuple[tuple[int, int], ...]  # seq_id, tokens found in the cache
    preempted: tuple[tuple[int, int], ...]  # seq_id, for whom (itself if it gave way)
    finished: tuple[tuple[int, str], ...]  # seq_id, finish reason
    blocks_shared: int  # held by more than one sequence
    blocks_evicted: int  # cached prefixes that were overwritten in this step


class Trace:
    """The last steps and requests of a scheduler.

    Bounded by `max_entries`, of about 100 bytes each: chunks, waits, and `STEP_ENTRIES` for each step. One thread
    writes; any may read `steps()` and `requests()`, which are copies.
    """

    def __init__(self, *, max_entries: int = 200_000) -> None:
        self._max_entries = max_entries
        self._num_entries = 0
        self._steps: deque[StepRecord] = deque()
        self._requests: OrderedDict[int, RequestRecord] = OrderedDict()

    def begin(self) -> None:
        """Forget everything: a new scheduler starts, whose sequences are counted from 0 again."""
        self._steps.clear()
        self._requests.clear()
        self._num_entries = 0

    def request(self, record: RequestRecord) -> None:
        """A request was accepted."""
        self._requests[record.seq_id] = record
        if len(self._requests) > MAX_REQUESTS:
            self._requests.popitem(last=False)

    def step(self, record: StepRecord) -> None:
        """A step was committed."""
        self._steps.append(record)
        self._num_entries += _size(record)
        while self._num_entries > self._max_entries and len(self._steps) > 1:
            self._num_entries -= _size(self._steps.popleft())

    def steps(self) -> list[StepRecord]:
        """The steps that are kept, oldest first."""
        return list(self._steps.copy())

    def requests(self) -> list[RequestRecord]:
        """The requests that are kept, oldest first."""
        return list(self._requests.copy().values())


def _size(record: StepRecord) -> int:
    return STEP_ENTRIES + len(record.chunks) + len(record.waits)
