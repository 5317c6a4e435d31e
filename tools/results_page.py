"""The page of benchmark results, and the README's summary of it, from the records under benchmarks/results.

Several records may hold the same row; the newest one counts. Everything is printed, losses included.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mini_vllm.bench import report
from mini_vllm.bench.rows import Row

RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
FORMATS = {
    "4 bits": ("q4_1", "q4_0", "4bit"),
    "8 bits": ("q8_0", "8bit"),
    "bfloat16": ("bf16",),
    "float32": ("f32",),
}
WORKS = {
    "single": "one stream, 128 + 128 tokens",
    "batch8": "8 streams",
    "batch32": "32 streams",
    "prefill_512": "a prompt of 512",
    "prefill_2048": "a prompt of 2,048",
}


def page() -> Iterator[str]:
    """One table for each record that compares engines, newest first."""
    yield "# Results\n\nWhat `mini-vllm bench peers` measured in quiet runs ([reading them](../guides/benchmarks.md))."
    yield "Ratios above 1 mean that this engine is better. Figures of different records do not compare."
    for name, record in records():
        machine = record["machine"]
        yield f"\n## {name}\n\n{machine['date']}, {machine['mode']}, {machine['threads']} threads, {machine['cpu']}."
        engines = ", ".join(f"{engine} {version}" for engine, version in machine["engines"].items())
        yield f"Engines: {engines}.\n"
        yield report.table(report.sort_rows([Row.from_json(entry) for entry in record["ratios"]])).rstrip()


def summary() -> Iterator[str]:
    """Work by number format: how far ahead of the best other engine."""
    yield "| SmolLM2-135M | " + " | ".join(FORMATS) + " |"
    yield "| --- |" + " --- |" * len(FORMATS)
    rows = newest_rows()
    for work, title in WORKS.items():
        cells = [
            _nearest([row for row in rows if row.work == work and row.weights in FORMATS[kind]]) for kind in FORMATS
        ]
        yield f"| {title} | " + " | ".join(cells) + " |"


def records() -> list[tuple[str, Mapping[str, Any]]]:
    """(file name, record) of those that compare engines, newest first."""
    found = [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in RECORDS.glob("*.json")]
    return sorted((entry for entry in found if "ratios" in entry[1]), key=lambda entry: _date(entry[1]), reverse=True)


def newest_rows() -> list[Row]:
    """Each row of any record once, as measured last."""
    rows: dict[tuple[str, ...], Row] = {}
    for _, record in reversed(records()):
        for row in map(Row.from_json, record["ratios"]):
            rows[row.work, row.weights, row.peer, row.detail] = row
    return list(rows.values())


def _nearest(rows: list[Row]) -> str:
    """The engine that comes nearest, with our lead over it."""
    measured = [row for row in rows if row.ratio is not None]
    if not measured:
        return "not measured"
    best = min(measured, key=lambda row: row.ratio or 0.0)
    return f"{best.ratio:.2f}× {best.peer}"


def _date(record: Mapping[str, Any]) -> str:
    return str(record["machine"]["date"])
