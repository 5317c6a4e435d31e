"""The table that people read, from rows or from a record. Must not know how anything was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.bench.rows import PEERS, WEIGHTS, WORKS, Row
from mini_vllm.bench.targets import verdict

HEADINGS = ("work", "weights", "against", "ours", "theirs", "ratio", "spread", "of limit", "foreign", "goal", "note")
_RIGHT = frozenset({"ours", "theirs", "ratio", "spread", "of limit", "foreign"})


def render(record: Mapping[str, Any]) -> str:
    """A whole record: the machine in a few lines, then a Markdown table of all rows."""
    machine = record["machine"]
    lines = [f"{name}: {_plain(value)}" for name, value in machine.items()]
    rows = sort_rows([Row.from_json(entry) for entry in record["ratios"]])
    return "\n".join(lines) + "\n\n" + table(rows)


def table(rows: Sequence[Row]) -> str:
    """Rows as an aligned Markdown table."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = [_line(line, widths) for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines) + "\n"


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """In the order of the works, then weights, then peers."""

    def key(row: Row) -> tuple[int, int, int]:
        return WORKS.index(row.work), WEIGHTS.index(row.weights), PEERS.index(row.peer)

    return sorted(rows, key=key)


def _cells(row: Row) -> tuple[str, ...]:
    note = row.error or row.detail
    return (
        row.work,
        row.weights,
        row.peer,
        _figure(row.ours, row.unit),
        _figure(row.theirs, row.unit),
        "failed" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.spread is None or row.pairs < 2 else f"{row.spread[0]:.2f}–{row.spread[1]:.2f}",
        _percent(row.limit_share),
        _percent(row.foreign),
        verdict(row),
        note.replace("|", "/"),
    )


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 0 if value >= 100 else 1 if value >= 10 else 3
    return f"{value:.{digits}f} {unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if name in _RIGHT else cell.ljust(width) for cell, width, name in zip(cells, widths, HEADINGS)
    ]
    return ("| " + " | ".join(padded) + " |").rstrip()


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return str(value)
