"""A row of the comparison: pairs of measurements in, medians, ratio and spread out. Above 1 means ours is better.

Must not know engines, processes or clocks.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mini_vllm.bench.subject import Sample

DISTURBED = 0.25
"""A pair during which others used more of the machine than this counts only when there is no better one."""

WORKS = (
    "single", "batch8", "batch32", "prefill_512", "prefill_2048", "sampled32", "history_2000", "start", "memory",
    "tinyllama", "neighbours", "overhead",
)  # fmt: skip
WEIGHTS = ("q4_1", "q4_0", "4bit", "q8_0", "8bit", "bf16", "f16", "f32")
PEERS = ("llama.cpp", "openvino", "onnxruntime", "ctranslate2", "vllm", "transformers", "self")


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and theirs, measured one after the other."""

    ours: Sample
    theirs: Sample

    @property
    def foreign(self) -> float | None:
        """The larger share of the machine that others used during either."""
        known = [sample.foreign for sample in (self.ours, self.theirs) if sample.foreign is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. A failed row has no ratio and an error."""

    work: str
    weights: str
    peer: str
    unit: str = "tok/s"
    ours: float | None = None
    theirs: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None  # least and greatest ratio of the pairs
    pairs: int = 0
    limit_share: float | None = None  # ours over the computed limit
    bandwidth: float | None = None  # GB/s that memory gave beside our samples, where the share is from them
    foreign: float | None = None
    detail: str = ""  # which build, form or case
    error: str | None = None
    samples: tuple[Sample, ...] = field(default=(), compare=False)  # ours of the pairs that count; not in the record

    def as_json(self) -> dict[str, Any]:
        """The entry of the record's "ratios"."""
        entry = {
            "work": self.work,
            "weights": self.weights,
            "peer": self.peer,
            "ours": _rounded(self.ours),
            "theirs": _rounded(self.theirs),
            "ratio": _rounded(self.ratio),
            "spread": None if self.spread is None else [_rounded(value) for value in self.spread],
            "pairs": self.pairs,
            "unit": self.unit,
            "limit_share": _rounded(self.limit_share),
            "bandwidth": _rounded(self.bandwidth),
            "foreign": self.foreign,
            "detail": self.detail,
        }
        return entry if self.error is None else {**entry, "error": self.error}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> "Row":
        """Back from a record."""
        names = cls.__dataclass_fields__
        spread = entry.get("spread")
        return cls(
            **{
                **{name: value for name, value in entry.items() if name in names},
                "spread": None if spread is None else (spread[0], spread[1]),
            }
        )


def row_of_pairs(row: Row, pairs: Sequence[Pair], *, lower_is_better: bool = False) -> Row:
    """`row` with its figures: medians over the undisturbed pairs, or over all if every one was disturbed."""
    assert pairs, "a row needs a pair"
    calm = [pair for pair in pairs if (pair.foreign or 0.0) <= DISTURBED]
    counted = calm or list(pairs)
    ratios = [_ratio(pair, lower_is_better) for pair in counted]
    if not all(map(math.isfinite, ratios)):
        return failed(row, "a measured rate is 0, so there is no ratio", ours=[pair.ours for pair in counted])
    foreign = [pair.foreign for pair in counted if pair.foreign is not None]
    return replace(
        row,
        ours=statistics.median(pair.ours.rate for pair in counted),
        theirs=statistics.median(pair.theirs.rate for pair in counted),
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
        pairs=len(counted),
        foreign=max(foreign, default=None),
        samples=tuple(pair.ours for pair in counted),
    )


def failed(row: Row, error: str, *, ours: Sequence[Sample] = ()) -> Row:
    """`row` without a ratio; our own figure stays if it is known."""
    known = statistics.median(sample.rate for sample in ours) if ours else None
    reason = " ".join(error.split())
    return replace(row, ours=known, theirs=None, ratio=None, spread=None, pairs=0, error=reason, samples=tuple(ours))


def hardest(rows: Iterable[Row]) -> list[Row]:
    """One row for each (work, weights, peer, detail-free): where a peer was measured in several forms, its best."""
    best: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        key = (row.work, row.weights, row.peer, row.detail if row.peer == "self" else "")
        known = best.get(key)
        if known is None or known.ratio is None or (row.ratio is not None and row.ratio < known.ratio):
            best[key] = row
    return list(best.values())


def _ratio(pair: Pair, lower_is_better: bool) -> float:  # noqa: FBT001
    high, low = (pair.theirs, pair.ours) if lower_is_better else (pair.ours, pair.theirs)
    return high.rate / low.rate if low.rate else float("inf")


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return float(f"{value:.4g}")
