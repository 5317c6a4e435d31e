"""A run as text for people: request timeline, tick table, summary. This module must not know engines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mini_vllm.scheduling import RequestRecord as TracedRequest
from mini_vllm.scheduling import StepRecord
from mini_vllm.simulation.records import RequestRecord

WIDTH = 48  # characters of a timeline
BAR = 20  # characters of an occupancy bar
MAX_REQUESTS = 40  # that a timeline shows


def timeline(requests: Sequence[RequestRecord]) -> Iterator[str]:
    """A line per request: . waits, = reads its prompt, # writes, and its figures."""
    shown = requests[:MAX_REQUESTS]
    end = max([request.finished or request.arrival for request in requests], default=0.0)
    start = min([request.arrival for request in requests], default=0.0)
    scale = WIDTH / (end - start) if end > start else 0.0
    name_width = max([len(request.name) for request in shown], default=4)
    yield f"{'request':<{name_width}}  {'timeline':<{WIDTH}}  {'at':>8} {'TTFT':>8} {'ITL':>8} {'tokens':>11}  end"
    for request in shown:
        line = [" "] * WIDTH
        for sign, begin, until in (
            (".", request.arrival, request.started or request.finished),
            ("=", request.started, request.first_token or request.finished),
            ("#", request.first_token, request.finished),
        ):
            if begin is not None and until is not None:
                left = min(WIDTH - 1, int((begin - start) * scale))
                right = max(left + (sign != "."), min(WIDTH, round((until - start) * scale)))
                line[left:right] = sign * (right - left)
        cached = f" ({request.num_cached} cached)" if request.num_cached else ""
        ending = request.finish_reason or "never"
        ending += f", preempted {request.num_preemptions}" if request.num_preemptions else ""
        ending += f", sent {request.num_retries + 1} times" if request.num_retries else ""
        tokens = f"{request.num_prompt}+{request.num_output}"
        yield (
            f"{request.name:<{name_width}}  {''.join(line)}  {seconds(request.arrival):>8} {seconds(request.ttft):>8} "
            f"{seconds(request.tpot):>8} {tokens:>11}  {ending}{cached}"
        )
    if len(requests) > len(shown):
        yield f"… and {len(requests) - len(shown)} more"


def ticks(steps: Sequence[StepRecord], requests: Sequence[TracedRequest], *, most: int) -> Iterator[str]:
    """A line per step, `most` of them from the beginning and the end; occupancy: # held, + cached, . free."""
    names = {request.seq_id: request.parent_id for request in requests}
    origin = steps[0].began if steps else 0.0
    counts = f"{'tick':>5} {'at':>8} {'took':>8} {'kind':<8}{'batch':>5} {'tokens':>6} {'wait':>4}"
    yield f"{counts}  {'blocks':<{BAR + 12}} events"
    head, tail = (steps, ()) if len(steps) <= most else (steps[: most - most // 2], steps[len(steps) - most // 2 :])
    for step in head:
        yield _tick(step, names, origin)
    if tail:
        yield f"… {len(steps) - most} more ticks (they are in the ticks file) …"
    for step in tail:
        yield _tick(step, names, origin)


def _tick(step: StepRecord, names: Mapping[int, str], origin: float) -> str:
    stats = step.stats
    used = bar(stats.blocks_used, stats.blocks_cached, stats.blocks_total)
    blocks = f"[{used}] {stats.blocks_used:>4}/{stats.blocks_total}"
    return (
        f"{stats.step_id:>5} {seconds(step.began - origin):>8} {seconds(stats.seconds):>8} {stats.kind:<8}"
        f"{stats.num_sequences:>5} {stats.num_tokens:>6} {stats.num_waiting:>4}  {blocks:<{BAR + 12}} "
        f"{events(step, names)}"
    ).rstrip()


def events(step: StepRecord, names: Mapping[int, str]) -> str:
    """Who started, lost blocks, ended; and why nobody else started."""

    def listed(ids: Sequence[int]) -> str:
        shown = [names.get(seq_id, f"#{seq_id}") for seq_id in ids[:4]]
        return " ".join(shown) + (f" +{len(ids) - 4}" if len(ids) > 4 else "")

    parts = []
    if step.started:
        hits = sum(num_cached for _, num_cached in step.started)
        parts.append(f"start {listed([pair[0] for pair in step.started])}" + (f" ({hits} hit)" if hits else ""))
    if step.preempted:
        parts.append(f"preempt {listed([pair[0] for pair in step.preempted])}")
    if step.finished:
        parts.append(f"end {listed([pair[0] for pair in step.finished])}")
    if step.halt is not None:
        parts.append(f"wait: {step.halt}")
    return " · ".join(parts)


def bar(used: int, cached: int, total: int) -> str:
    """Shares of a pool: # held, + holds a prefix, . free."""
    if not total:
        return "." * BAR
    held = min(BAR, -(-used * BAR // total))
    kept = min(BAR - held, round(cached * BAR / total))
    return "#" * held + "+" * kept + "." * (BAR - held - kept)


def summary(figures: Mapping[str, Any]) -> dict[str, str]:
    """The figures that people ask for, as names and values."""
    hits, asked = figures["prefix_hit_tokens"], figures["prefix_query_tokens"]
    rows = {
        "requests": f"{figures['finished']} of {figures['requests']} finished"
        + (f", {figures['failed']} failed" if figures["failed"] else ""),
        "makespan": seconds(figures["makespan"]),
        "tokens": f"{figures['prompt_tokens']} read, {figures['output_tokens']} written",
        "throughput": f"{figures['output_tokens_per_second']:.1f} tok/s, "
        f"{figures['requests_per_second']:.2f} requests/s",
        "average batch": f"{figures['average_batch']:.2f} sequences",
        "ticks": str(figures["steps"]),
        "busy": f"{100 * figures['busy']:.0f}% of the time",
        "preemptions": str(figures["preemptions"]),
        "pool peak": f"{figures['peak_blocks']} of {figures['blocks_total']} blocks",
        "prefix hits": f"{hits} of {asked} tokens" + (f" ({100 * hits / asked:.0f}%)" if asked else ""),
    }
    if figures["retries"]:
        rows["retries"] = str(figures["retries"])
    for name, label in (("ttft", "TTFT"), ("itl", "ITL"), ("latency", "latency")):
        spread = figures[name]
        rows[label] = f"p50 {seconds(spread['p50'])}, p90 {seconds(spread['p90'])}, p99 {seconds(spread['p99'])}"
    rows["SLO attainment"] = f"{100 * figures['slo_attainment']:.1f}%, goodput {figures['goodput']:.2f} requests/s"
    return rows


def seconds(value: float | None) -> str:
    """`12.3 ms`, `1.23 s`, `-`."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1.0 else f"{1e3 * value:.1f} ms"
