"""Why a request took as long as it did, in words, from the trace of the steps that it lived through.

The time from its arrival to its end is cut at the ends of steps, and each piece goes to what the request did in that
step or waited for. This module must not know the scheduler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mini_vllm.errors import InvalidParameterError
from mini_vllm.scheduling.trace import WAIT_REASONS, RequestRecord, StepRecord

MAX_LISTED = 6  # reasons and slow steps that are told


@dataclass(slots=True)
class Account:
    """Seconds and steps of one request by what happened."""

    request: RequestRecord
    waiting: dict[str, list[float]] = field(default_factory=dict)  # reason in words -> seconds of each step
    prefill: list[tuple[StepRecord, int, float]] = field(default_factory=list)  # step, tokens, seconds
    again: list[tuple[StepRecord, int, float]] = field(default_factory=list)  # computed anew after a preemption
    decode: list[tuple[StepRecord, int, float]] = field(default_factory=list)
    preempted: list[tuple[StepRecord, int]] = field(default_factory=list)  # step, for whom
    num_cached: int | None = None
    first_token: float | None = None
    finished: float | None = None
    finish_reason: str | None = None
    last: float = 0.0  # until when it is accounted for

    @property
    def waited(self) -> float:
        """Seconds of waiting."""
        return sum(sum(seconds) for seconds in self.waiting.values())


def find(requests: Iterable[RequestRecord], request_id: str) -> list[RequestRecord]:
    """The requests of this id: the user's, the engine's, or the beginning of one. `InvalidParameterError` if none."""
    known = list(requests)
    if not request_id:
        raise InvalidParameterError("request_id is empty; give the id of an answer", param="request_id")
    for matches in (
        [request for request in known if request_id in (request.parent_id, request.request_id)],
        [request for request in known if request.request_id.startswith(request_id)],
    ):
        if matches:
            return matches
    shown = ", ".join(dict.fromkeys(request.parent_id for request in known[-5:])) or "none"
    raise InvalidParameterError(
        f"the trace has no request {request_id!r}; it knows {len(known)}, the latest of which are: {shown}",
        param="request_id",
    )


def account(request: RequestRecord, requests: Iterable[RequestRecord], steps: Sequence[StepRecord]) -> Account:
    """Where a request's time went."""
    known = {other.seq_id: other for other in requests}
    found = Account(request, last=request.arrival)
    num_known = request.num_prompt  # tokens of it that exist
    was_preempted = False
    for step in steps:
        end = step.began + step.stats.seconds
        if end <= request.arrival or found.finished is not None:
            continue
        _note_events(found, step, end)
        chunk = next((chunk for chunk in step.chunks if chunk[0] == request.seq_id), None)
        seconds = end - max(found.last, min(request.arrival, end))
        found.last = end
        if chunk is None:
            if found.finish_reason is None or found.finished != end:
                found.waiting.setdefault(_reason(request, step, known), []).append(seconds)
            was_preempted = was_preempted or bool(found.preempted)
            continue
        reached = chunk[1] + chunk[2] - chunk[3]
        if chunk[1] >= request.num_prompt and chunk[2] - chunk[3] == 1:
            found.decode.append((step, chunk[2], seconds))
        elif was_preempted and chunk[1] < num_known:
            found.again.append((step, chunk[2], seconds))
        else:
            found.prefill.append((step, chunk[2], seconds))
        if reached >= request.num_prompt and found.first_token is None and request.max_tokens:
            found.first_token = end
        num_known = max(num_known, reached + 1)
    return found


def _note_events(found: Account, step: StepRecord, end: float) -> None:
    seq_id = found.request.seq_id
    for started, num_cached in step.started:
        if started == seq_id and found.num_cached is None:
            found.num_cached = num_cached
    found.preempted += [(step, asker) for victim, asker in step.preempted if victim == seq_id]
    for ended, reason in step.finished:
        if ended == seq_id:
            found.finished, found.finish_reason = end, reason


def _reason(request: RequestRecord, step: StepRecord, known: dict[int, RequestRecord]) -> str:
    """Why a request that lives got nothing in a step, in words."""
    own = next((reason for seq_id, reason in step.waits if seq_id == request.seq_id), None)
    if own is not None:
        return WAIT_REASONS[own]
    for victim, asker in step.preempted:
        if victim == request.seq_id:
            return "it lost its blocks" + ("" if asker == victim else f" to {_name(asker, known)}")
    if step.began < request.arrival:
        return "a step was under way when it arrived"
    if step.halt is None:
        return "nothing was computed for it"
    if step.halt in ("batch", "preemption") or not step.waits:
        return WAIT_REASONS[step.halt]
    head = step.waits[-1][0]
    other = known.get(head)
    ahead = f"{_name(head, known)} was ahead of it"
    if other is not None and other.priority < request.priority:
        ahead = f"{_name(head, known)}, of priority {other.priority}, was ahead of it"
    return f"{ahead}, and {WAIT_REASONS[step.halt]}"


