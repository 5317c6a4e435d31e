"""In which order waiting sequences are admitted. One small class per policy; the scheduler asks for nothing else.

Ageing keeps every policy free of starvation. Where all sequences age at one rate, their order never changes while they
wait: `class × ageing_seconds + arrival` compares like `class - age / ageing_seconds`. So a place in the queue is one
number, computed once. This module must not know blocks, budgets or steps.
"""

import bisect
from collections.abc import Iterator
from typing import Protocol

from mini_vllm.config import SchedulerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.scheduling.sequence import Rank, Sequence

SRF_TOKENS = 256  # unwritten tokens that `ageing_seconds` of waiting make up for
MAX_IDLE_KEYS = 10_000  # fair share forgets idle keys beyond this many


class Queue(Protocol):
    """The waiting sequences of one policy."""

    counts_service: bool  # whether `charge` wants to know what was served

    def push(self, sequence: Sequence) -> None:
        """A new request waits."""

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence waits again, ahead of all that came after it."""

    def remove(self, sequence: Sequence) -> None:
        """It was started or aborted."""

    def candidates(self, *, num_running: int, now: float) -> Iterator[Sequence]:
        """Who may be admitted, in order; the sequence just given may be removed while iterating."""

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """It was served so many tokens, computed and sampled."""

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait."""

    def __len__(self) -> int:
        """How many wait."""


