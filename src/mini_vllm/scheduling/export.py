"""A trace as text: JSON lines to keep and read again, and Chrome's trace format for Perfetto (ui.perfetto.dev).

This module must not know the scheduler.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from mini_vllm.errors import InvalidParameterError
from mini_vllm.scheduling.trace import RequestRecord, StepRecord, Trace
from mini_vllm.types import StepStats

VERSION = 1
_LISTS = ("chunks", "waits", "started", "preempted", "finished")


def to_jsonl(requests: Iterable[RequestRecord], steps: Iterable[StepRecord]) -> Iterator[str]:
    """One line that says what this is, one per request, one per step."""
    yield json.dumps({"kind": "trace", "version": VERSION}) + "\n"
    for request in requests:
        yield json.dumps({"kind": "request", **asdict(request)}) + "\n"
    for step in steps:
        yield json.dumps({"kind": "step", **asdict(step)}) + "\n"


def from_jsonl(lines: Iterable[str], *, source: str = "the trace") -> tuple[list[RequestRecord], list[StepRecord]]:
    """What `to_jsonl` wrote; `InvalidParameterError` names the line at fault."""
    requests, steps = list[RequestRecord](), list[StepRecord]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            kind = entry.pop("kind")
            if kind == "request":
                requests.append(RequestRecord(**entry))
            elif kind == "step":
                steps.append(_step(entry))
            elif kind != "trace" or entry.get("version") != VERSION:
                raise ValueError(f"it is of kind {kind!r}, version {entry.get('version')!r}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidParameterError(
                f"{source} line {number} is no record of a mini-vLLM trace: {error}; write one with "
                "`mini-vllm simulate` or fetch /trace from a server",
                param="trace",
            ) from None
    return requests, steps


def _step(entry: dict[str, Any]) -> StepRecord:
    stats = StepStats(**entry.pop("stats"))
    lists: Any = {name: tuple([tuple(pair) for pair in entry.pop(name)]) for name in _LISTS}
    return StepRecord(stats=stats, **lists, **entry)


def to_chrome(requests: Iterable[RequestRecord], steps: Iterable[StepRecord]) -> dict[str, Any]:
    """The trace events of Chrome and Perfetto: steps, one track per request, counters of blocks and sequences.

    Times are microseconds from the first arrival or step.
    """
    known = {request.seq_id: request for request in requests}
    kept = list(steps)
    origin = min([step.began for step in kept[:1]] + [request.arrival for request in known.values()], default=0.0)
    events: list[dict[str, Any]] = [
        _named("process_name", "engine", pid=1),
        _named("thread_name", "steps", pid=1, tid=0),
        _named("process_name", "requests", pid=2),
    ]
    events += [_named("thread_name", request.request_id, pid=2, tid=seq_id) for seq_id, request in known.items()]
    since = {seq_id: request.arrival for seq_id, request in known.items()}  # when it began to wait
    for step in kept:
        begin, length = 1e6 * (step.began - origin), 1e6 * step.stats.seconds
        events += _step_events(step, begin, length)
        for seq_id, num_cached in step.started:
            waited = 1e6 * (since.get(seq_id, step.began) - origin)
            span = {"ph": "X", "name": "waiting", "pid": 2, "tid": seq_id, "ts": waited, "dur": max(0, begin - waited)}
            events.append({**span, "args": {"cached_tokens": num_cached}})
        for seq_id, start, num_tokens, num_drafts in step.chunks:
            request = known.get(seq_id)
            reading = num_tokens > 1 + num_drafts or (request is not None and start < request.num_prompt)
            name = f"prefill {num_tokens}" if reading else "decode"
            span = {"ph": "X", "name": name, "pid": 2, "tid": seq_id, "ts": begin, "dur": length}
            events.append({**span, "args": {"step": step.stats.step_id, "start": start, "tokens": num_tokens}})
        for seq_id, asker in step.preempted:
            since[seq_id] = step.began
            mark = {"ph": "i", "s": "t", "name": "preempted", "pid": 2, "tid": seq_id, "ts": begin}
            events.append({**mark, "args": {"for": asker}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _step_events(step: StepRecord, begin: float, length: float) -> Iterator[dict[str, Any]]:
    stats = step.stats
    yield {
        "ph": "X",
        "name": stats.kind,
        "pid": 1,
        "tid": 0,
        "ts": begin,
        "dur": length,
        "args": {"step": stats.step_id, "tokens": stats.num_tokens, "sequences": stats.num_sequences},
    }
    blocks = {"used": stats.blocks_used, "cached": stats.blocks_cached, "shared": step.blocks_shared}
    for name, values in (
        ("blocks", blocks),
        ("sequences", {"running": stats.num_running, "waiting": stats.num_waiting}),
    ):
        yield {"ph": "C", "name": name, "pid": 1, "ts": begin, "args": values}


def _named(what: str, name: str, **ids: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "args": {"name": name}, **ids}


def dump(trace: Trace) -> str:
    """A live trace as JSON lines."""
    return "".join(to_jsonl(trace.requests(), trace.steps()))