def _name(seq_id: int, known: dict[int, RequestRecord]) -> str:
    return known[seq_id].parent_id if seq_id in known else f"an older request (sequence {seq_id})"


def explain(request: RequestRecord, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> str:
    """Several lines about one request."""
    found = account(request, requests, steps)
    lines = [_headline(found)]
    if not found.prefill and not found.decode and found.finished is None:
        lines.append("It has not been computed yet." if steps else "The trace has no steps.")
    if steps and steps[0].began > request.arrival and steps[0].stats.step_id > 0:
        lines.append("The trace begins after its arrival, so what came before is not told.")
    lines += [*_waiting_lines(found), *_prefill_lines(found), *_preemption_lines(found, requests)]
    lines += _decode_lines(found, requests)
    return "\n".join(lines) + "\n"


def _headline(found: Account) -> str:
    request = found.request
    asked = f"{request.request_id}: {request.num_prompt} prompt tokens, at most {request.max_tokens} to write"
    if request.priority:
        asked += f", priority {request.priority}"
    total = found.last - request.arrival
    parts = {
        "waiting": found.waited,
        "reading the prompt": _seconds(found.prefill),
        "computing again": _seconds(found.again),
        "writing": _seconds(found.decode),
    }
    shares = ", ".join(f"{name} {_time(part)}" for name, part in parts.items() if part > 0)
    end = "so far" if found.finished is None else f"until it ended ({found.finish_reason})"
    return f"{asked}.\nIt took {_time(total)} {end}: {shares or 'nothing was done for it'}."


def _waiting_lines(found: Account) -> list[str]:
    entries = sorted(found.waiting.items(), key=lambda entry: -sum(entry[1]))
    if not entries:
        return ["It never waited."]
    lines = [f"It waited {_time(found.waited)} in all, because"]
    for reason, seconds in entries[:MAX_LISTED]:
        lines.append(f"  - {reason}: {_time(sum(seconds))} ({_count(len(seconds), 'step')})")
    if len(entries) > MAX_LISTED:
        rest = sum(sum(seconds) for _, seconds in entries[MAX_LISTED:])
        lines.append(f"  - {len(entries) - MAX_LISTED} other reasons: {_time(rest)}")
    return lines


def _prefill_lines(found: Account) -> list[str]:
    if not found.prefill:
        return []
    sizes = [num_tokens for _, num_tokens, _ in found.prefill]
    spread = str(sizes[0]) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)} each"
    cached = f"{found.num_cached} tokens were in the prefix cache; " if found.num_cached else ""
    read = f"{_count(sum(sizes), 'token')} read in {_count(len(sizes), 'step')} ({spread})"
    line = f"Prompt: {cached}{read}, {_time(_seconds(found.prefill))}."
    if found.first_token is not None:
        line += f" First token {_time(found.first_token - found.request.arrival)} after arrival."
    return [line]


def _preemption_lines(found: Account, requests: Sequence[RequestRecord]) -> list[str]:
    if not found.preempted:
        return []
    known = {request.seq_id: request for request in requests}
    askers = dict.fromkeys(
        "itself (it asked for a block last)" if asker == found.request.seq_id else _name(asker, known)
        for _, asker in found.preempted
    )
    line = f"Preempted {_count(len(found.preempted), 'time')}, for {', '.join(list(askers)[:MAX_LISTED])}"
    if found.again:
        tokens = sum(num_tokens for _, num_tokens, _ in found.again)
        line += f"; {_count(tokens, 'token')} computed again in {_time(_seconds(found.again))}"
    return [line + "."]


def _decode_lines(found: Account, requests: Sequence[RequestRecord]) -> list[str]:
    if not found.decode:
        return []
    known = {request.seq_id: request for request in requests}
    seconds = _seconds(found.decode)
    mean = _time(seconds / len(found.decode))
    lines = [f"Writing: {_count(len(found.decode), 'step')} in {_time(seconds)}, {mean} each."]
    step, _, slowest = max(found.decode, key=lambda entry: entry[2])
    if slowest > 1.5 * seconds / len(found.decode):
        others = [(seq_id, length) for seq_id, _, length, drafts in step.chunks if length - drafts > 1]
        beside = ""
        if others:
            reader, length = max(others, key=lambda entry: entry[1])
            beside = f", beside {length} prompt tokens of {_name(reader, known)}"
        crowd = _count(step.stats.num_sequences, "sequence")
        lines.append(f"The slowest of them, step {step.stats.step_id}, took {_time(slowest)} with {crowd}{beside}.")
    return lines


def _seconds(entries: Iterable[tuple[StepRecord, int, float]]) -> float:
    return sum(seconds for _, _, seconds in entries)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1e3 * seconds:.1f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
