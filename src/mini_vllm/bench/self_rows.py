"""Rows in which our engine meets itself or the machine: sampling against greedy, attention against bandwidth, and
how much of the quiet rate is left beside processes that spin.

Must not know other engines.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mini_vllm.bench.limits import Limits
from mini_vllm.bench.machine import LoadMeter
from mini_vllm.bench.roofline import SMOLLM2, Shape
from mini_vllm.bench.rows import Pair, Row, row_of_pairs
from mini_vllm.bench.subject import Sample, Subject
from mini_vllm.bench.workloads import BATCH32, SAMPLED32, Work

HISTORY, SHORT_HISTORY, HISTORY_TOKENS = 2000, 16, 17
HISTORY_BATCHES = (1, 16)
SPINNERS = (1, 3)
STREAMS = {
    1: Work("neighbours", "decode", 1, 128, 128),
    32: Work("neighbours", "output", 32, 64, 64),
}
_KV_ELEMENT = 2  # bfloat16, as the default file's K and V are stored


def sampled_row(subject: Subject, *, rounds: int) -> Row:
    """Temperature 0.8 and top_p 0.95 at 32 streams, against greedy."""
    subject.warm(SAMPLED32, seed=1)
    pairs = []
    for number in range(rounds):
        sampled = subject.measure(SAMPLED32, seed=100 + number)
        pairs.append(Pair(sampled, subject.measure(BATCH32, seed=200 + number)))
    row = Row(work="sampled32", weights="q4_1", peer="self", detail="against greedy")
    return row_of_pairs(row, pairs)


def history_rows(subject: Subject, limits: Limits, *, rounds: int) -> Iterator[Row]:
    """Attention's time in a step of 2,000 tokens of history, against reading its K and V once at memory bandwidth.

    A step's time with a long history less that with a short one: everything but attention is the same in both.
    """
    for batch in HISTORY_BATCHES:
        pairs = []
        for history, seed in ((HISTORY, 300), (SHORT_HISTORY, 400)):  # from now on prefix caching knows the prompts
            subject.seconds(_history_work(batch, history), seed=seed, new_tokens=1)
        for _ in range(rounds):
            meter = LoadMeter()
            meter.begin()
            longer = _step_seconds(subject, batch, HISTORY, seed=300)
            shorter = _step_seconds(subject, batch, SHORT_HISTORY, seed=400)
            ideal = history_bytes(SMOLLM2, batch) / limits.memory_bandwidth
            measured = Sample(1e3 * max(longer - shorter, 1e-9), meter.foreign())
            pairs.append(Pair(measured, Sample(1e3 * ideal)))
        row = Row(work="history_2000", weights="q4_1", peer="self", unit="ms", detail=f"batch {batch}")
        yield row_of_pairs(row, pairs, lower_is_better=True)


def history_bytes(shape: Shape, batch: int) -> float:
    """K and V that the long history holds beyond the short one."""
    return shape.kv_bytes(batch * (HISTORY - SHORT_HISTORY), _KV_ELEMENT)


def _history_work(batch: int, history: int) -> Work:
    return Work("history_2000", "decode", batch, history, HISTORY_TOKENS)


def _step_seconds(subject: Subject, batch: int, history: int, *, seed: int) -> float:
    """Of one decode step, with prompts that the prefix cache holds."""
    work = _history_work(batch, history)
    first = min(subject.seconds(work, seed=seed, new_tokens=1) for _ in range(2))
    return (subject.seconds(work, seed=seed) - first) / (HISTORY_TOKENS - 1)


def neighbour_rows(subject: Subject, *, rounds: int, streams: Sequence[int] = (32, 1)) -> Iterator[Row]:
    """Rates beside 1 and 3 processes that spin on one thread each, against the quiet rate just before."""
    for count in streams:
        work = STREAMS[count]
        subject.warm(work, seed=1)
        pairs: dict[int, list[Pair]] = {number: [] for number in SPINNERS}
        for index in range(rounds):
            for number in SPINNERS:
                quiet = subject.measure(work, seed=500 + index)
                with spinning(number):
                    busy = subject.measure(work, seed=600 + index)
                pairs[number].append(Pair(busy, quiet))
        for number in SPINNERS:
            detail = f"{count} {_plural(count, 'stream')} beside {number} spinning {_plural(number, 'process')}"
            row = Row(work="neighbours", weights="q4_1", peer="self", detail=f"{detail}, against quiet")
            yield row_of_pairs(row, pairs[number])


@contextmanager
def spinning(
    count: int, start: Callable[[list[str]], "subprocess.Popen[bytes]"] = subprocess.Popen
) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """`count` processes that do nothing but use one processor each, at our own priority."""
    neighbours = [start([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield neighbours
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def with_limit(row: Row, most: float) -> Row:
    """The row with our share of a computed limit."""
    return row if row.ours is None else replace(row, limit_share=row.ours / most)


def _plural(count: int, noun: str) -> str:
    if count == 1:
        return noun
    return noun + ("es" if noun.endswith("s") else "s")
