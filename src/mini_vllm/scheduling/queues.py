"""In which order sequences are served. One small class per policy; the scheduler asks for nothing else.

This module must not know blocks, budgets or steps.
"""

import bisect
from collections.abc import Iterator
from typing import Protocol

from mini_vllm.errors import ConfigError
from mini_vllm.scheduling.sequence import Sequence

Rank = tuple[float, ...]


class Queue(Protocol):
    """The waiting sequences of one policy."""

    def rank(self, sequence: Sequence) -> Rank:
        """Its place among all live sequences: the lowest is served first, the highest is preempted first."""

    def push(self, sequence: Sequence) -> None:
        """A new request waits."""

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence waits again, ahead of all that came after it."""

    def remove(self, sequence: Sequence) -> None:
        """It was started or aborted."""

    def __iter__(self) -> Iterator[Sequence]:
        """In order of admission; the sequence just given may be removed while iterating."""

    def __len__(self) -> int:
        """How many wait."""


class FirstComeQueue:
    """First come, first served; the youngest is preempted first.

    Sorted by arrival, so that a preempted sequence, which is older than all that were never started, comes first.
    """

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        i = 0
        while i < len(self._waiting):
            sequence = self._waiting[i]
            yield sequence
            if i < len(self._waiting) and self._waiting[i] is sequence:
                i += 1

    def rank(self, sequence: Sequence) -> Rank:
        return (sequence.seq_id,)

    def push(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        bisect.insort(self._waiting, sequence, key=self.rank)

    def remove(self, sequence: Sequence) -> None:
        i = bisect.bisect_left(self._waiting, self.rank(sequence), key=self.rank)
        assert self._waiting[i] is sequence, f"sequence {sequence.seq_id} does not wait"
        del self._waiting[i]


def make_queue(policy: str) -> Queue:
    """The queue of a policy by its configured name."""
    policies = {"fcfs": FirstComeQueue}
    if policy not in policies:
        raise ConfigError(f"scheduling_policy is {policy!r}; choose one of {', '.join(policies)}")
    return policies[policy]()
