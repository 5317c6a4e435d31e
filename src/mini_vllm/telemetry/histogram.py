"""A histogram with fixed bounds: one thread observes, any thread reads. Must not know what is measured."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram held at one moment."""

    bounds: tuple[float, ...]  # upper, inclusive; the last bucket has none
    counts: tuple[int, ...]  # one more than bounds; not cumulative
    total: float  # sum of all that was observed

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The value below which this share of the observations lies, as far as the buckets tell; None without any.

        Linear within a bucket; in the last one, which has no upper bound, its lower bound.
        """
        if not self.count:
            return None
        rank, before = share * self.count, 0
        for index, count in enumerate(self.counts):
            if count and before + count >= rank:
                low = self.bounds[index - 1] if index else 0.0
                high = self.bounds[index] if index < len(self.bounds) else low
                return low + (high - low) * (rank - before) / count
            before += count
        return self.bounds[-1]


class Histogram:
    """Counts values into buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a bucket's bound belongs to it."""
        assert list(bounds) == sorted(set(bounds)), "bounds must ascend"
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, *, times: int = 1) -> None:
        """Count a value, or the same one several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def read(self) -> Distribution:
        """All so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)