class _Sorted:
    """Sequences in ascending order of a key that does not change while they wait."""

    counts_service = False

    def __init__(self) -> None:
        self._waiting: list[tuple[Rank, Sequence]] = []

    def key(self, sequence: Sequence) -> Rank:
        """Its place. Unique: it ends with the sequence's id."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        i = 0
        while i < len(self._waiting):
            sequence = self._waiting[i][1]
            yield sequence
            if i < len(self._waiting) and self._waiting[i][1] is sequence:
                i += 1

    def push(self, sequence: Sequence) -> None:
        bisect.insort(self._waiting, (self.key(sequence), sequence), key=_first)

    def put_back(self, sequence: Sequence) -> None:
        self.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        i = bisect.bisect_left(self._waiting, self.key(sequence), key=_first)
        assert self._waiting[i][1] is sequence, f"sequence {sequence.seq_id} does not wait"
        del self._waiting[i]

    def candidates(self, *, num_running: int, now: float) -> Iterator[Sequence]:
        return iter(self)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        return None


class FirstComeQueue(_Sorted):
    """First come, first served. A preempted sequence is older than all that were never started: it comes first."""

    def key(self, sequence: Sequence) -> Rank:
        return (0.0, sequence.seq_id)


class PriorityQueue(_Sorted):
    """Lower priority values first; every `ageing_seconds` of waiting make up for one class."""

    def key(self, sequence: Sequence) -> Rank:
        return sequence.rank


class ShortestRemainingQueue(_Sorted):
    """Shortest remaining first: the fewest tokens to write if max_tokens is used up, with ageing."""

    def __init__(self, ageing_seconds: float) -> None:
        super().__init__()
        self._seconds_per_token = ageing_seconds / SRF_TOKENS

    def key(self, sequence: Sequence) -> Rank:
        return (sequence.request.arrival + sequence.num_remaining * self._seconds_per_token, sequence.seq_id)


class DeadlineQueue(_Sorted):
    """Earliest deadline first. One that is past yields once, to those that are due within `ageing_seconds` after it.

    A request without a deadline counts as due `ageing_seconds` after its arrival.
    """

    def __init__(self, ageing_seconds: float) -> None:
        super().__init__()
        self._grace = ageing_seconds
        self._late: set[int] = set()

    def key(self, sequence: Sequence) -> Rank:
        request = sequence.request
        due = request.arrival + self._grace if request.deadline is None else request.deadline
        return (due + self._grace if sequence.seq_id in self._late else due, sequence.seq_id)

    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        self._late.discard(sequence.seq_id)

    def candidates(self, *, num_running: int, now: float) -> Iterator[Sequence]:
        while self._waiting and self._waiting[0][0][0] < now and self._waiting[0][1].seq_id not in self._late:
            sequence = self._waiting.pop(0)[1]
            self._late.add(sequence.seq_id)
            self.push(sequence)
        return iter(self)


class StaticQueue(_Sorted):
    """Static batching: a batch is admitted when the one before it has ended, first come first served.

    The baseline that continuous batching is measured against. Members of the batch that were preempted come back.
    """

    def __init__(self) -> None:
        super().__init__()
        self._members = FirstComeQueue()  # of the batch under way, waiting again

    def key(self, sequence: Sequence) -> Rank:
        return (0.0, sequence.seq_id)

    def __len__(self) -> int:
        return super().__len__() + len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._members
        yield from super().__iter__()

    def put_back(self, sequence: Sequence) -> None:
        self._members.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        if any(member is sequence for member in self._members):
            self._members.remove(sequence)
        else:
            super().remove(sequence)

    def candidates(self, *, num_running: int, now: float) -> Iterator[Sequence]:
        if num_running or len(self._members):
            return iter(self._members)
        return super().__iter__()


class FairQueue:
    """Fair share per key by virtual token counters: the key that was served least comes first, within it by arrival.

    A sampled token counts as much as a computed one, so a step of decoding costs two. A key that comes back after
    idling starts at the least counter of those that wait: it gets no credit for its absence, as in "Fairness in
    Serving Large Language Models" (Sheng et al., 2024).
    """

    counts_service = True

    def __init__(self) -> None:
        self._waiting: dict[str, list[Sequence]] = {}  # key -> by arrival, never empty
        self._served: dict[str, int] = {}  # key -> its virtual counter
        self._last_key = ""  # the one that was admitted last
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        for sequences in self._waiting.values():
            yield from sequences

    def push(self, sequence: Sequence) -> None:
        key = sequence.request.key
        if key not in self._waiting:
            self._lift(key)
        self._add(sequence)

    def put_back(self, sequence: Sequence) -> None:
        self._add(sequence)

    def remove(self, sequence: Sequence) -> None:
        key = sequence.request.key
        waiting = self._waiting[key]
        i = bisect.bisect_left(waiting, sequence.seq_id, key=_seq_id)
        assert waiting[i] is sequence, f"sequence {sequence.seq_id} does not wait"
        del waiting[i]
        self._length -= 1
        self._last_key = key
        if not waiting:
            del self._waiting[key]

    def candidates(self, *, num_running: int, now: float) -> Iterator[Sequence]:
        skipped: dict[str, int] = {}  # key -> how many of its first were given and left
        while True:
            heads = [
                (self._served.get(key, 0), waiting[skipped.get(key, 0)].seq_id, key)
                for key, waiting in self._waiting.items()
                if len(waiting) > skipped.get(key, 0)
            ]
            if not heads:
                return
            key = min(heads)[2]
            i = skipped.get(key, 0)
            sequence = self._waiting[key][i]
            yield sequence
            left = self._waiting.get(key, ())
            if i < len(left) and left[i] is sequence:
                skipped[key] = i + 1
            elif not sequence.num_preemptions:  # its prompt counts at once, so that one key does not take all the rows
                self._served[key] = self._served.get(key, 0) + sequence.num_prompt
                sequence.prepaid = sequence.num_prompt

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        paid = min(num_tokens, sequence.prepaid)
        sequence.prepaid -= paid
        key = sequence.request.key
        self._served[key] = self._served.get(key, 0) + num_tokens - paid

    def _add(self, sequence: Sequence) -> None:
        bisect.insort(self._waiting.setdefault(sequence.request.key, []), sequence, key=_seq_id)
        self._length += 1

    def _lift(self, key: str) -> None:
        if len(self._served) > MAX_IDLE_KEYS:
            self._served = {name: self._served[name] for name in self._waiting if name in self._served}
        waiting = [self._served.get(name, 0) for name in self._waiting]
        least = min(waiting, default=self._served.get(self._last_key, 0))
        self._served[key] = max(self._served.get(key, 0), least)


def _first(entry: tuple[Rank, Sequence]) -> Rank:
    return entry[0]


def _seq_id(sequence: Sequence) -> int:
    return sequence.seq_id


def make_queue(config: SchedulerConfig) -> Queue:
    """The queue of the configured policy."""
    match config.scheduling_policy:
        case "fcfs":
            return FirstComeQueue()
        case "priority":
            return PriorityQueue()
        case "fair":
            return FairQueue()
        case "srf":
            return ShortestRemainingQueue(config.ageing_seconds)
        case "static":
            return StaticQueue()
        case "deadline":
            return DeadlineQueue(config.ageing_seconds)
    raise ConfigError(f"scheduling_policy is {config.scheduling_policy!r}; choose one of fcfs, priority, fair, srf …")
