"""What a simulation leaves behind: its figures and requests as JSON, its ticks and its trace as JSON lines, a trace for
Perfetto. This module must not know engines.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from mini_vllm.errors import ConfigError
from mini_vllm.scheduling import StepRecord, Trace
from mini_vllm.scheduling.export import dump, to_chrome
from mini_vllm.simulation.records import Run

DEFAULT_FOLDER = Path("logs/simulations")


def write_all(folder: Path, stem: str, run: Run, figures: Mapping[str, Any], trace: Trace | None) -> dict[str, Path]:
    """Write every file of a run; their paths by kind."""
    paths = {"json": folder / f"{stem}.json"}
    if trace is not None:
        paths |= {
            "ticks": folder / f"{stem}-ticks.jsonl",
            "trace": folder / f"{stem}-trace.jsonl",
            "perfetto": folder / f"{stem}-perfetto.trace",
        }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths["json"].write_text(json.dumps(as_json(run, figures), indent=1) + "\n", encoding="utf-8")
        if trace is not None:
            paths["ticks"].write_text("".join(tick_lines(trace.steps())), encoding="utf-8")
            paths["trace"].write_text(dump(trace), encoding="utf-8")
            events = to_chrome(trace.requests(), trace.steps())
            paths["perfetto"].write_text(json.dumps(events), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"out_dir {folder} cannot be written: {error.strerror}", param="out_dir") from None
    return paths


def as_json(run: Run, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run. Times are seconds from its beginning."""
    requests = []
    for request in run.requests:
        entry = asdict(request)
        del entry["num_resent"]
        requests.append({**entry, "ttft": request.ttft, "tpot": request.tpot, "latency": request.latency})
    return {"about": run.about, "summary": dict(figures), "requests": requests}


def tick_lines(steps: Sequence[StepRecord]) -> Iterator[str]:
    """A JSON line per step."""
    origin = steps[0].began if steps else 0.0
    for step in steps:
        stats = step.stats
        yield (
            json.dumps(
                {
                    "tick": stats.step_id,
                    "at_ms": round(1e3 * (step.began - origin), 3),
                    "ms": round(1e3 * stats.seconds, 3),
                    "kind": stats.kind,
                    "batch": stats.num_sequences,
                    "tokens": stats.num_tokens,
                    "running": stats.num_running,
                    "waiting": stats.num_waiting,
                    "blocks_used": stats.blocks_used,
                    "blocks_shared": step.blocks_shared,
                    "blocks_cached": stats.blocks_cached,
                    "blocks_evicted": step.blocks_evicted,
                    "blocks_total": stats.blocks_total,
                    "prefix_hit_tokens": stats.prefix_hit_tokens,
                    "chunks": [[seq_id, start, length] for seq_id, start, length, _ in step.chunks],
                    "started": [seq_id for seq_id, _ in step.started],
                    "preempted": [seq_id for seq_id, _ in step.preempted],
                    "finished": [seq_id for seq_id, _ in step.finished],
                    "halt": step.halt,
                }
            )
            + "\n"
        )


def stem(source: str, now: datetime) -> str:
    """A file name of the time and the traffic."""
    name = "".join(sign if sign.isalnum() else "-" for sign in Path(source.partition(":")[0]).stem)
    return f"{now:%Y-%m-%dT%H-%M-%S}-{name}"
