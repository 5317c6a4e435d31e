"""Figures with a limit: what was measured, what was wanted, and both as a table. Must not know how they came about."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HEADINGS = ("what", "form", "load", "figure", "goal", "met", "note")
_RIGHT = frozenset({"figure", "goal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line. `goal` is what the value may be at most, or must be at least; None: only reported."""

    what: str
    value: float
    unit: str
    form: str = ""  # of the engine: thread, process, or one against the other
    load: str = ""
    goal: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def as_json(self) -> dict[str, Any]:
        """The entry of a record's "figures"."""
        return {**asdict(self), "value": float(f"{self.value:.4g}"), "is_met": self.is_met}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Figure":
        """Back from a record."""
        return cls(**{name: value for name, value in entry.items() if name in cls.__dataclass_fields__})


def render(record: Mapping[str, Any]) -> str:
    """A whole record: the machine in a few lines, then the table."""
    lines = [f"{name}: {value}" for name, value in record["machine"].items()]
    return "\n".join(lines) + "\n\n" + table([Figure.from_json(entry) for entry in record["figures"]])


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A record measured in parts: the new part's figures in the place of the same ones, or after the others."""
    measured = {(entry["what"], entry["form"]): entry for entry in (*old["figures"], *new["figures"])}
    return {**new, "figures": list(measured.values())}


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """As JSON, one figure a line."""
    figures = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in record["figures"])
    machine_text = json.dumps(record["machine"], indent=2, ensure_ascii=False).replace("\n", "\n ")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{\n "machine": {machine_text},\n "figures": [\n  {figures}\n ]\n}}\n', encoding="utf-8")


def table(figures: Sequence[Figure]) -> str:
    """Figures as an aligned Markdown table."""
    lines = [HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rows = [
        "| "
        + " | ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for cell, width, name in zip(line, widths, HEADINGS)
        )
        + " |"
        for line in lines
    ]
    rows.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(rows) + "\n"


def _cells(figure: Figure) -> tuple[str, ...]:
    goal = "" if figure.goal is None else f"{'≥' if figure.at_least else '≤'} {figure.goal:g}"
    met = {True: "yes", False: "NO", None: ""}[figure.is_met]
    return (
        figure.what,
        figure.form,
        figure.load,
        f"{_short(figure.value)} {figure.unit}",
        goal,
        met,
        figure.note,
    )


def _short(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"
