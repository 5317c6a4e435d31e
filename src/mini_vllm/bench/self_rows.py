"""Rows in which our engine meets itself or the machine: sampling against greedy, attention against bandwidth, a
step without kernels against a whole one, and the rate beside processes that spin against the quiet one.

Must not know other engines.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mini_vllm.bench.drive import Measurable
from mini_vllm.bench.machine import LoadMeter
from mini_vllm.bench.roofline import SMOLLM2, Shape
from mini_vllm.bench.rows import Pair, Row, row_of_pairs
from mini_vllm.bench.shares import is_steady
from mini_vllm.bench.subject import Sample, Subject
from mini_vllm.bench.workloads import BATCH32, SAMPLED32, SINGLE, Work

HISTORY, HISTORY_TOKENS = 2000, 65
HISTORY_ROUNDS = 9  # at least: a round takes a second or two
LARGEST = 1 << 30  # bytes of the buffer that gives memory's bandwidth
HISTORY_BATCHES = (1, 16)
SPINNERS = (1, 3)
OVERHEAD_SHARES = {"q4_1": 0.12, "bf16": 0.05}
STREAMS = {
    1: Work("neighbours", "decode", 1, 128, 128),
    32: Work("neighbours", "output", 32, 64, 64),
}
_KV_ELEMENT = 2  # bfloat16, as the default file's K and V are stored


def sampled_row(subject: Measurable, *, rounds: int) -> Row:
    """Temperature 0.8 and top_p 0.95 at 32 streams, against greedy."""
    subject.warm(SAMPLED32, seed=1)
    pairs = []
    for number in range(rounds):
        sampled = subject.measure(SAMPLED32, seed=100 + number)
        pairs.append(Pair(sampled, subject.measure(BATCH32, seed=200 + number)))
    row = Row(work="sampled32", weights="q4_1", peer="self", detail="against greedy")
    return row_of_pairs(row, pairs)


def history_rows(subject: Subject, bandwidth: Callable[[float], float], *, rounds: int) -> Iterator[Row]:
    """Attention's own time inside whole steps over 2,000 tokens of history, against reading their K and V once from
    memory: the bytes as stored over the bandwidth of the largest buffer.

    A machine may give half the bandwidth a second later: it is measured just before and just after every round, and a
    round between whose readings it changed counts only when there is no steadier one.
    """
    for batch in HISTORY_BATCHES:
        work = Work("history_2000", "decode", batch, HISTORY, HISTORY_TOKENS)
        subject.seconds(work, seed=300, new_tokens=1)  # from now on prefix caching knows the prompts
        subject.op_seconds()
        pairs = []
        for _ in range(max(HISTORY_ROUNDS, rounds)):
            before = bandwidth(LARGEST)
            meter = LoadMeter()
            meter.begin()
            first = _attention_seconds(subject, work, new_tokens=1)
            whole = _attention_seconds(subject, work, new_tokens=HISTORY_TOKENS)
            seconds = max(whole - first, 1e-9) / (HISTORY_TOKENS - 1)
            foreign, after = meter.foreign(), bandwidth(LARGEST)
            ideal = history_bytes(SMOLLM2, batch) / ((before + after) / 2)
            pairs.append(Pair(Sample(1e3 * seconds, foreign, (before, after)), Sample(1e3 * ideal)))
        row = Row(work="history_2000", weights="q4_1", peer="self", unit="ms", detail=f"batch {batch}")
        counted = [pair for pair in pairs if is_steady(pair.ours)] or pairs
        yield row_of_pairs(row, counted, lower_is_better=True)


def history_bytes(shape: Shape, batch: int) -> float:
    """K and V that a decode step reads: the prompt, and half of the new tokens on average."""
    return shape.kv_bytes(batch * (HISTORY + HISTORY_TOKENS / 2), _KV_ELEMENT)


def _attention_seconds(subject: Subject, work: Work, *, new_tokens: int) -> float:
    """Of all steps of a batch."""
    subject.op_seconds()
    subject.seconds(work, seed=300, new_tokens=new_tokens)
    return sum(seconds for name, seconds in subject.op_seconds().items() if name.startswith("attend"))


def plain_split_rows(
    subject: Subject, plain: Subject, *, rounds: int, streams: Sequence[int] = (32, 1)
) -> Iterator[Row]:
    """Quiet rates against those of an engine whose threads do fixed shares, which is best where nobody disturbs."""
    for count in streams:
        work = STREAMS[count]
        for each in (subject, plain):
            each.warm(work, seed=1)
        pairs = []
        for index in range(rounds):
            mine = subject.measure(work, seed=700 + index)
            pairs.append(Pair(mine, plain.measure(work, seed=700 + index)))
        detail = f"{count} {_plural(count, 'stream')}, quiet, against a plain static split"
        yield row_of_pairs(Row(work="neighbours", weights="q4_1", peer="self", detail=detail), pairs)


def overhead_row(subject: Subject, empty: Subject, weights: str, *, rounds: int) -> Row:
    """What of a step of one stream is not kernels, against the share of a whole step that it may take.

    empty: an engine whose kernels return at once.
    """
    share = OVERHEAD_SHARES[weights]
    pairs = []
    for each in (subject, empty):
        each.warm(SINGLE, seed=1)
    for index in range(rounds):
        whole, beside = (each.measure(SINGLE, seed=800 + index) for each in (subject, empty))
        pairs.append(Pair(Sample(1e3 / beside.rate, beside.foreign), Sample(1e3 * share / whole.rate, whole.foreign)))
    detail = f"a step without kernels, against {share:.0%} of a whole one"
    row = Row(work="overhead", weights=weights, peer="self", unit="ms", detail=detail)
    return row_of_pairs(row, pairs, lower_is_better=True)


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


def _plural(count: int, noun: str) -> str:
    if count == 1:
        return noun
    return noun + ("es" if noun.endswith("s") else "s")
